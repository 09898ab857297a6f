"""The order of the stages that every tool call passes through."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Final

from mcp_mirror.errors import ConfigError
from mcp_mirror.gateway.call import Next, Stage
from mcp_mirror.gateway.call_quotas import CallQuotas
from mcp_mirror.gateway.context_budgets import ContextBudgets
from mcp_mirror.gateway.stages.audit import AuditStage
from mcp_mirror.gateway.stages.call_log import CallLogStage
from mcp_mirror.gateway.stages.call_metrics import CallMetricsStage
from mcp_mirror.gateway.stages.concurrency import ConcurrencyStage
from mcp_mirror.gateway.stages.consent import ConsentStage, UsedConsents
from mcp_mirror.gateway.stages.context_budget import ContextBudgetStage
from mcp_mirror.gateway.stages.errors import answer_errors
from mcp_mirror.gateway.stages.events import EventStage
from mcp_mirror.gateway.stages.quota import QuotaStage
from mcp_mirror.gateway.stages.usage import UsageStage
from mcp_mirror.memory.usage import UsageCounter
from mcp_mirror.memory.value_lookup import find_nearest
from mcp_mirror.observability.audit import Audit
from mcp_mirror.observability.events import EventRecorder
from mcp_mirror.security.flows import Flows
from mcp_mirror.security.path_hash import PathHasher
from mcp_mirror.security.rate_limits import PrincipalLimiter
from mcp_mirror.settings.policies import Config
from mcp_mirror.tokens import upper_estimator

if TYPE_CHECKING:
    from mcp_mirror.observability.metrics import Metrics

ENTRY_POINTS: Final = "mcp_mirror.stages"
"""The entry point group of stages that `mirror.stages` names."""


@dataclass(frozen=True, slots=True)
class StageDependencies:
    """Objects that stages share. They outlive a reload."""

    audit: Audit
    clock: Callable[[], float]
    """Seconds."""
    path_hasher: PathHasher
    usage_counter: UsageCounter
    limiter: PrincipalLimiter
    """The rate and concurrency limits of principals."""
    budgets: ContextBudgets
    used_consents: UsedConsents
    recorder: EventRecorder | None = None
    """Writes the event log; None without one."""
    quotas: CallQuotas | None = None
    """Counts calls; None without quotas."""
    metrics: "Metrics | None" = None
    """Measures calls; None if no metrics are configured."""
    tracing: Stage | None = None
    """Records spans; None without traces."""


def build_stages(
    config: Config, flows: Flows, shared: StageDependencies, custom: Sequence[Stage] = ()
) -> tuple[Stage, ...]:
    """Return the stages in the order in which a call passes through them; a stage that is not configured is absent.

    Args:
        config: The configuration.
        flows: Its flow policy.
        shared: Objects that stages share.
        custom: The user's own stages.
    """
    estimate = upper_estimator(config.mirror.provider)
    has_memory = not config.is_transparent
    recorder = shared.recorder if has_memory else None
    order: tuple[Stage | None, ...] = (
        shared.tracing,
        CallMetricsStage(shared.metrics) if shared.metrics else None,
        EventStage(recorder, shared.clock) if recorder else None,
        AuditStage(shared.audit, shared.clock) if shared.audit.sink else None,
        CallLogStage(shared.path_hasher, shared.clock),
        UsageStage(shared.usage_counter, estimate) if has_memory else None,
        QuotaStage(shared.quotas) if recorder and shared.quotas else None,
        ConcurrencyStage(shared.limiter),
        ContextBudgetStage(replace(shared.budgets, policy=config.context), estimate)
        if has_memory and config.context.window is not None
        else None,
        answer_errors,
        *custom,
        ConsentStage(shared.used_consents, may_ask=flows.policy.on_refusal == "ask") if flows.can_refuse else None,
    )
    return tuple(stage for stage in order if stage is not None)


def compose(stages: Sequence[Stage], dispatch: Next) -> Next:
    """Return the pipeline: the first stage is the outermost, `dispatch` the innermost step."""
    answer = dispatch
    for stage in reversed(stages):
        answer = _bind(stage, answer)
    return answer


def _bind(stage: Stage, call_next: Next) -> Next:
    return lambda call: stage(call, call_next)


def load_stages(names: Sequence[str]) -> tuple[Stage, ...]:
    """Load the stages that the configuration names, from the entry point group `mcp_mirror.stages`.

    Raises:
        ConfigError: No installed package has a stage of this name, or it cannot be imported.
    """
    installed = {one.name: one for one in entry_points(group=ENTRY_POINTS)} if names else {}
    stages: list[Stage] = []
    for name in names:
        if name not in installed:
            near = find_nearest(name, installed)
            hint = (
                f"Did you mean {near[0]!r}?" if near else f"Install a package with an entry point in `{ENTRY_POINTS}`."
            )
            raise ConfigError(f"`mirror.stages` names {name!r}, which no installed package provides. {hint}")
        try:
            stages.append(installed[name].load())
        except (ImportError, AttributeError) as error:
            raise ConfigError(f"The stage {name!r} of `mirror.stages` cannot be imported: {error}") from error
    return tuple(stages)
