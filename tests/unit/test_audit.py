"""Audit records: bounded ASCII texts without complete memory paths."""

import json

import anyio
import pytest
from computing import least_seconds
from hypothesis import given
from hypothesis import strategies as st

from mcp_mirror.errors import RefusalReason, ToolError
from mcp_mirror.observability.audit import Audit, AuditRecord, CallTrace, format_record
from mcp_mirror.security.sanitize import PathHasher
from mcp_mirror.server.http.rejected_requests import RejectedRequests
from mcp_mirror.settings.labels import Labels
from mcp_mirror.settings.policies import AuditPolicy

LABELS = Labels(frozenset({"crm"}), "untrusted", "public")
BASE = "report-9c1d4f0e-6a55-4b8e-9d0a-0f3b2f6f6a11"
SHORT = PathHasher(b"k" * 32)
TIME = "2026-01-02T03:04:05.678Z"


def test_a_trace_takes_over_what_the_script_of_another_call_has_done() -> None:
    refusal = ToolError("No.", RefusalReason.FLOW)
    begun = CallTrace(path="p-1", labels=LABELS, detail={"script": "x"}, inputs={"p-2": ""}, refusal=refusal, sent=5)
    trace = CallTrace()
    trace.take_result(begun)
    assert (CallTrace().reason, trace.reason) == (None, RefusalReason.FLOW)
    assert trace == CallTrace(path="p-1", labels=LABELS, detail={"script": "x"}, inputs={"p-2": ""}, refusal=refusal)


def line(record: AuditRecord) -> str:
    return format_record(record, TIME, SHORT).decode("ascii")


def test_a_record_is_one_line_of_json() -> None:
    labels = {"integrity": "untrusted", "sources": ["web", "files"]}
    record = AuditRecord(
        "call", "local", "say", "stored", f"{BASE}/a", labels, 7, {"rule": "x"}, "web", 1.26, correlation="c1"
    )
    assert json.loads(line(record)) == {
        "time": TIME,
        "event": "call",
        "principal": "local",
        "tool": "say",
        "upstream": "web",
        "outcome": "stored",
        "path": SHORT.hash_path(f"{BASE}/a"),
        "labels": {"integrity": "untrusted", "sources": ["files", "web"]},
        "bytes": 7,
        "milliseconds": 1.3,
        "correlation": "c1",
        "rule": "x",
    }


def test_a_principal_is_its_name_and_its_issuer() -> None:
    namespaces = ("local", '["token", "bob"]', '["https://login.example.com", "ann"]', '["three", "of", "them"]', "[1]")
    records = [json.loads(line(AuditRecord("call", one, "say", "ok"))) for one in namespaces]
    assert [(one["principal"], one.get("issuer")) for one in records] == [
        ("local", None),
        ("bob", "token"),
        ("ann", "https://login.example.com"),
        ('["three", "of", "them"]', None),
        ("[1]", None),
    ]


def test_a_record_of_several_requests_has_their_number() -> None:
    records = [json.loads(line(AuditRecord("refusal", "", "", "no good token", requests=count))) for count in (528, 1)]
    assert [one.get("requests") for one in records] == [528, None]


def test_unknown_members_are_omitted() -> None:
    record = json.loads(line(AuditRecord("read", "local", "memory_read", "ok")))
    assert set(record) == {"time", "event", "principal", "tool", "outcome", "bytes"}


@given(st.text(), st.text(), st.integers(0, 400), st.sampled_from(["", "/k", "/a b/~1", "/\u202e"]))
def test_texts_are_bounded_and_paths_are_hashed(before: str, behind: str, times: int, below: str) -> None:
    text = f"{before * times}'{BASE}{below}'{behind}"
    many = {f"{at}{text}": text for at in range(99)}
    written = line(AuditRecord("refusal", text, text, text, text, {**many, "all": [text] * 99}, detail=many))
    assert written.endswith("\n")
    assert written.count("\n") == 1
    assert BASE not in written
    assert BASE[7:] not in written
    assert len(written) < 200_000
    json.loads(written)


def test_long_names_of_principals_that_differ_at_the_end_stay_apart() -> None:
    names = [json.dumps(["https://login.example.com/", f"{'д' * 300}@{end}"]) for end in ("example.com", "example.org")]
    first, second = (json.loads(line(AuditRecord("call", name, "say", "ok")))["principal"] for name in names)
    assert first[:200] == second[:200]
    assert first != second


def test_path_hashes_show_the_base_and_depend_on_the_key() -> None:
    base, below = SHORT.hash_path(BASE), SHORT.hash_path(f"{BASE}/a/b")
    assert below.startswith(f"{base}/")
    assert (len(base), len(below)) == (16, 33)
    assert PathHasher(b"other").hash_path(BASE) != base
    assert "k" * 8 not in repr(SHORT)


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("nothing here", "nothing here"),
        (f'"{BASE}/a b" is', f'"{BASE}/a b" is'),
        (f"memory://{BASE}/a.", f"{BASE}/a."),
        (f"({BASE})", BASE),
        (f"{BASE}/x, {BASE}", f"{BASE}/x"),
    ],
)
def test_paths_in_texts_are_replaced_completely(text: str, hidden: str) -> None:
    replaced = SHORT.replace_paths(text)
    assert BASE not in replaced
    assert (replaced == text) is (BASE not in hidden)
    if BASE in hidden:
        path = hidden.strip('"').removesuffix('" is')
        assert f"(path {SHORT.hash_path(path)})" in replaced


@pytest.mark.parametrize("one", [f'"{BASE}/', f'`{BASE}/"x', f'"{BASE}/"x'], ids=["open", "other quote", "in a word"])
def test_very_many_paths_without_closing_quotes_are_replaced_fast(one: str) -> None:
    text = one * 400
    assert BASE not in SHORT.replace_paths(text)
    assert least_seconds(lambda: SHORT.replace_paths(text)) < 0.02


async def test_without_a_sink_everything_is_admitted() -> None:
    record = AuditRecord("call", "local", "say", "ok")
    Audit().write(record)
    assert await Audit().admit(record)
    assert "c4nary" not in repr(AuditPolicy(key="c4nary"))


class Witness:
    """Keeps records."""

    def __init__(self, *, works: bool = True) -> None:
        self.records: list[AuditRecord] = []
        self.works = works
        self._grown = anyio.Event()

    async def has_records(self, count: int) -> None:
        """Wait until there are so many."""
        while len(self.records) < count:
            self._grown = anyio.Event()
            await self._grown.wait()

    def enqueue(self, record: AuditRecord) -> None:
        self.records.append(record)
        self._grown.set()

    @property
    def counts(self) -> dict[str, int]:
        return {"written": len(self.records), "lost": 0}

    async def write(self, record: AuditRecord) -> bool:
        self.enqueue(record)
        return self.works


@pytest.mark.parametrize(
    ("required", "works", "admitted"), [(False, False, True), (True, False, False), (True, True, True)]
)
async def test_a_required_record_is_written_before_the_action(*, required: bool, works: bool, admitted: bool) -> None:
    witness = Witness(works=works)
    assert await Audit(witness, required).admit(AuditRecord("call", "local", "say", "begun")) is admitted
    assert len(witness.records) == required


def test_records_of_one_call_share_a_correlation_id() -> None:
    witness = Witness()
    audit = Audit(witness).with_correlation("c1")
    audit.write(AuditRecord("read", "local", "memory_read", "ok"))
    audit.write(AuditRecord("call", "local", "memory_read", "ok", correlation="c2"))
    assert [record.correlation for record in witness.records] == ["c1", "c2"]
    assert (audit.counts, Audit().counts) == ({"written": 2, "lost": 0}, {})


async def test_rejected_requests_are_recorded_again_after_a_while() -> None:
    witness = Witness()
    rejected = RejectedRequests(Audit(witness), interval=0.05)
    for _ in range(101):
        rejected.report("no good token", "No token.")
    with anyio.fail_after(20):
        await witness.has_records(101)
    rejected.report("no good token", "No token.")
    rejected.report("insufficient scope", "No scope.", "alice")
    rejected.close()
    assert [(one.outcome, one.requests) for one in witness.records[99:]] == [
        ("no good token", 1),
        ("no good token", 1),
        ("no good token", 1),
        ("insufficient scope", 1),
    ]
