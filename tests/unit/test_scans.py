"""Large JSON texts are scanned once: in pieces, with the same outcome as a parse of the whole text."""

import json
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import sample

from mcp_mirror.core.results.capture import CaptureRules
from mcp_mirror.core.results.processing import (
    ProcessedResult,
    ProcessingOptions,
    process_frame,
    process_result,
    read_result_members,
)
from mcp_mirror.errors import WireError
from mcp_mirror.paths import FixedBases
from mcp_mirror.payload.json_spans import count_items, members, trim
from mcp_mirror.payload.scans import ArrayScan, Scans, scan_array, scan_text
from mcp_mirror.types import Buffer, Span

MB = 1_000_000
BASE, BESIDE = "rows-0b8f8d2e-6a55-4b8e-9d0a-0f3b2f6f6a11", "rows-1c9f8d2e-6a55-4b8e-9d0a-0f3b2f6f6a11"
RULES = CaptureRules("auto", inline_budget=20, error_budget=20, is_wrapped=False)
ORDER = ProcessingOptions(RULES, "compact", "rows", b"{}", FixedBases(BASE, BESIDE), max_key_bytes=100)


@cache
def rows(size: int = 2 * MB) -> list[Any]:
    return [{"id": at, "name": f"user {at}", "score": at / 7} for at in range(size // 50)]


SHAPES: dict[str, Callable[[], list[Any]]] = {
    "objects": rows,
    "objects with the separator inside": lambda: [
        {"id": at, "below": [{"id": n, "none": []} for n in range(at % 4)], "text": '},{"id"'} for at in range(30_000)
    ],
    "arrays": lambda: [[[at / 7] * 50, []] for at in range(3_000)],
    "large items": lambda: [[[at] * 200_000] for at in range(9)],
    "an item of many separators": lambda: [[1], [2], [[at] for at in range(50_000)], [3], *([at] for at in range(9))],
    "numbers": lambda: [at / 7 for at in range(100_000)],
    "texts": lambda: [f'line, {at} "x","y" \\' for at in range(80_000)],
    "texts beyond ASCII": lambda: [f"größe {at} 😀" for at in range(80_000)],
    "mixed": lambda: [[at, {"a": at}, "x,", None][at % 4] for at in range(250_000)],
    "a first item without the separator": lambda: [1, *rows()],
    "few objects": lambda: [{"id": 1}],
    "nothing": list,
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("indent", sample([None, 1], lambda indent: indent is None))
def test_a_scanned_array_has_its_length_and_finds_its_items(name: str, indent: int | None) -> None:
    values = SHAPES[name]()
    text = b'{"a":1,"b": ' + json.dumps(values, indent=indent, ensure_ascii=False).encode() + b', "c": [[[1]]]}'
    start = text.index(b"[")
    scan = scan_array(text, start)
    assert scan is not None
    assert scan.length == len(values) == scan.find_item(text, len(values))
    assert json.loads(text[start : scan.span.stop]) == values
    for index in {0, 1, len(values) // 3, len(values) - 2, len(values) - 1} & set(range(len(values))):
        found = scan.find_item(text, index)
        assert isinstance(found, Span)
        assert json.loads(text[found.start : found.stop]) == values[index]


def test_the_marks_of_a_scanned_array_are_close_and_few() -> None:
    text = json.dumps(rows(20 * MB)).encode()
    scan = scan_array(text, 0)
    assert scan is not None
    steps = [two - one for one, two in zip(scan.offsets, [*scan.offsets[1:], len(text)], strict=True)]
    assert max(steps) <= MB
    assert len(steps) <= len(text) / 100_000


def test_a_scan_asks_before_each_piece_whether_it_may_continue() -> None:
    class StoppedError(Exception):
        pass

    checks: list[int] = []

    def check() -> None:
        checks.append(1)
        if len(checks) == 3:
            raise StoppedError

    with pytest.raises(StoppedError):
        scan_array(json.dumps(rows()).encode(), 0, check=check)


@pytest.mark.parametrize(
    "text",
    [
        b"[", b"[1", b"[1,", b"[1,]", b"[1 2]", b"[1;2]", b"[01]", b'["a]', b'["\\q"]', b"[{]}", b"[[1]",
        b"[[1]}", b"[nul]",
        b"[" * 300_000 + b"]" * 300_000, b'["\xff"]', b'["\xff", "\xff"]', b"[" + b"[1]," * 300_000 + b"[1}]",
        b"[" + b"[1]," * 300_000, b"[" + b"[1]," * 300_000 + b"]", b"[" + b'"\xe4",' * 300_000 + b"1]",
        b"[" + b"1," * 300_000 + b"-]", b"[" + b'[1],{"a":2},' * 1000 + b'"' + b"x" * 100_000,
    ],
)  # fmt: skip
def test_an_invalid_array_has_no_scan(text: bytes) -> None:
    assert scan_array(text, 0) is None


def test_an_array_whose_items_have_nothing_in_common_has_no_scan() -> None:
    values = [[1], *([at, str(at), None][at % 3] for at in range(3_000)), [2]]
    assert scan_array(json.dumps(values).encode(), 0) is None


@pytest.mark.parametrize("text", [b"1", b"{}", b"]" + b" " * MB, b'{"a":[],"b":{}}', b'{"a": ' + b" " * MB + b"[]}"])
def test_a_text_without_a_large_part_has_no_scan(text: bytes) -> None:
    assert scan_text(text) is None


@cache
def long_array() -> str:
    return json.dumps(rows())


ONE_TEXT = '{"content":[{"type":"text","text":@}]}'
PARTS: dict[str, tuple[str, Callable[[], str]]] = {
    "rows": ('{"structuredContent":{"rows":@,"total":1,"more":[1,2]}}', long_array),
    "rows after others": (
        '{"content":[],"structuredContent":{"total":{"a":[1]},"rows":@}, "isError": false}', long_array
    ),
    "rows before another member": ('{"structuredContent":{"rows": @},"_meta":{"a":1}}', long_array),
    "a wrapped array": ('{"content":[],"structuredContent":{"result":@}}', long_array),
    "a wrapped array and a text": (
        '{"content":[{"type":"text","text":"x"}],"structuredContent":{"result":@}}', long_array
    ),
    "a key that occurs twice": ('{"structuredContent":{"a":1,"rows":@,"a":2}}', long_array),
    "rows that occur twice": ('{"structuredContent":{"rows":@,"rows":[]}}', long_array),
    "an escaped key": ('{"structuredContent":{"\\u0072ows \\"":@}}', long_array),
    "two large arrays": ('{"structuredContent":{"one":@,"two":@}}', long_array),
    "content blocks": ('{"content":[@]}', lambda: ",".join(['{"type":"text","text":"a line"}'] * 60_000)),
    "a resource": (
        '{"content":[{"type":"resource","resource":{"uri":"file:///a","text":@}}]}', lambda: json.dumps(long_array())
    ),
    "JSON in a text": (ONE_TEXT, lambda: json.dumps(json.dumps({"rows": rows(), "n": 1}))),
    "an array in a text": (ONE_TEXT, lambda: json.dumps(long_array())),
    "an error": ('{"content":[{"type":"text","text":@}],"isError":true}', lambda: json.dumps('"quoted"\n' * 200_000)),
    "a text before its type": (
        '{"content":[ {"text": @ , "type":"text"} ] }', lambda: json.dumps("a line\n" * 200_000)
    ),
    "a text with annotations": (
        '{"content":[{"type":"text","text":@,"annotations":{"a":"b"}}]}', lambda: json.dumps("x" * 2 * MB)
    ),
    "two texts": ('{"content":[{"type":"text","text":@},{"type":"text","text":"b"}]}', lambda: json.dumps("y, z" * MB)),
    "a text with a backslash at its end": (ONE_TEXT, lambda: json.dumps("x" * 2 * MB + "\\")),
    "a text beyond ASCII": (ONE_TEXT, lambda: json.dumps("größe😀" * MB, ensure_ascii=False)),
    "text and the same rows": (
        '{"content":[{"type":"text","text":@}],"structuredContent":{"result":[1]}}', lambda: json.dumps(long_array())
    ),
    "JSON text that breaks off": (ONE_TEXT, lambda: json.dumps(long_array()[:-1])),
    "a text without an end": (ONE_TEXT.replace("}]}", '},"'), lambda: json.dumps("x" * 2 * MB)),
}  # fmt: skip


@cache
def frame_of(name: str) -> bytes:
    template, build = PARTS[name]
    return f'{{"jsonrpc":"2.0","id":1,"result":{template.replace("@", build())}}}'.encode()


def process_plainly(frame: bytes, order: ProcessingOptions = ORDER) -> ProcessedResult:
    found = read_result_members(frame)
    assert isinstance(found, dict)
    return process_result(found, order, scans=PlainParses())


class PlainParses(Scans):
    """Parses every text as a whole."""

    def scan(self, text: Any, has_text: Any = None) -> None:
        del text, has_text


def freeze(result: ProcessedResult) -> ProcessedResult:
    """The same result with bytes in place of views, and without the index, which only a scan has."""
    captured = result.captured
    drafts = [
        draft and msgspec.structs.replace(draft, blob=bytes(draft.blob), array=None)
        for draft in (captured.value, captured.companion)
    ]
    captured = msgspec.structs.replace(
        captured, value=drafts[0], companion=drafts[1], passed=tuple(map(bytes, captured.passed))
    )
    return msgspec.structs.replace(
        result, members={key: bytes(raw) for key, raw in result.members.items()}, captured=captured
    )


WITH_AN_END = sorted(PARTS.keys() - {"a text without an end"})


@pytest.mark.parametrize("name", sample(WITH_AN_END, WITH_AN_END[::2].__contains__))
def test_a_scanned_frame_has_the_result_of_a_parsed_one(name: str) -> None:
    frame = frame_of(name)
    scanned = process_frame(memoryview(frame), ORDER)
    assert isinstance(scanned, ProcessedResult)
    assert freeze(scanned) == freeze(process_plainly(frame))


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("rows", "rows"),
        ("JSON in a text", "rows"),
        ("a wrapped array", "result"),
        ("an array in a text", ""),
        ("an error", None),
    ],
)
def test_a_captured_value_has_the_index_of_its_large_array(name: str, key: str | None) -> None:
    processed = process_frame(frame_of(name), ORDER)
    assert isinstance(processed, ProcessedResult)
    value = processed.captured.value
    assert value is not None
    if key is None:
        assert value.array is None
        return
    assert value.array is not None
    assert value.array.length == len(rows())
    spans = {one.key: one.span for one in value.members} | {"": trim(value.blob)}
    assert value.array.span == spans[key]
    for index, offset in zip(value.array.indices, value.array.offsets, strict=True):
        start = value.array.span.start + offset
        assert bytes(value.blob[start : start + 20]).startswith(f'{{"id": {index},'.encode())


@pytest.mark.slow
def test_a_stored_index_has_at_most_a_thousand_marks() -> None:
    scan = scan_array(b"[" + b",".join([b'"%b"' % (b"x" * 1000)] * 300_000) + b"]", 0)
    assert scan is not None
    stored = scan.as_index()
    assert len(stored.indices) == len(stored.offsets) <= 1024 < len(scan.offsets)
    assert stored.indices[0] == 0


HEAD = b'{"jsonrpc":"2.0","id":1,'
OTHER_FRAMES: dict[str, Callable[[], bytes]] = {
    "rows that break off": lambda: frame_of("rows")[:-2],
    "an invalid member": lambda: frame_of("rows").replace(b'"total":1', b'"total":x'),
    "rows that are not UTF-8": lambda: frame_of("rows").replace(b"user 30000", b"user \xff"),
    "an invalid flag": lambda: frame_of("an error").replace(b'"isError":true', b'"isError":"\xff"'),
    "an invalid escape": lambda: frame_of("an error").replace(b"quoted", b"\\q", 1),
    "a text that is not UTF-8": lambda: frame_of("an error").replace(b"quoted", b"\xff", 1),
    "a text that breaks off": lambda: frame_of("an error")[:-1],
    "a text without an end": lambda: frame_of("a text without an end"),
    "a notification": lambda: HEAD + b'"params":{"rows":%b}}',
    "parameters and a result": lambda: HEAD + b'"params":{"rows":%b},"result":{"a":"b"}}',
    "an error response": lambda: HEAD + b'"error":{"code":1,"message":"x","data":%b}}',
    "an error and a result": lambda: HEAD + b'"error":{"code":1,"message":"x"},"result":{"rows":%b}}',
    "a result and an error": lambda: HEAD + b'"result":{"rows":%b},"error":{"code":1,"message":"x"}}',
    "an unknown member": lambda: HEAD + b'"rows":%b}',
    "an array as the result": lambda: HEAD + b'"result":%b}',
    "an input request": lambda: HEAD + b'"result":{"resultType":"input_required","rows":%b}}',
}


@pytest.mark.parametrize("name", OTHER_FRAMES)
def test_any_other_scanned_frame_has_the_outcome_of_a_parsed_one(name: str) -> None:
    frame = OTHER_FRAMES[name]().replace(b"%b", long_array().encode())

    def outcome(scans: Scans | None) -> object:
        try:
            found = read_result_members(frame, scans=scans)
        except WireError as error:
            return str(error)
        return {key: bytes(raw) for key, raw in found.items()} if isinstance(found, dict) else found

    assert outcome(Scans()) == outcome(None)


@given(st.lists(st.sampled_from([b"[", b"]", b"{", b"}", b'"', b"\\", b",", b":", b"1", b'"a":', b" "])).map(b"".join))
def test_a_scan_of_any_text_agrees_with_its_parse(text: bytes) -> None:
    scan = scan_array(b"[" + text, 0)
    try:
        known: Sequence[Any] | None = json.JSONDecoder().raw_decode(f"[{text.decode()}")[0]
    except ValueError:
        known = None
    assert (scan and scan.length) == (None if known is None else len(known))


@pytest.mark.parametrize("phase", range(0, 60, 6))
def test_a_small_string_at_the_end_of_the_head_does_not_hide_its_array(phase: int) -> None:
    text = b'{"a":"%b","rows":%b}' % (b"." * phase, long_array().encode())
    scan = scan_text(text)
    assert scan is not None
    assert scan.array is not None
    assert scan.array.length == len(rows())


UNITS = (
    *(
        b"a",
        b"some text, ",
        b"\\n",
        b"\\\\",
        b'\\"',
        b"\\u00e9",
        b"\\\\u0041",
        b"\\ud83d\\ude00",
        b"\\ud83d",
        b"\\ude00",
    ),
    *("é".encode(), "€".encode(), "😀".encode()),
)
BROKEN_UNITS = (
    *(b"\x80", b"\xff", b"\xe4", b"\xf0\x9f\x98", b"\xed\xa0\x80", b"\xc0\x80", b"\\q", b"\\u12", b"\n", b"\x00"),
    *(b'"', b"\\"),
)


@given(st.lists(st.sampled_from(UNITS), min_size=1), st.integers(0, 12), st.sampled_from((b"", *BROKEN_UNITS)))
def test_a_scan_of_any_string_agrees_with_its_parse(units: list[bytes], phase: int, broken: bytes) -> None:
    unit = b"".join(units)
    half = unit * (300_000 // len(unit) + 1)
    literal = b'"%b%b%b%b."' % (b"." * phase, half, broken, half)
    text = b'{"text":%b}' % literal
    scan = scan_text(text)
    try:
        text.decode()
        known = msgspec.json.decode(text, type=dict[str, msgspec.Raw])["text"]
    except (msgspec.DecodeError, UnicodeDecodeError):
        assert scan is None
        return
    assert scan is not None
    assert text[scan.hidden.start : scan.hidden.stop] == bytes(known) == literal


OBJECT = '"structuredContent":{"rows":[]},"content":[{"type":"text","text":@}]'
EMBEDDED = '"content":[{"type":"resource","resource":{"uri":"a:b","text":@}}]'
NEVER = msgspec.structs.replace(ORDER, rules=msgspec.structs.replace(RULES, mode="never"))


@pytest.mark.parametrize(
    ("template", "order", "count"),
    [(ONE_TEXT, ORDER, 1), (ONE_TEXT, NEVER, 0), (OBJECT, ORDER, 0), (EMBEDDED, ORDER, 0)],
)
def test_a_text_is_decoded_once_if_its_value_is_used(template: str, order: ProcessingOptions, count: int) -> None:
    kept: list[bytes] = []

    def keep(pieces: Iterable[Buffer]) -> Buffer:
        kept.append(b"".join(pieces))
        return kept[-1]

    frame = f'{{"jsonrpc":"2.0","id":1,"result":{{{template.strip("{}")}}}}}'.replace("@", json.dumps(long_array()))
    assert isinstance(process_frame(frame.encode(), order, keep), ProcessedResult)
    assert kept == [long_array().encode()] * count


def test_a_scan_of_bytes_that_continue_no_character_ends() -> None:
    assert scan_text(b'{"text":"' + b"\x80" * MB + b'"}') is None


def test_scans_answer_for_values_within_a_scanned_text() -> None:
    text = f'{{"content":[{{"rows":{long_array()},"n":[1,2]}}]}}'.encode()
    scans = Scans()
    opened = scans.open_object(text) or {}
    (block,) = scans.open_array(opened["content"]) or []
    known = scans.members(block, trim(block))
    assert known == members(block, trim(block))
    assert [scans.count_items(block, one.span) for one in known] == [len(rows()), 2]
    assert count_items(block, known[0].span) == len(rows())
    assert scans.is_container(long_array().encode())
    assert scans.open_array(long_array().encode()) is not None
    assert scans.open_array(b"[" + long_array().encode() + b",x]") is None
    assert scans.open_array(b'[{"a":"' + b"x" * 2 * MB + b'"},x]') is None
    assert scans.open_object(b"{" + text + b"}") is None
    assert not scans.is_container(json.dumps("a" * 2 * MB).encode())


def test_a_shifted_scan_finds_the_same_items() -> None:
    text = long_array().encode()
    scan = scan_array(b"  " + text, 2)
    assert isinstance(scan, ArrayScan)
    assert scan.shift(-2) == scan_array(text, 0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *((text, True) for text in ("{}", " [1, [2]]\n", '{"a":{"b":[null]},"a":1}', '["\\ud83d\\ude00é"]')),
        *((text, False) for text in ("", " ", "1", "null", '"[]"', "[1,]", '{"a":1,}', "[01]", '["\\x"]', "[] []")),
        *((text, False) for text in ("{a:1}", "[1", "[" * 300_000 + "]" * 300_000, '{"a" 1}', "[NaN]")),
    ],
)
def test_a_container_is_an_object_or_an_array(text: str, expected: bool) -> None:  # noqa: FBT001
    assert Scans().is_container(text.encode()) is expected
