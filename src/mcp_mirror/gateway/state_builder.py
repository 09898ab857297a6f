"""Builds the state of a gateway from a configuration: at the start, and again at every reload."""

from collections.abc import Mapping
from dataclasses import dataclass

from mcp_mirror.core.catalog import Catalog
from mcp_mirror.gateway.call import Next, RuntimeState, Stage
from mcp_mirror.gateway.contents import ContentCapture
from mcp_mirror.gateway.pipeline import StageDependencies, build_stages, compose, load_stages
from mcp_mirror.gateway.services import Services
from mcp_mirror.gateway.tool_search import search_tools
from mcp_mirror.memory.code.run import RUN, RUN_TOOL
from mcp_mirror.memory.tools.table import own_tools
from mcp_mirror.memory.tools.tool import MemoryTool
from mcp_mirror.security.flows import build_flows
from mcp_mirror.security.pins import Pins
from mcp_mirror.settings.policies import Config


@dataclass(frozen=True, slots=True)
class StateBuilder:
    """The objects that outlive a reload, from which every state is built."""

    services: Services
    shared: StageDependencies
    dispatch: Next
    """The innermost step of the pipeline."""
    stages: tuple[Stage, ...] = ()
    """Stages of the program that runs the gateway."""

    def build(self, config: Config, pins: Pins, catalog: Catalog, *, is_isolated: bool) -> RuntimeState:
        """Return the state for a configuration.

        Args:
            config: The configuration.
            pins: The pinned tool definitions.
            catalog: The catalog until the upstreams are listed.
            is_isolated: Several principals use the gateway.

        Raises:
            ConfigError: A stage that the configuration names cannot be loaded.
        """
        services = self.services
        flows = build_flows(config, is_isolated=is_isolated)
        custom = (*self.stages, *load_stages(config.mirror.stages))
        return RuntimeState(
            config=config,
            pins=pins,
            flows=flows,
            own_tools={**search_tools(config.mirror), **self._memory_tools(config)},
            contents=ContentCapture(
                services.writer, config.mirror, services.limits, services.new_id, services.upstreams.may_show, flows
            ),
            answer=compose(build_stages(config, flows, self.shared, custom), self.dispatch),
            catalog=catalog,
        )

    def _memory_tools(self, config: Config) -> Mapping[str, MemoryTool]:
        if config.is_transparent:
            return {}
        lifetime = self.services.writer.lifetime.lifetime
        tools = own_tools(config.memory_tools, lifetime, has_sql=self.services.sql is not None)
        if self.services.sandbox is None or not config.memory_tools.admits(RUN):
            return tools
        return {**tools, RUN: RUN_TOOL}
