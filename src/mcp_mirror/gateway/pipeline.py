"""The order of the stages that every tool call passes through, and the state of a gateway for a configuration."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from mcp_mirror.core.budgets import compute_capacity
from mcp_mirror.core.catalog import Catalog
from mcp_mirror.gateway.call import Next, RuntimeState, Stage, answer_errors
from mcp_mirror.gateway.contents import ContentCapture
from mcp_mirror.gateway.context_budgets import ContextBudgets
from mcp_mirror.gateway.gateway import Gateway
from mcp_mirror.gateway.stages.consent import ConsentStage, UsedConsents
from mcp_mirror.gateway.stages.custom import CustomStage, load_stages
from mcp_mirror.gateway.stages.limits import CallQuotas, ConcurrencyStage, ContextBudgetStage
from mcp_mirror.gateway.stages.reporting import ReportStage, UsageStage
from mcp_mirror.gateway.stages.telemetry import TelemetryStage
from mcp_mirror.gateway.tool_search import search_tools
from mcp_mirror.memory.code.run import add_run
from mcp_mirror.memory.tools.table import RUN, own_tools
from mcp_mirror.memory.tools.tool import MemoryTool
from mcp_mirror.observability.events import EventRecorder
from mcp_mirror.security.flows import Flows, build_flows
from mcp_mirror.security.pins import Pins
from mcp_mirror.security.rate_limits import PrincipalLimiter
from mcp_mirror.settings.labels import FUNCTIONS
from mcp_mirror.settings.policies import Config, ScriptAccess
from mcp_mirror.tokens import upper_estimator


class StageDependencies(msgspec.Struct, frozen=True):
    """Objects that stages share. They outlive a reload."""

    gateway: Gateway
    clock: Callable[[], float]
    """Seconds, monotonic: for durations, not for the time of day."""
    limiter: PrincipalLimiter
    """The rate and concurrency limits of principals."""
    budgets: ContextBudgets
    used_consents: UsedConsents
    recorder: EventRecorder | None = None
    """Writes the event log; None without one."""
    quotas: CallQuotas | None = None
    """Counts calls against quotas; None without an event log."""
    telemetry: TelemetryStage | None = None
    """Measures and traces calls; None without metrics and traces."""


def build_stages(
    config: Config, flows: Flows, shared: StageDependencies, custom: Sequence[Stage] = ()
) -> tuple[Stage, ...]:
    """Return the stages in the order in which a call passes through them; a stage that is not configured is absent."""
    estimate = upper_estimator(config.mirror.provider)
    gateway, has_memory = shared.gateway, not config.is_transparent
    recorder = shared.recorder if has_memory else None
    capacity = compute_capacity(config.context)
    order: tuple[Stage | None, ...] = (
        shared.telemetry,
        ReportStage(gateway.audit, recorder, gateway.path_hasher, shared.clock),
        UsageStage(gateway.services.usage_counter, estimate) if has_memory else None,
        shared.quotas if recorder and config.has_call_quotas else None,
        ConcurrencyStage(shared.limiter),
        ContextBudgetStage(msgspec.structs.replace(shared.budgets, capacity=capacity), estimate)
        if has_memory and capacity is not None
        else None,
        answer_errors,
        *map(CustomStage, custom),
        ConsentStage(shared.used_consents, may_ask=flows.policy.on_refusal == "ask") if flows.can_refuse else None,
    )
    return tuple(stage for stage in order if stage is not None)


def compose(stages: Sequence[Stage], dispatch: Next) -> Next:
    """Return the pipeline: the first stage is the outermost, `dispatch` the innermost step."""
    answer = dispatch
    for stage in reversed(stages):
        answer = partial(stage, call_next=answer)  # type: ignore[call-arg]  # a `CustomStage` may name it differently
    return answer


class StateBuilder(msgspec.Struct, frozen=True):
    """The objects that outlive a reload, from which every state is built."""

    shared: StageDependencies
    dispatch: Next
    """The innermost step of the pipeline."""
    stages: tuple[Stage, ...]
    """Stages of the program that runs the gateway."""

    def build(self, config: Config, pins: Pins, catalog: Catalog, *, is_isolated: bool) -> RuntimeState:
        """Return the state for a configuration, with a catalog until the upstreams are listed.

        `is_isolated`: several principals use the gateway.

        Raises:
            ConfigError: A stage that the configuration names cannot be loaded.
        """
        gateway = self.shared.gateway
        services, flows = gateway.services, build_flows(config, is_isolated=is_isolated)
        custom = (*self.stages, *load_stages(config.mirror.stages))
        return RuntimeState(
            config=config,
            pins=pins,
            flows=flows,
            own_tools={**search_tools(config.mirror), **self._memory_tools(config)},
            contents=ContentCapture(
                services.writer, config.mirror, services.limits, services.new_id, gateway.upstreams.may_show, flows
            ),
            answer=compose(build_stages(config, flows, self.shared, custom), self.dispatch),
            catalog=catalog,
        )

    def _memory_tools(self, config: Config) -> Mapping[str, MemoryTool]:
        if config.is_transparent:
            return {}
        gateway = self.shared.gateway
        lifetime = gateway.services.writer.policy.lifetime
        has_run = gateway.sandbox is not None and config.memory_tools.admits(RUN)
        tools = own_tools(config.memory_tools, lifetime, has_sql=gateway.services.sql is not None, has_run=has_run)
        if not has_run:
            return tools
        access: ScriptAccess = config.code.tools
        if access != "none" and not config.upstreams:  # only functions of the program, if any
            access = "all" if any(one.policy.name == FUNCTIONS for one in gateway.upstreams) else "none"
        return add_run(tools, access)
