"""Spans of a JSON text agree with a JSON parser."""

import gc
import json
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import msgspec
import pytest
from computing import least_seconds
from hypothesis import example, given
from hypothesis import strategies as st
from samples import sample

from mcp_mirror.paths import parse_path
from mcp_mirror.payload.json_spans import (
    Miss,
    are_equal,
    count_items,
    item,
    items,
    items_at,
    kind_at,
    locate,
    members,
    members_with_offsets,
    read_keys,
    slice_members,
    spans_by_key,
    strings_at,
    trim,
    value_stop,
)
from mcp_mirror.payload.json_strings import may_be_json, text_end, text_parts, text_pieces, text_start
from mcp_mirror.types import Member, Span

SPACE = st.sampled_from([b"", b"", b" ", b"\n\t \r"])
SCALARS = st.sampled_from(
    [
        *(b"1", b"-0", b"1.0", b"1e400", b"12345678901234567890123", b"true", b"false", b"null", b'""', b'"a"'),
        *(b'"\\u0061\\n\\\\"', b'"[{,}]:\\""', b'"\xc3\xa9\xf0\x9f\x98\x80"', b'"\\\\"', b'"\\ud83d\\ude00"'),
    ]
)
KEYS = st.sampled_from(
    [b'"a"', b'"\\u0061"', b'""', b'"b/c~d"', b'"0"', b'"\xc3\xa9"', b'"\\"}"', b'"\\\\"', b'"long key"']
)


@st.composite
def spaced(draw: st.DrawFn, inner: st.SearchStrategy[bytes]) -> bytes:
    return draw(SPACE) + draw(inner) + draw(SPACE)


def containers(inner: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    pair = st.tuples(spaced(KEYS), spaced(inner)).map(b":".join)
    arrays = st.lists(spaced(inner), max_size=5).map(lambda parts: b"[" + b",".join(parts) + b"]")
    objects = st.lists(pair, max_size=5).map(lambda parts: b"{" + b",".join(parts) + b"}")
    return (
        arrays | objects | SPACE.map(lambda space: b"[" + space + b"]") | SPACE.map(lambda space: b"{" + space + b"}")
    )


VALUES = st.recursive(SCALARS, containers, max_leaves=25)
TEXTS = spaced(VALUES)
FORMS = st.sampled_from([bytes, memoryview])
KINDS = {
    dict: "object",
    list: "array",
    str: "text",
    bool: "boolean",
    int: "number",
    float: "number",
    type(None): "null",
}


def parse(text: Any) -> Any:
    return json.loads(bytes(text), parse_float=str)


def walk(blob: Any, span: Span, value: Any) -> None:
    """Every function agrees with the parser about the value at `span`, and about what is below it."""
    assert parse(blob[span.start : span.stop]) == value
    assert value_stop(blob, span.start, len(blob)) == span.stop
    if isinstance(value, dict):
        found = members(blob, span)
        assert [member.key for member in found] == list(value)
        for member in found:
            walk(blob, member.span, value[member.key])
    elif isinstance(value, list):
        found_items = list(items(blob, span))
        assert len(found_items) == len(value) == count_items(blob, span) == item(blob, span, len(value))
        for index, below in enumerate(found_items):
            assert item(blob, span, index) == below
            walk(blob, below, value[index])


@given(TEXTS, FORMS)
def test_sliced_members_are_those_at_their_spans(text: bytes, form: Any) -> None:
    blob, whole = form(text), trim(text)
    if kind_at(text, whole.start) == "object":
        sliced = [(key, bytes(value)) for key, value in slice_members(blob).items()]
        assert [*read_keys(blob)] == [key for key, _ in sliced]
        assert sliced == [(key, text[span.start : span.stop]) for key, span in members(blob, whole)]


def test_the_keys_of_an_object_with_a_very_deep_value_are_read() -> None:
    blob = b'{"a":' + b"[" * 9_000 + b"]" * 9_000 + b',"b":1}'
    assert [*read_keys(blob)] == [*slice_members(blob)] == ["a", "b"]


@given(TEXTS, FORMS)
@example(b'{"a":1,"a":[2],"b":0,"\\u0061":{"a":3}}', memoryview)
def test_spans_agree_with_a_parser(text: bytes, form: Any) -> None:
    blob, value = form(text), parse(text)
    span = trim(blob)
    assert bytes(blob[span.start : span.stop]) == text.strip()
    assert kind_at(blob, span.start) == KINDS[type(json.loads(text))]
    walk(blob, span, value)


@pytest.mark.parametrize("size", [0, 1, 1 << 16, 3 << 16])
def test_buffers_are_equal_if_all_their_bytes_are(size: int) -> None:
    blob = bytes(range(256)) * (size // 256) + bytes(size % 256)
    assert are_equal(blob, memoryview(bytearray(blob)))
    assert not are_equal(blob, b"%b " % blob)
    for at in {0, size // 2, size - 1} if size else ():
        changed = bytearray(blob)
        changed[at] ^= 1
        assert not are_equal(blob, bytes(changed))


def test_the_garbage_collector_does_not_visit_an_index_of_members() -> None:
    text = json.dumps({str(number): number for number in range(10)}).encode()
    for member in members(text, trim(text)):
        assert not gc.is_tracked(member)
        assert not gc.is_tracked(member.span)


@given(TEXTS)
def test_the_parser_and_the_scan_find_the_same_members(text: bytes) -> None:
    whole = trim(text)
    if kind_at(text, whole.start) == "object":
        scanned = spans_by_key(member for _, member in members_with_offsets(text, whole))
        assert {member.key: member.span for member in members(text, whole)} == scanned


def pointers(value: Any, at: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [(at, value), *(found for key, part in below for found in pointers(part, (*at, str(key))))]


@given(TEXTS)
def test_every_pointer_finds_the_same_value_as_a_parser(text: bytes) -> None:
    trimmed = trim(text)
    for tokens, value in pointers(parse(text)):
        for span in (None, trimmed):
            found = locate(text, tokens, span)
            assert isinstance(found, Span)
            assert parse(text[found.start : found.stop]) == value


@given(TEXTS, st.lists(st.sampled_from(["a", "", "0", "1", "00", "-", "-1", "9" * 30, "\u00b2", "b/c~d"]), max_size=4))
def test_a_failed_pointer_reports_the_keys_that_exist(text: bytes, tokens: list[str]) -> None:
    here = parse(text)
    for depth, token in enumerate(tokens):
        if isinstance(here, dict) and token in here:
            here = here[token]
        elif isinstance(here, list) and token in map(str, range(len(here))):
            here = here[int(token)]
        else:
            is_object, is_array = isinstance(here, dict), isinstance(here, list)
            found = locate(text, tuple(tokens))
            assert isinstance(found, Miss)
            assert (found.depth, found.keys) == (depth, tuple(here) if is_object else ())
            assert found.length == (len(here) if is_object or is_array else 0)
            assert (found.kind == "object", found.kind == "array") == (is_object, is_array)
            return
    assert isinstance(locate(text, tuple(tokens)), Span)


@pytest.mark.parametrize(
    ("pointer", "value"),
    [("/b~1c~0d", 1), ("/", 2), ("//0", None), ("/~01", 3), ("/0/0", 4), ("/0/00", None), ("", None), ("/x/y", None)],
)
def test_pointer_escapes_are_those_of_rfc_6901(pointer: str, value: int | None) -> None:
    blob = b'{"b/c~d":1,"":2,"~1":3,"0":[4]}'
    path = parse_path(f"t-123e4567-e89b-42d3-a456-426614174000{pointer}")
    assert path is not None
    found = locate(blob, path.tokens)
    if pointer == "":
        assert found == Span(0, len(blob))
    elif value is None:
        assert isinstance(found, Miss)
    else:
        assert isinstance(found, Span)
        assert json.loads(blob[found.start : found.stop]) == value


FLAT = st.lists(st.sampled_from([b"1", b"1.25", b'"a,]"', b"null", b'"\\""']), min_size=1, max_size=9)


@pytest.mark.parametrize("repeat", [1, 7, 63, 64, 65, 640])
@given(run=FLAT, last=st.sampled_from([b"7", b"[8]", b'{"a":[]}', b'"z"']), gap=SPACE)
def test_long_runs_of_scalars_are_skipped_to_the_right_item(
    repeat: int, run: list[bytes], last: bytes, gap: bytes
) -> None:
    parts = [*(run * repeat), last, *run, b"{}"]
    blob = b"[" + (gap + b",").join(parts) + b"]"
    span = Span(0, len(blob))
    assert count_items(blob, span) == item(blob, span, 10**6) == len(parts)
    for index in {0, len(run) * repeat - 1, len(run) * repeat, len(parts) - 1}:
        found = item(blob, span, index)
        assert isinstance(found, Span)
        assert blob[found.start : found.stop] == parts[index]


@given(TEXTS.filter(lambda text: text.strip()[:1] == b"["), st.data())
def test_items_at_offsets_contain_the_offsets(text: bytes, data: st.DataObject) -> None:
    trimmed = trim(text)
    every = list(enumerate(items(text, trimmed)))
    chosen = [pair for pair in every if data.draw(st.booleans())]
    offsets = [data.draw(st.integers(span.start, span.stop - 1)) for _, span in chosen for _ in range(2)]
    assert list(items_at(text, trimmed, sorted(offsets))) == chosen


def test_items_are_found_by_offset_among_very_many() -> None:
    blob = json.dumps([f"text, [{n}]" if n % 3 else n for n in range(20_000)]).encode()
    offset = blob.index(b"[19999]")
    ((index, span),) = items_at(blob, Span(0, len(blob)), [offset])
    assert (index, blob[span.start : span.stop]) == (19_999, b'"text, [19999]"')


PIECES = [
    '"' + "x" * 3_000_000 + '"',
    '"' + "x" * (1 << 18) + '\\" "',
    '"' + "line\\n" * 700_000 + '"',
    '"' + "\\\\" * 1_100_000 + '"',
    '{"a":"' + "x" * 2_000_000 + '","b":[1,[2,{"c":"' + "[" * 1_500_000 + '"}]]}',
    "[" + "[1,[2,[3]]]," * 200_000 + "4]",
    "[" + '{"a":1,"b":[2]},' * 150_000 + "4]",
    "[" + "1234567," * 300_000 + "4]",
    "[" * 200_000 + "]" * 200_000,
]


@pytest.mark.parametrize("text", sample(PIECES, PIECES[::2].__contains__))
def test_values_longer_than_a_piece_are_measured(text: str) -> None:
    for blob in (text.encode(), memoryview(f" {text} ,1".encode())):
        start = int(blob[0] == ord(" "))
        assert value_stop(blob, start, len(blob)) == start + len(text)
        for missing in (1, 2, len(text) // 2):
            with pytest.raises(ValueError, match="not JSON"):
                value_stop(blob, start, start + len(text) - missing)


def test_a_long_text_in_deep_containers_is_found() -> None:
    text = "x" * 600_000
    blob = b'{"a":' * 40 + b'["%b",1]' % text.encode() + b"}" * 40
    span = locate(blob, ("a",) * 40 + (0,))
    assert isinstance(span, Span)
    assert blob[span.start : span.stop] == b'"%b"' % text.encode()
    ((found, location),) = strings_at(blob, [blob.index(b"x" * 9)])
    assert (found, location) == (span, ("a",) * 40 + (0,))


@pytest.mark.parametrize("before", range((1 << 18) - 12, (1 << 18) + 2))
def test_a_text_with_an_escape_at_the_end_of_a_piece_is_measured(before: int) -> None:
    blob = json.dumps("x" * before + '\\"\n' + "x" * 20).encode()
    assert value_stop(blob, 0, len(blob)) == len(blob)
    inside = b'{"a":' + blob + b"}"
    assert value_stop(inside, 0, len(inside)) == len(inside)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b'"{\\"a\\": 1}"', True),
        (b'" \\n[1"', True),
        (b'"about {"', False),
        (b'"{\x01"', False),
        (b'"{\\q"', False),
    ],
)
def test_a_string_that_may_contain_json_begins_as_json_does(text: bytes, *, expected: bool) -> None:
    assert may_be_json(text, Span(0, len(text))) is expected


@pytest.mark.parametrize("depth", [900, 100_000])
@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_nesting_of_any_depth_is_measured_without_recursion(depth: int, opening: bytes, closing: bytes) -> None:
    blob = opening * depth + b"1" + closing * depth
    span = Span(0, len(blob))
    assert value_stop(blob, 0, len(blob)) == len(blob)
    inner = Span(len(opening), len(blob) - len(opening) - 1)
    if opening == b"[":
        assert count_items(blob, span) == 1
        assert list(items(blob, span)) == [inner]
    else:
        assert members(blob, span) == (Member("a", inner),)


def wrap(inner: Any, levels: Sequence[str]) -> Any:
    """The value below containers, each with another large member or item; an empty level is an array."""
    for key in reversed(levels):
        inner = [["x" * 5000], inner, 1] if not key else {"large": ["x" * 5000], key: inner, "after": [[[1]]]}
    return inner


@given(VALUES, st.lists(st.sampled_from(["", "a", "b~/"]), min_size=12, max_size=24))
def test_deep_values_are_found(inner: bytes, levels: list[str]) -> None:
    text = json.dumps(wrap(["marked", None], levels)).encode().replace(b"null", inner, 1)
    way = tuple(key or "1" for key in levels)
    found = locate(text, (*way, "1"))
    assert isinstance(found, Span)
    assert text[found.start : found.stop] == inner
    assert locate(text, (*way, "2")) == Miss(len(way), "array", length=2)
    assert locate(text, (*way, "0", "x")) == Miss(len(way) + 1, "text")
    ((span, at),) = strings_at(text, [text.index(b'"marked"')])
    assert (text[span.start : span.stop], at) == (b'"marked"', (*(key or 1 for key in levels), 0))


def test_a_repeated_deep_key_has_its_last_value() -> None:
    text = b"[" * 20 + b'{"a":["first"],"a":["last"]}' + b"]" * 20
    assert [
        text[span.start : span.stop] for span, _ in strings_at(text, [text.index(b"first"), text.index(b"last")])
    ] == [b'"last"']
    found = locate(text, (*["0"] * 20, "a", "0"))
    assert isinstance(found, Span)
    assert text[found.start : found.stop] == b'"last"'


@pytest.mark.timeout(20)
@pytest.mark.parametrize(("opening", "closing", "token"), [(b"[", b"]", "0"), (b'{"a":', b"}", "a")])
def test_deep_text_is_searched_in_linear_time(opening: bytes, closing: bytes, token: str) -> None:
    inner = json.dumps({"path": "here", "rows": [[["x"]]] * 150_000}).encode()
    text = opening * 690 + inner + closing * 690
    ((span, at),) = strings_at(text, [text.index(b"here")])
    assert (text[span.start : span.stop], len(at)) == (b'"here"', 691)
    assert locate(text, (*[token] * 690, "path")) == span


def test_a_key_of_a_large_object_is_found_without_a_step_for_each() -> None:
    count = 100_000
    text = json.dumps({f"key {number}": number for number in range(count)}).encode()
    expected = b"%d" % (count - 1)
    found = locate(text, (f"key {count - 1}",))
    assert least_seconds(lambda: locate(text, (f"key {count - 1}",))) < 3 * least_seconds(lambda: json.loads(text))
    assert isinstance(found, Span)
    assert text[found.start : found.stop] == expected


@pytest.mark.alone
@pytest.mark.timeout(20)
def test_many_deep_containers_are_searched_in_linear_time() -> None:
    deep = b'{"a":' * 690 + b'"here"' + b"}" * 690
    text = b"[" + b",".join([deep] * 200) + b"]"
    starts = [text.index(b"here", at * (len(deep) + 1)) for at in range(200)]
    found = dict(strings_at(text, starts))
    assert {span.start + 1: (at[0], len(at)) for span, at in found.items()} == {
        start: (number, 691) for number, start in enumerate(starts)
    }
    assert locate(text, ("199", *["a"] * 690)) == Span(starts[-1] - 1, 6)


def test_a_repeated_key_of_a_large_object_has_its_last_value() -> None:
    pad = b'"' + b"x" * 100_000 + b'"'
    blob = b'{"a":1,"pad":' + pad + b',"a":2}'
    assert [(one.key, blob[one.span.start : one.span.stop]) for one in members(blob, trim(blob))] == [
        ("a", b"2"),
        ("pad", pad),
    ]
    number = b'{"a":12,"b":3,"pad":' + pad + b',"a":1}'
    assert [number[one.span.start : one.span.stop] for one in members(number, trim(number))] == [b"1", b"3", pad]
    crafted = b'{"a":1,"b":10,"a":{"pad":' + pad + b',"b":      1}}'  # tiled by the lengths of its last values
    assert [one.span.start for one in members(crafted, trim(crafted))] == [18, 11]
    last = b'{"pad":' + pad + b',"pad":3}'
    assert [last[one.span.start : one.span.stop] for one in members(last, trim(last))] == [b"3"]


@pytest.mark.parametrize("blob", [b'{"a:1}', b'{"a":}', b'"abc', b"[1,[[[2]]]", b"[1"])
def test_invalid_json_is_an_error(blob: bytes) -> None:
    with pytest.raises(ValueError, match="JSON"):
        list(members(blob, Span(0, len(blob)))) if blob[:1] == b"{" else value_stop(blob, 0, len(blob))


TEXT = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from(list('"\\\n\u00e9\U0001f600')), max_size=40)


@given(TEXT, st.integers(0, 60), st.booleans())
def test_a_text_is_never_cut_within_a_character(
    text: str,
    limit: int,
    ascii_only: bool,  # noqa: FBT001
) -> None:
    blob = b" " + json.dumps(text, ensure_ascii=ascii_only).encode() + b" "
    start = text_start(blob, trim(blob), limit)
    assert text.startswith(start)
    assert len(blob[1:-1]) > limit or start == text
    assert len(start) >= min(len(text), (limit - 13) // 12)
    start.encode()
    end = text_end(blob, trim(blob), limit + 2)
    assert text.endswith(end)
    assert len(blob[1:-1]) > limit + 2 or end == text


# A string's text in pieces.


@given(st.text(max_size=80), st.booleans(), st.integers(12, 60))
def test_the_pieces_of_a_text_join_to_the_text(text: str, escaped: bool, size: int) -> None:  # noqa: FBT001
    literal = b" " + json.dumps(text, ensure_ascii=escaped).encode()
    pieces = list(text_pieces(literal, trim(literal), size))
    assert b"".join(pieces) == text.encode()
    assert all(len(piece) <= 2 * size + 12 for piece in pieces)


def test_a_surrogate_pair_is_never_cut() -> None:
    literal = json.dumps("\U0001f600" * 50).encode()
    for size in range(12, 40):
        assert b"".join(text_pieces(literal, trim(literal), size)).decode() == "\U0001f600" * 50


UNITS = st.sampled_from(
    [r"\\", r"\n", r"\"", r"\/", r"\u00e9", r"\u005c", r"\ud83d\ude00", r"\uDBFF\uDFFF", "é", "😀", "u", "d", "8", "a"]
)


@given(st.lists(UNITS, max_size=60), st.integers(12, 40), st.integers(1, 5))
def test_a_text_is_cut_between_the_encodings_of_characters(units: list[str], size: int, run: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("mcp_mirror.payload.json_strings._RUN", run)
        raws = [unit.encode() for unit in units]
        literal = b'"%b"' % b"".join(raws)
        parts = list(text_parts(literal, trim(literal), size))
    places = set(accumulate(map(len, raws), initial=1))
    assert {place for part in parts for place in part} <= places
    assert b"".join(literal[start:stop] for start, stop in parts) == literal[1:-1]
    assert all(size - 12 < stop - start <= size for start, stop in parts[:-1])


def test_a_long_run_of_backslashes_is_cut_between_escapes() -> None:
    literal = json.dumps("\\" * (1 << 19)).encode()
    parts = list(text_parts(literal, trim(literal), 1 << 10))
    assert [stop % 2 for _, stop in parts] == [1] * len(parts)


def test_half_a_surrogate_pair_is_an_error() -> None:
    literal = b'"a\\ud800b"'
    with pytest.raises(msgspec.DecodeError):
        list(text_pieces(literal, trim(literal)))


def test_a_miss_in_an_object_of_long_keys_has_fewer_of_them() -> None:
    keys = [f"{number}{'k' * 300_000}" for number in range(9)]
    missed = locate(json.dumps(dict.fromkeys(keys, 1)).encode(), ("none",))
    assert isinstance(missed, Miss)
    assert (missed.keys, missed.length) == (tuple(keys[:3]), 9)


def test_a_miss_in_an_object_of_many_keys_has_the_first_of_them() -> None:
    text = json.dumps({f"k{index}": index for index in range(5000)}).encode()
    missed = locate(text, ("k5000",))
    assert isinstance(missed, Miss)
    assert missed.length == 5000
    assert missed.keys == tuple(f"k{index}" for index in range(2000))
