"""A result is processed in one step, from its members or from the whole response."""

import json
import pickle
from typing import Any

import msgspec
import pytest

from mcp_mirror.core.replies import build_reply
from mcp_mirror.core.results.capture import CaptureRules
from mcp_mirror.core.results.parsed_result import PARTS
from mcp_mirror.core.results.processing import (
    MAX_INDEXED_KEYS,
    ProcessedResult,
    ProcessingOptions,
    RejectedFrame,
    bound_other_members,
    process_frame,
    process_result,
    read_result_members,
)
from mcp_mirror.errors import WireError
from mcp_mirror.paths import FixedBases, read_notice_path
from mcp_mirror.settings.upstreams import CaptureMode
from mcp_mirror.tokens import estimate_tokens

BASE, BESIDE = "grid-0b8f8d2e-6a55-4b8e-9d0a-0f3b2f6f6a11", "grid-1c9f8d2e-6a55-4b8e-9d0a-0f3b2f6f6a11"


def order(**changes: Any) -> ProcessingOptions:
    options: dict[str, Any] = {
        "rules": CaptureRules("auto", inline_budget=20, error_budget=20, is_wrapped=False), "style": "compact",
        "tool": "grid", "arguments": b"{}", "bases": FixedBases(BASE, BESIDE), "max_key_bytes": 10,
    }  # fmt: skip
    return ProcessingOptions(**(options | changes))


def members(**result: Any) -> dict[str, bytes]:
    return {key: json.dumps(value).encode() for key, value in result.items()}


def text(content: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": content}]


@pytest.mark.parametrize("ifc", [{"ifc": {"confidentiality": "secret"}}, {"ifc": "x" * 70_000}, {}])
def test_what_is_stored_beside_a_value_has_a_limit(ifc: dict[str, Any]) -> None:
    rest = {"_meta": {"view": "x" * 1_000_000, **ifc}, "own": [1.0], "other": "x" * 70_000}
    digest = process_result(members(structuredContent={"a": 1}, **rest), order())
    assert digest.captured.value is not None
    bounded = bound_other_members(digest.captured.other_members)
    assert len(bounded) < 70_000
    assert json.loads(bounded).keys() == {"_meta", "own", PARTS}
    assert json.loads(bounded)[PARTS] == json.loads(digest.captured.other_members)[PARTS]
    kept = ProcessedResult({}, msgspec.structs.replace(digest.captured, other_members=bounded))
    assert kept.ifc == digest.ifc


def test_what_is_stored_beside_a_value_is_otherwise_unchanged() -> None:
    digest = process_result(members(structuredContent={"a": 1}, _meta={"view": "x" * 60_000}), order())
    assert bound_other_members(digest.captured.other_members) == digest.captured.other_members


def test_budgets_mean_expected_tokens_or_a_bound_on_them() -> None:
    data = json.dumps([0.123456789 * n for n in range(400)]).encode()
    expected, bound = order().estimate(data), order(is_upper_bound=True).estimate(data)
    assert 1.2 * expected < bound == estimate_tokens(data)
    assert order(provider="openai").estimate(data) <= estimate_tokens(data, "openai")


ROWS = {"rows": [{"id": n, "name": "x" * 20} for n in range(50)]}


def notice_of(content: list[dict[str, str]], **changes: Any) -> str:
    digest = process_result(members(content=content, structuredContent=ROWS), order(**changes))
    [block] = json.loads(b"".join(map(bytes, build_reply(digest, None)["content"])))
    notice: str = block["text"]
    return notice


@pytest.mark.parametrize("more", [(), ("Next page: 2\nask first.",)])
def test_a_short_text_beside_structured_content_is_in_the_notice(more: tuple[str, ...]) -> None:
    shown = ["Found 50 of 9,000 rows.", *more]
    notice = notice_of([block for one in shown for block in text(one)])
    assert notice.startswith(f'"{BASE}"\nThis path stands for object: "rows" array[50]')
    assert f"The result also has {', '.join(map(json.dumps, shown))}." in notice.splitlines()
    assert BESIDE not in notice


def test_a_long_text_beside_structured_content_is_named_by_its_path() -> None:
    assert f"The same result's text (495 B):\n{BESIDE}\n" in notice_of(text("word " * 99))
    for content, size in (
        (text("one ") * 99, "99 objects, 3.37 kB"),
        ([*text("ok"), *text("word " * 99)], "2 objects, 557 B"),
    ):
        assert f"The same result's text (array of {size}):\n{BESIDE}\n" in notice_of(content)
    assert BESIDE in notice_of(text("Found 50 rows."), style="json")
    hidden = CaptureRules("auto", inline_budget=20, error_budget=20, is_wrapped=False, preview=False)
    assert "Found" not in notice_of(text("Found 50 rows."), rules=hidden)


def test_a_long_text_beside_a_small_value_is_previewed() -> None:
    page = "".join(f"Line {number} of the page\n" for number in range(700))
    result = members(content=text(page), structuredContent={"status": 200})
    notice = process_result(result, order()).notice
    assert notice.startswith(f'{{"status": 200}}\n\nPath: "{BASE}"\ntext_path: "{BESIDE}"\n')
    assert "\nThe text is not shown. Preview: text, 14.6 kB, 700 lines\n| Line 0 of the page\n| Line 1 " in notice
    assert notice.endswith("| Line 699 of the page\nResult ends.")
    assert str(read_notice_path(notice)) == BASE
    assert json.loads(process_result(result, order(style="json")).notice)["text"] == "text, 14.6 kB, 700 lines"
    for content, summary in (
        (text(json.dumps(ROWS)), "object 2.2 kB"),
        (
            [*text("Fetched 1 page."), *text(page)],
            'array of 2 objects, 15.4 kB; fields with first values: type "text", text ',
        ),
    ):
        other = process_result(members(content=content, structuredContent={"status": 200}), order()).notice
        assert f"\nThe text is not shown. Preview: {summary}" in other
        assert str(read_notice_path(other)) == BASE
    hidden = CaptureRules("auto", inline_budget=2000, error_budget=20, is_wrapped=False, preview=False)
    assert "Line" not in process_result(result, order(rules=hidden)).notice


PICTURE = {"type": "image", "data": "AAAA" * 40, "mimeType": "image/png"}
BOOK = {"type": "resource", "resource": {"uri": "u", "blob": "AAAA" * 400, "mimeType": "application/x"}}
NOTE = {"type": "text", "text": "note", "annotations": {"priority": 1}}


@pytest.mark.parametrize(
    ("content", "structured", "place"),
    [
        ([PICTURE, BOOK], None, f"{BASE}/1/resource/blob"),
        ([NOTE, PICTURE, BOOK], None, f"{BASE}/2/resource/blob"),
        ([BOOK], None, f"{BASE}/resource/blob"),
        ([BOOK], {"content": [BOOK]}, f"{BASE}/resource/blob"),
        ([BOOK], {"a/b": [BOOK], "n": 1}, f"{BASE}/a~1b/0/resource/blob"),
        ([PICTURE, BOOK], {"content": [PICTURE, BOOK], "n": 1}, f"{BASE}/content/1/resource/blob"),
        ([BOOK], {"n": 1}, f"{BESIDE}/0/resource/blob"),
        ([PICTURE, NOTE, BOOK], {"n": 1}, f"{BESIDE}/2/resource/blob"),
    ],
)
def test_a_file_is_named_by_the_path_under_which_it_is_stored(content: Any, structured: Any, place: str) -> None:
    result = members(content=content, **({} if structured is None else {"structuredContent": structured}))
    digest = process_result(result, order(max_key_bytes=100))
    assert f'"{place}" application/x, 1.2 kB' in digest.notice
    base, _, pointer = place.partition("/")
    stored = digest.captured.value if base == BASE else digest.captured.companion
    assert stored is not None
    found = json.loads(bytes(stored.blob))
    for token in pointer.split("/"):
        found = found[int(token) if isinstance(found, list) else token.replace("~1", "/")]
    assert found == BOOK["resource"]["blob"]  # type: ignore[index]


def test_a_picture_between_texts_keeps_its_place_before_the_path() -> None:
    blocks = [*text("above"), {"type": "image", "data": "AAAA", "mimeType": "image/png"}, *text("below")]
    digest = process_result(members(content=blocks), order())
    shown = json.loads(b"".join(map(bytes, build_reply(digest, None)["content"])))
    assert shown[:3] == blocks
    assert shown[3]["text"].startswith(f'Path: "{BASE}"\n"{BASE}/1" image/png')
    paper = process_result(members(content=blocks), order(style="paper"))
    assert [block["type"] for block in json.loads(b"".join(map(bytes, build_reply(paper, None)["content"])))] == [
        "text",
        "image",
    ]


def test_a_small_text_is_left_as_it_came() -> None:
    result = members(content=text("ok"))
    assert process_result(result, order()).members is result
    assert process_result(result, order()).notice == ""


def test_an_object_gets_a_value_and_a_notice_that_names_its_path() -> None:
    digest = process_result(members(content=[], structuredContent={"a": 1}), order())
    assert digest.captured.value is not None
    assert BASE in digest.notice
    assert BESIDE not in digest.notice


def test_additional_text_is_named_beside_the_value() -> None:
    result = members(content=text("one row " * 90), structuredContent={"a": 1})
    assert BESIDE in process_result(result, order()).notice


PICTURE = {"type": "image", "data": "AAAA", "mimeType": "image/png"}


@pytest.mark.parametrize(
    "result",
    [
        {"content": text("ok")},
        {"content": text("wrong"), "isError": True},
        {"content": [PICTURE]},
        {"content": [PICTURE, PICTURE], "isError": True},
        {"content": text("two rows"), "structuredContent": [1, 2]},
        {"content": [*text("seen"), PICTURE], "structuredContent": {"a": 1}},
    ],
)
def test_a_path_only_result_has_only_its_path_in_the_notice(result: dict[str, Any]) -> None:
    digest = process_result(members(**result), order().path_only())
    assert digest.captured.value is not None
    assert (digest.notice, digest.captured.passed, digest.captured.shown) == (f"{BASE}\n", (), None)
    assert digest.captured.is_error is result.get("isError", False)


@pytest.mark.parametrize("null", ["isError", "structuredContent", "_meta"])
def test_a_null_member_of_a_result_counts_as_left_out(null: str) -> None:
    digest = process_result(members(content=text("hello"), **{null: None}), order())
    assert digest.captured == process_result(members(content=text("hello")), order()).captured


@pytest.mark.parametrize(
    "result", [{"content": 5}, {"content": [], "isError": "no"}, {"isError": 1}, {"isError": None}, {"content": None}]
)
def test_results_that_clients_cannot_read_are_errors(result: dict[str, Any]) -> None:
    with pytest.raises(WireError, match="not a tool result"):
        process_result(members(**result), order())


def test_a_key_past_its_bound_is_an_error_that_names_the_bound() -> None:
    with pytest.raises(WireError, match=r"11 characters, more than `limits.max_key_bytes` \(10\) allows"):
        process_result(members(structuredContent={"k" * 11: 1}), order())


def test_of_many_keys_the_first_are_indexed_and_all_are_counted() -> None:
    wide = {f"k{number}": number for number in range(MAX_INDEXED_KEYS + 5)}
    digest = process_result(members(content=[], structuredContent=wide), order())
    assert digest.captured.value is not None
    assert [member.key for member in digest.captured.value.members] == list(wide)[:MAX_INDEXED_KEYS]
    shown = digest.notice.count('"k')
    assert f"{MAX_INDEXED_KEYS + 5 - shown:,} more" in digest.notice


def test_what_a_worker_sends_does_not_grow_with_the_pictures_of_a_result() -> None:
    picture = {"type": "image", "data": "AAAA", "mimeType": "image/png"}
    digest = process_result(members(content=[picture] * 2_000), order())
    assert len(digest.captured.passed) == 20
    sent = msgspec.structs.replace(digest.captured, value=None, companion=None, passed=())
    assert len(pickle.dumps(sent)) < 10_000  # the event loop reads it at once


def test_of_long_keys_only_the_first_are_indexed() -> None:
    wide = {f"{number}{'k' * 60_000}": number for number in range(50)}
    digest = process_result(members(content=[], structuredContent=wide), order(max_key_bytes=1 << 16))
    assert digest.captured.value is not None
    assert [member.key for member in digest.captured.value.members] == list(wide)[:17], (
        "with about a million characters"
    )
    assert "and 50 more keys" in digest.notice


def test_a_whole_response_is_read_as_its_result_is() -> None:
    result = {"content": [], "structuredContent": {"a": 1.0}}
    frame = json.dumps({"jsonrpc": "2.0", "id": 1, "result": result}).encode()
    processed = process_frame(frame, order())
    assert isinstance(processed, ProcessedResult)
    assert processed.notice == process_result(members(**result), order()).notice


def test_a_protocol_error_is_reported_as_one() -> None:
    frame = json.dumps({"jsonrpc": "2.0", "id": 1, "error": {"code": -32602, "message": "no", "data": {}}}).encode()
    assert process_frame(frame, order()) == RejectedFrame(-32602, "no")


@pytest.mark.parametrize(
    ("frame", "expected"),
    [(b'{"jsonrpc":"2.0","id":1}', "neither a result nor an error"), (b"{", "not valid JSON"),
     (b'{"jsonrpc":"2.0","id":1,"error":{"code":"x"}}', "is not a JSON-RPC error")],
)  # fmt: skip
def test_a_frame_that_is_not_a_response_is_an_error(frame: bytes, expected: str) -> None:
    with pytest.raises(WireError, match=expected):
        process_frame(frame, order())


def test_an_input_required_result_in_a_large_message_is_an_error() -> None:
    complete = b'{"id":1,"result":{"resultType":"complete","content":[]}}'
    assert isinstance(process_frame(complete, order()), ProcessedResult)
    with pytest.raises(WireError, match="too large for an input-required result"):
        read_result_members(b'{"id":1,"result":{"resultType":"input_required","inputRequests":{}}}')


@pytest.mark.parametrize("mode", ["auto", "never"])
@pytest.mark.parametrize("result", [{"content": text("ok")}, {"content": text("wrong"), "isError": True}])
def test_hidden_results_are_stored_for_all_capture_rules(result: dict[str, Any], mode: CaptureMode) -> None:
    rules = CaptureRules(mode, inline_budget=20, error_budget=20, is_wrapped=False)
    digest = process_result(members(**result), order(rules=rules).path_only())
    assert digest.captured.value is not None
    assert (digest.notice, digest.captured.passed) == (f"{BASE}\n", ())


IFC = {"integrity": "trusted"}


@pytest.mark.parametrize("value", [{"content": text("ok")}, {"content": [], "structuredContent": {"a": 1}}])
def test_labels_of_a_result_are_read_here_or_in_a_worker(value: dict[str, Any]) -> None:
    digest = process_result(members(**value, _meta={"ifc": IFC}), order())
    assert digest.ifc == IFC
    elsewhere = msgspec.structs.replace(digest, members={})  # as where a process of its own has read it
    assert elsewhere.ifc == (IFC if digest.captured.value else None)
