"""The order of the stages, which of them are present, and what each does with the stages after it."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import msgspec
import pytest

from mcp_mirror.callers import LOCAL, Caller, NullChannel
from mcp_mirror.errors import (
    BusyError,
    ConfigError,
    FlowError,
    RefusalReason,
    RefusedError,
    StoreError,
    ToolError,
    summarize_traceback,
)
from mcp_mirror.gateway.call import Call, Next, answer_errors
from mcp_mirror.gateway.context_budgets import ContextBudgets
from mcp_mirror.gateway.gateway import Gateway
from mcp_mirror.gateway.pipeline import StageDependencies, build_stages, compose
from mcp_mirror.gateway.stages.consent import ConsentStage, UsedConsents
from mcp_mirror.gateway.stages.custom import load_stages
from mcp_mirror.gateway.stages.limits import ConcurrencyStage
from mcp_mirror.gateway.stages.reporting import ReportStage
from mcp_mirror.memory.usage import UsageCounter
from mcp_mirror.observability.audit import Audit, AuditRecord
from mcp_mirror.observability.events import EventRecorder
from mcp_mirror.security.flows import Flows, build_flows
from mcp_mirror.security.rate_limits import Limit, PrincipalLimiter, Queue
from mcp_mirror.security.sanitize import PathHasher
from mcp_mirror.settings.labels import Accepts, FlowsPolicy, PlacePolicy
from mcp_mirror.settings.policies import Config, ContextPolicy, EventsPolicy, MirrorPolicy
from mcp_mirror.settings.store import StorePolicy
from mcp_mirror.stores.event_log import MemoryEventLog
from mcp_mirror.stores.memory import MemoryStore
from mcp_mirror.types import Traffic

OK = {"content": b"[]"}
ASKS = FlowsPolicy(model=PlacePolicy(accepts=Accepts(integrity="trusted")), on_refusal="ask")


class Sink:
    """Keeps records in memory."""

    def __init__(self, *, is_writable: bool = True) -> None:
        self.records: list[AuditRecord] = []
        self.is_writable = is_writable
        self.counts: dict[str, int] = {}

    def enqueue(self, record: AuditRecord) -> None:
        self.records.append(record)

    async def write(self, record: AuditRecord) -> bool:
        self.records.append(record)
        return self.is_writable


def shared(sink: Sink | None = None, calls: int = 5) -> StageDependencies:
    store = MemoryStore(StorePolicy(), lambda: 1e9, lambda: pytest.fail("no file is needed"))
    services = SimpleNamespace(usage_counter=UsageCounter(store))
    gateway = SimpleNamespace(audit=Audit(sink), path_hasher=PathHasher(b"key"), services=services)
    return StageDependencies(
        gateway=cast("Gateway", gateway),
        clock=lambda: 1.0,
        limiter=PrincipalLimiter(
            Limit("calls_per_principal", calls), None, Queue(Limit("queued_calls", 0), 0), lambda: 1.0
        ),
        budgets=ContextBudgets(lambda: 1.0),
        used_consents=UsedConsents(),
    )


def call_of(name: str = "echo_mirrored", **members: Any) -> Call:
    return Call(NullChannel(Caller(LOCAL)), name, b"{}", **members)


def names_of(config: Config, sink: Sink | None = None) -> list[str]:
    stages = build_stages(config, build_flows(config, is_isolated=False), shared(sink))
    return [getattr(stage, "__name__", type(stage).__name__) for stage in stages]


async def answer(_call: Call) -> dict[str, bytes]:
    return OK


async def not_called(_call: Call) -> dict[str, bytes]:
    pytest.fail("nothing may be called")


def test_stages_that_are_not_configured_are_absent() -> None:
    assert names_of(Config()) == ["ReportStage", "UsageStage", "ConcurrencyStage", "answer_errors"]


def test_all_stages_are_in_their_order() -> None:
    config = Config(context=ContextPolicy(10_000), flows=ASKS)
    assert names_of(config, Sink()) == [
        "ReportStage",
        "UsageStage",
        "ConcurrencyStage",
        "ContextBudgetStage",
        "answer_errors",
        "ConsentStage",
    ]


def test_a_transparent_gateway_counts_no_tokens() -> None:
    config = Config(mirror=MirrorPolicy(suffix="", capture="never"), context=ContextPolicy(10_000))
    assert config.is_transparent
    assert names_of(config) == ["ReportStage", "ConcurrencyStage", "answer_errors"]


@pytest.mark.parametrize(
    ("config", "count"), [(Config(), 1), (Config(mirror=MirrorPolicy(suffix="", capture="never")), 0)]
)
async def test_calls_are_in_the_event_log_unless_nothing_is_stored(config: Config, count: int) -> None:
    log = MemoryEventLog(lambda: 1e9)
    recorder = EventRecorder(log, EventsPolicy(), lambda: 1e9)
    dependencies = msgspec.structs.replace(shared(Sink()), recorder=recorder)
    await compose(build_stages(config, build_flows(config, is_isolated=False), dependencies), answer)(call_of())
    await recorder.flush()
    assert len(await log.read(LOCAL, limit=2)) == count


async def test_the_first_stage_is_the_outermost() -> None:
    seen: list[str] = []

    def noting(name: str) -> Any:
        async def stage(call: Call, call_next: Next) -> Any:
            seen.append(name)
            return await call_next(replace(call, name=f"{call.name}{name}"))

        return stage

    async def dispatch(call: Call) -> Any:
        seen.append(call.name)
        return OK

    assert await compose([noting("a"), noting("b")], dispatch)(call_of("-")) == OK
    assert seen == ["a", "b", "-ab"]


async def test_custom_stages_run_before_consent_and_their_errors_are_shown() -> None:
    async def refuse(call: Call, _call_next: Next) -> Any:
        raise ToolError(f"{call.name} is not allowed on Sundays.")

    dependencies = shared()
    stages = build_stages(Config(), Flows(), dependencies, [refuse])
    reply = await compose(stages, answer)(call_of())
    assert reply["isError"] == b"true"
    assert "not allowed on Sundays" in str(reply["content"])
    assert (await dependencies.gateway.services.usage_counter.stats(LOCAL)).traffic.sent > 0


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (FlowError("No.", "f10w", "May it?"), RefusalReason.FLOW),
        (ToolError("No.", RefusalReason.UNKNOWN_TOOL), RefusalReason.UNKNOWN_TOOL),
        (BusyError("Too many scripts wait.", 1.0), RefusalReason.BUSY),
        (ToolError("No."), None),
        (StoreError("No."), None),
    ],
)
async def test_an_error_names_the_reason_of_a_refusal(error: Exception, reason: RefusalReason | None) -> None:
    async def fail(_call: Call) -> Any:
        raise error

    call = call_of()
    reply = await compose([answer_errors, ConsentStage(UsedConsents(), may_ask=False)], fail)(call)
    assert reply["isError"] == b"true"
    assert call.trace.reason is reason


async def test_a_json_rpc_error_passes_and_its_tokens_are_counted() -> None:
    async def fail(_call: Call) -> Any:
        raise RefusedError("The server says no.", -32602, "no")

    dependencies = shared()
    with pytest.raises(RefusedError):
        await compose(build_stages(Config(), Flows(), dependencies), fail)(call_of())
    assert (await dependencies.gateway.services.usage_counter.stats(LOCAL)).traffic.sent > 0


async def test_only_calls_of_clients_are_limited() -> None:
    stage = ConcurrencyStage(shared(calls=1).limiter)

    async def nested(_call: Call) -> Any:
        return await stage(call_of(is_limited=True), answer)

    refused = call_of(is_limited=True)
    assert await stage(call_of(), nested) == OK
    reply = await stage(refused, nested)
    assert reply["isError"] == b"true"
    assert "The principal of this client is busy" in str(reply["content"])


async def test_a_call_that_cannot_be_recorded_is_not_made() -> None:
    sink = Sink(is_writable=False)
    stage = ReportStage(Audit(sink, is_required=True), None, PathHasher(b"key"), lambda: 1.0)
    call = call_of()
    reply = await stage(call, not_called)
    assert reply["isError"] == b"true"
    assert call.trace.reason is RefusalReason.NO_AUDIT_RECORD
    assert [record.outcome for record in sink.records] == ["unknown tool"]


async def test_a_record_has_the_outcome_and_no_name_of_an_unknown_tool() -> None:
    sink = Sink()
    stage = ReportStage(Audit(sink), None, PathHasher(b"key"), lambda: 1.0)

    async def refuse(call: Call) -> Any:
        call.trace.refusal = ToolError("No.", RefusalReason.UNKNOWN_TOOL)
        return OK

    async def called(call: Call) -> Any:
        call.trace.upstream = "crm"
        return OK

    await stage(call_of(), refuse)
    await stage(call_of(), called)
    rows = [(record.event, record.tool, record.outcome, record.upstream) for record in sink.records]
    assert rows == [("refusal", "(unknown)", "unknown tool", ""), ("call", "echo_mirrored", "ok", "crm")]


async def test_a_broken_stage_is_recorded_as_an_error() -> None:
    sink = Sink()

    async def fail(_call: Call) -> Any:
        raise ZeroDivisionError

    call = call_of()
    with pytest.raises(ZeroDivisionError) as caught:
        await compose(build_stages(Config(), Flows(), shared(sink)), fail)(call)
    assert [record.outcome for record in sink.records] == ["error"]
    assert f"in call of (unknown), correlation {call.id} at" in summarize_traceback(caught.value)


@pytest.mark.parametrize(("kind", "outcome"), [(b'"complete"', "ok"), (b'"input_required"', "asked")])
async def test_only_an_input_required_result_is_recorded_as_asked(kind: bytes, outcome: str) -> None:
    sink = Sink()

    async def answer_with_requests(_call: Call) -> Any:
        return {**OK, "resultType": kind, "inputRequests": b"{}"}

    await compose(build_stages(Config(), Flows(), shared(sink)), answer_with_requests)(call_of())
    assert [record.outcome for record in sink.records] == [outcome]


async def test_tokens_replaced_by_a_path_are_counted_as_kept_out() -> None:
    async def store(call: Call) -> Any:
        call.trace.hidden_tokens = 1000
        return OK

    dependencies = shared()
    await compose(build_stages(Config(), Flows(), dependencies), store)(call_of())
    assert (await dependencies.gateway.services.usage_counter.stats(LOCAL)).traffic == Traffic(0, 1000)


def test_a_stage_that_is_not_installed_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="'nowhere', which no installed package provides"):
        load_stages(["nowhere"])
    assert load_stages([]) == ()


def test_calls_have_their_own_ids() -> None:
    assert call_of().id != call_of().id
    assert len(call_of().id) == len(UUID(int=0).hex) // 2
