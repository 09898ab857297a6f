"""Windows of a value by characters, lines, items and keys, within the budget and with the next offset."""

import base64
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_mirror.core.results.outlines import join_lines
from mcp_mirror.errors import ToolError
from mcp_mirror.payload.json_spans import trim
from mcp_mirror.query.indexes import index_text
from mcp_mirror.query.texts import PIECE, TextPiece, count_characters, decode_string, find_text, split_text
from mcp_mirror.query.windows import Budget, Unit, Window
from mcp_mirror.tokens import estimate_tokens

WIDE = Budget(1_000_000, 10_000, estimate_tokens)
NARROW = Budget(1_000_000, 230, estimate_tokens)
"""Thirty characters and the footer."""


def never() -> bool:
    return False


@pytest.mark.parametrize(("blob", "text"), [(b'"a\\u00e9"', "a\u00e9"), (b'"a\\ud800b"', "a?b"), (b'""', "")])
def test_half_of_a_surrogate_pair_in_a_string_becomes_a_question_mark(blob: bytes, text: str) -> None:
    assert decode_string(blob) == text


def read(value: Any, by: Unit | None = None, offset: int = 0, limit: int | None = None, budget: Budget = WIDE) -> str:
    blob = value if isinstance(value, bytes) else json.dumps(value).encode()
    return Window(by, offset, limit, budget, can_query=True)(blob, never)


PRINTED = "text, as Python prints it. Leave `by` out, or query it with the JMESPath expression"
LINES = "one\ntwo\nthree\nfour"
LONG = "x\n" * 600_000
"""Longer than a piece of `split_text`."""


@pytest.mark.parametrize("ascii_only", [True, False])
def test_a_text_longer_than_a_piece_is_decoded(ascii_only: bool) -> None:  # noqa: FBT001
    text = 'ab"\\\n\u00e9\U0001f600' * 150_000
    for size in range(8):
        blob = json.dumps("x" * size + text, ensure_ascii=ascii_only).encode()
        assert decode_string(memoryview(b" " + blob + b" ")) == "x" * size + text
    assert decode_string(b'"' + b"x" * 2_000_000 + b'\\ud800y"') == "x" * 2_000_000 + "?y"


@pytest.mark.parametrize(
    ("value", "arguments", "expected"),
    [
        ("hello", {}, "hello"),
        ("hello", {"offset": 2}, "llo"),
        ("hello", {"offset": 1, "limit": 2}, "el\n... next: by=chars, offset=3"),
        ("hello", {"offset": -2}, "lo"),
        ("hello", {"offset": -99}, "hello"),
        ("hello", {"offset": 5}, "(nothing more)"),
        ({"type": "resource", "resource": {"uri": "u", "text": "hello"}}, {"by": "chars", "offset": 2}, "llo"),
        ({"type": "resource", "resource": {"uri": "u", "text": "x"}}, {"by": "keys", "offset": 2}, "(nothing more)"),
        ("", {}, "(nothing more)"),
        ("h\u00e9\U0001f600llo", {"offset": 1, "limit": 2}, "\u00e9\U0001f600\n... next: by=chars, offset=3"),
        (b'"a\\n\\u00e9\\ud83d\\ude00\\/b"', {"offset": 1}, "\n\u00e9\U0001f600/b"),
        (b'"a\\ud800b"', {}, "a\ufffdb"),
        (1.5, {}, "1.5"),
        (b"1e400", {}, "1e400"),
        (None, {}, "null"),
        ({"a": 1}, {"by": "chars"}, '{"a": 1}'),
        (b' {"a":\n 1} ', {"by": "lines", "offset": 1}, " 1}"),
        (LINES, {"by": "lines", "offset": 1, "limit": 2}, "two\nthree\n... next: by=lines, offset=3"),
        (LINES, {"by": "lines", "offset": -1}, "four"),
        (LINES, {"by": "lines", "offset": -2, "limit": 1}, "three\n... next: by=lines, offset=3"),
        ("a\r\nb\r\nc", {"by": "lines", "limit": 2}, "a\r\nb\r\n... next: by=lines, offset=2; last: offset=-1"),
        ("a\n\nb\n", {"by": "lines"}, "a\n\nb"),
        (
            "a\x0cb\x0b\u2028c\nd",
            {"by": "lines", "offset": -2, "limit": 1},
            "a\x0cb\x0b\u2028c\n... next: by=lines, offset=1",
        ),
        ("a\nb\x85\u2029c", {"by": "lines", "offset": 1}, "b\x85\u2029c"),
        ("", {"by": "lines"}, "(nothing more)"),
        ("a\n", {"by": "lines", "offset": 1}, "(nothing more)"),
        ("a\nb", {"by": "lines", "offset": 2}, "(nothing more)"),
        ([1.0, "x", {"a": [2]}], {}, '0: 1.0\n1: "x"\n2: {"a": [2]}'),
        ([1, 2, 3, 4], {"offset": 1, "limit": 2}, "1: 2\n2: 3\n... next: by=items, offset=3"),
        ([1, 2, 3, 4], {"offset": -1}, "3: 4"),
        ([1, 2], {"offset": 2}, "(nothing more)"),
        ([], {}, "(nothing more)"),
        ({"a/b": 1, "c": "x"}, {}, '"/a~1b": 1\n"/c": "x"'),
        ({"a": 1, "b": 2}, {"offset": -1}, '"/b": 2'),
        ({"a": 1, "b": 2}, {"limit": 1}, '"/a": 1\n... next: by=keys, offset=1; last: offset=-1'),
        ({"a": 1}, {"offset": 1}, "(nothing more)"),
        ({"a": 1, "b": 2}, {"by": "items", "offset": 1}, '"/b": 2'),
        ([1, 2], {"by": "keys", "limit": 1}, "0: 1\n... next: by=items, offset=1; last: offset=-1"),
        (LONG, {"by": "chars", "offset": PIECE - 3, "limit": 6}, "\nx\nx\nx\n... next: by=chars, offset=1048579"),
        (LONG, {"by": "lines", "offset": PIECE // 2 - 1, "limit": 3}, "x\nx\nx\n... next: by=lines, offset=524290"),
    ],
)
def test_a_window_shows_the_requested_part_and_the_next_offset(value: Any, arguments: Any, expected: str) -> None:
    assert read(value, **arguments) == expected


@pytest.mark.parametrize(
    ("value", "arguments", "expected"),
    [
        ("hello", {"offset": 6}, "Offset 6 is past the end: there are 5 characters."),
        ("a\nb", {"by": "lines", "offset": 3}, "Offset 3 is past the end: there are 2 lines."),
        ([1], {"offset": 2}, "Offset 2 is past the end: there is 1 item."),
        ({}, {"offset": 1}, "Offset 1 is past the end: there are 0 keys."),
        ("x", {"by": "items"}, "The value has no items: it is text. Leave `by` out."),
        (
            "[{'id': 1}]",
            {"by": "items"},
            f"The value has no items: it is {PRINTED} [0:10] for ten items.",
        ),
        (
            "{'id': 1}",
            {"by": "keys"},
            f"The value has no keys: it is {PRINTED} keys(@) for its keys.",
        ),
        (
            'One row:\n```json\n{"id": 1, "name": "the first"}\n```',
            {"by": "keys"},
            (
                "The value has no keys: it is text that contains JSON. Leave `by` out, or query it "
                "with the JMESPath expression keys(@) for its keys."
            ),
        ),
        (f"[{' ' * (1 << 20)}]", {"by": "items"}, "The value has no items: it is text. Leave `by` out."),
    ],
)
def test_a_wrong_offset_or_unit_is_refused(value: Any, arguments: Any, expected: str) -> None:
    with pytest.raises(ToolError) as error:
        read(value, **arguments)
    assert str(error.value) == expected


def test_a_client_without_queries_is_not_advised_to_query() -> None:
    with pytest.raises(ToolError) as error:
        Window("items", 0, None, WIDE)(b"\"[{'id': 1}]\"", never)
    assert str(error.value) == "The value has no items: it is text, as Python prints it. Leave `by` out."


def test_a_window_ends_at_its_budget() -> None:
    assert read("x" * 100, budget=NARROW) == f"{'x' * 30}\n... next: by=chars, offset=30; last: offset=-1000"
    lines = "\n".join(["0123456789"] * 50)
    assert read(lines, by="lines", budget=NARROW) == (
        "0123456789\n0123456789\n... next: by=lines, offset=2; last: offset=-1"
    )
    assert read("x" * 100, budget=Budget(96, 10_000, len)).startswith(f"{'x' * 30}\n... next: by=chars, offset=30")
    assert read(["0123456789"] * 5, budget=NARROW) == '0: "0123456789"\n... next: by=items, offset=1; last: offset=-1'


def test_a_line_longer_than_a_window_continues_by_characters() -> None:
    shown = read(f"ab\n{'x' * 100}\ny", by="lines", offset=1, budget=NARROW)
    assert shown == f"{'x' * 30}\n... the line continues; next: by=chars, offset=33"
    assert read(f"ab\n{'x' * 100}\ny", "chars", offset=33, limit=2).startswith("xx")


def test_a_text_with_several_lines_is_read_by_lines() -> None:
    log = "\n".join(f"line {number}" for number in range(9))
    assert read(log, limit=2) == "line 0\nline 1\n... next: by=lines, offset=2; last: offset=-1"
    assert read(log, offset=-1) == "line 8"
    assert read(log, "chars", offset=-1) == "8"
    assert read("first\nlast", offset=-1) == "t"
    assert read("C:\\new\\names", offset=-1) == "s"


def test_a_value_too_large_for_a_window_is_outlined() -> None:
    shown = read({"small": 1, "large": "x" * 300, "last": 2}, budget=Budget(1000, 320, estimate_tokens))
    assert shown.splitlines()[0] == '"/small": 1'
    assert shown.splitlines()[1] == '"/large": (text 300 B: too large to be shown here, take its path)'
    assert read(["y" * 10_000], budget=Budget(1000, 320, estimate_tokens)).startswith("0: (text 10 kB: too large")
    few = read(["a word or two"] * 50, budget=Budget(200, 100_000, estimate_tokens))
    assert "... next: by=items, offset=" in few
    assert estimate_tokens(few.encode()) <= 200


PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(8) + (640).to_bytes(4) + (480).to_bytes(4) + bytes(600)).decode()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"type": "image", "data": PNG, "mimeType": "image/png"}, "image/png, 640x480, 624 B. {} To see it, call {}."),
        ({"type": "resource", "resource": {"uri": "a:b", "blob": PNG, "mimeType": "image/png"}}, "image/png, 640x480"),
        (PNG, "base64 of image/png, 640x480, 624 B. {}"),
        (f"data:text/csv;base64,{PNG}", "base64 of text/csv, 640x480, 624 B. {}"),
    ],
)
def test_base64_is_described_unless_characters_are_requested(value: object, expected: str) -> None:
    use, tool = "Use the path as the argument of a tool.", "retrieve_final_answer_from_memory"
    shown = read(value, limit=50)
    assert shown.startswith(expected.format(use, tool))
    assert use in shown
    assert PNG[:8] in read(value, "keys" if isinstance(value, dict) else "chars")


def test_a_picture_within_a_value_is_described() -> None:
    picture = {"type": "image", "data": PNG, "mimeType": "image/png"}
    described = "(image/png, 640x480, 624 B: take its path)"
    assert read(["a", picture]) == f'0: "a"\n1: {described}'
    assert read({"icon": picture}) == f'"/icon": {described}'


@given(st.text(max_size=300), st.integers(1, 60), st.sampled_from([7, 50, 1000]))
def test_consecutive_windows_show_the_whole_text(text: str, limit: int, tokens: int) -> None:
    text = text.encode("utf-8", "replace").decode()
    blob, shown, offset = json.dumps(text).encode(), "", 0
    budget = Budget(tokens + 70, 10_000, estimate_tokens)
    while True:
        window = read(blob, offset=offset, limit=limit, by="chars", budget=budget)
        if window == "(nothing more)":
            break
        part, more, following = window.rpartition("\n... next: by=chars, offset=")
        shown += part if more else window
        if not more:
            break
        following = following.removesuffix("; last: offset=-1000")
        assert int(following) > offset
        offset = int(following)
    assert shown == text


@given(st.lists(st.integers() | st.text(max_size=20), max_size=30), st.integers(1, 5))
def test_consecutive_windows_show_every_item_once(value: list[Any], limit: int) -> None:
    seen: list[Any] = []
    offset = 0
    while (shown := read(value, offset=offset, limit=limit)) != "(nothing more)":
        lines = [line for line in shown.splitlines() if not line.startswith("... next")]
        seen += [json.loads(line.partition(": ")[2]) for line in lines]
        if len(lines) == len(shown.splitlines()):
            break
        offset = len(seen)
    assert seen == value


def test_a_read_stops_at_its_time_limit() -> None:
    with pytest.raises(ToolError, match=r"memory_tools\.timeout"):
        Window("chars", 0, None, WIDE)(b'"x"', lambda: True)
    with pytest.raises(ToolError, match=r"memory_tools\.timeout"):
        Window("items", 0, None, WIDE)(b"[1]", lambda: True)


def test_lines_and_characters_are_counted_in_any_script() -> None:
    blob = json.dumps("\u00e9\n\U0001f600").encode()
    assert index_text(blob, trim(blob)).count_lines(blob, trim(blob), never) == 2
    assert count_characters("\u00e9\n\U0001f600".encode()) == 3


@pytest.mark.parametrize("size", [12, 13, 50, 1 << 20])
@pytest.mark.parametrize("dump", [json.dumps, lambda text: json.dumps(text, ensure_ascii=False)])
def test_pieces_of_any_size_contain_the_same_text(size: int, dump: Callable[[Any], str]) -> None:
    text = 'plain \u00e9\U0001f600\\"/\n' * 20
    blob = dump(text).encode()
    pieces = list(split_text(blob, trim(blob), never, size))
    assert b"".join(piece.data for piece in pieces).decode() == text
    raw = dump([text]).encode()
    all_pieces = list(split_text(raw, trim(raw), never, size))
    assert b"".join(piece.data for piece in all_pieces) == raw
    assert all(piece.data.decode() is not None for piece in all_pieces)
    assert all_pieces[0] == TextPiece(0, all_pieces[0].data, len(all_pieces[0].data))
    assert [piece.start for piece in all_pieces[1:]] == [piece.stop for piece in all_pieces[:-1]]


def test_lone_surrogates_are_replaced_at_any_piece_size() -> None:
    blob = b'"' + b"\\ud800" * 40 + b'x"'
    for size in (12, 13, 14, 15, 16, 100):
        shown = b"".join(piece.data for piece in split_text(blob, trim(blob), never, size)).decode()
        assert shown.endswith("x")


@given(st.text(max_size=60), st.text(min_size=1, max_size=3), st.booleans())
def test_a_text_is_found_in_any_position_and_encoding(text: str, wanted: str, ascii_: bool) -> None:  # noqa: FBT001
    text, wanted = (part.encode("utf-8", "replace").decode() for part in (text, wanted))
    text_with_matches = wanted.join((text, text[::-1], "")) + text
    blob = json.dumps(text_with_matches, ensure_ascii=ascii_).encode()
    found = find_text(blob, trim(blob), wanted.encode(), 1000, never)
    assert len(found) == text_with_matches.count(wanted)
    assert all(json.loads(b'"%b"' % blob[one.start : one.stop]) == wanted for one in found)


def test_a_text_is_found_across_pieces_and_deep_in_one() -> None:
    text = "\u00e9" * 700_000 + "needle" + "x" * 900_000 + "\n\U0001f600needle"
    for ascii_ in (True, False):
        blob = json.dumps(text, ensure_ascii=ascii_).encode()
        found = find_text(blob, trim(blob), b"needle", 10, never)
        assert [blob[one.start : one.stop] for one in found] == [b"needle", b"needle"]
        assert len(find_text(blob, trim(blob), b"needle", 1, never)) == 1
    raw = json.dumps({"a": "needle"}).encode()
    assert [raw[one.start : one.stop] for one in find_text(raw, trim(raw), b'"needle"', 10, never)] == [b'"needle"']


ESCAPED = (
    rb'{"\u0433\u043e\u0440\u043e\u0434": "\u0421\u041f\u0431 \ud83d\ude00 a\u003cb", "s": "\u00E9\/ \"q\" \\u0433"}'
)
"""Escapes of characters, and an escaped backslash before what only looks like an escape."""
SHOWN = '{"\u0433\u043e\u0440\u043e\u0434": "\u0421\u041f\u0431 \U0001f600 a<b", "s": "\u00e9\\/ \\"q\\" \\\\u0433"}'


@pytest.mark.parametrize(
    ("blob", "arguments", "expected"),
    [
        (ESCAPED, {"by": "chars"}, SHOWN),
        (ESCAPED, {"by": "lines"}, SHOWN),
        (ESCAPED, {"by": "chars", "offset": 2, "limit": 5}, f"{SHOWN[2:7]}\n... next: by=chars, offset=7"),
        (ESCAPED, {"by": "chars", "offset": -9}, SHOWN[-9:]),
        (ESCAPED, {"limit": 1}, f'"/{SHOWN[2:7]}": {SHOWN[10:21]}\n... next: by=keys, offset=1; last: offset=-1'),
        (b"[%b]" % ESCAPED, {}, f"0: {SHOWN}"),
        (b"[%b,\n 1]" % ESCAPED, {"by": "lines", "offset": 1}, " 1]"),
    ],
)
def test_a_model_reads_the_characters_of_escapes_in_json(blob: bytes, arguments: Any, expected: str) -> None:
    assert read(blob, **arguments) == expected


NEEDED = [r"\"", r"\\", r"\n", r"\u000a", r"\u0022", r"\u005c", r"\ud83d", r"\ude00", r"\ude00\ud83d", r"\\u0433"]
INVISIBLE = [r"\u0000", r"\u0085", r"\u200b", r"\u202e", r"\u2028", r"\u2029", r"\ufe0f", r"\udb40\udc41", r"\ue000"]


@pytest.mark.parametrize("escape", NEEDED + INVISIBLE)
def test_escapes_of_invisible_characters_and_of_json_are_shown(escape: str) -> None:
    blob = rf'["{escape}", "\u0433{escape}\u0433"]'.encode()
    shown = read(blob, by="chars")
    assert shown == f'["{escape}", "\u0433{escape}\u0433"]'
    assert json.loads(shown) == json.loads(blob)


def test_an_item_of_escapes_is_shown_if_its_characters_fit() -> None:
    text = "\u0433\u043e\u0440\u043e\u0434" * 30
    assert read([text, 1], budget=Budget(1000, 370, estimate_tokens)).startswith(f'0: "{text}"')


def test_formatted_json_is_shown_without_its_line_breaks() -> None:
    blob = json.dumps([{"a": [1, "two\nlines  "], "b": {"c": {}}}, [[]]], indent=2).encode().replace(b"\n", b"\r\n")
    assert read(blob) == '0: {"a": [1,"two\\nlines  "],"b": {"c": {}}}\n1: [[]]'


def test_a_value_of_many_spaces_is_shown_in_linear_time() -> None:
    blob = json.dumps([" " * 200_000, "\t"]).encode()
    began = time.process_time()
    assert len(read(blob, budget=Budget(10**6, 10**6, estimate_tokens))) > 200_000
    assert time.process_time() - began < 2


@given(st.recursive(st.text(max_size=9) | st.floats(allow_nan=False), st.lists), st.sampled_from([1, "\t", " \t"]))
def test_json_without_its_line_breaks_is_the_same_value(value: Any, indent: int | str) -> None:
    assert json.loads(join_lines(json.dumps(value, indent=indent).encode())) == value


@given(st.recursive(st.text(max_size=9), st.lists), st.integers(1, 30), st.booleans())
def test_consecutive_windows_show_the_whole_json(value: Any, limit: int, ascii_: bool) -> None:  # noqa: FBT001
    blob = json.dumps([value, "\u0433\U0001f600"], ensure_ascii=ascii_).encode("utf-8", "surrogatepass")
    if not ascii_ and any("\ud800" <= character <= "\udfff" for character in blob.decode("utf-8", "surrogatepass")):
        return
    shown, offset = "", 0
    while True:
        window = read(blob, by="chars", offset=offset, limit=limit)
        part, more, following = window.rpartition("\n... next: by=chars, offset=")
        shown += part if more else window
        if not more:
            break
        offset = int(following.removesuffix("; last: offset=-1000"))
    assert json.loads(shown) == json.loads(blob)
    assert "\u0433\U0001f600" in shown


def test_a_text_in_json_is_found_as_characters_and_as_escapes() -> None:
    blob = b'{"a": %b, "b": "x\\\\u0433\\u200b\\u0433"}' % ESCAPED
    for wanted, raw in (
        ("\u0433\u043e\u0440", rb"\u0433\u043e\u0440"),
        (r"\u0433\u043E\u0440", rb"\u0433\u043e\u0440"),
        ("\u0431 \U0001f600 a", rb"\u0431 \ud83d\ude00 a"),
        (r"\u0431 \ud83d\uDE00 a<", rb"\u0431 \ud83d\ude00 a\u003c"),
        ('"q\\', rb'"q' + b"\\"),
        ("\u200b\u0433", rb"\u200b\u0433"),
        (r"\u200B\u0433", rb"\u200b\u0433"),
        ("\\\\u0433\u200b", rb"\\u0433\u200b"),
    ):
        found = find_text(blob, trim(blob), wanted.encode(), 9, never)
        assert [blob[one.start : one.stop] for one in found] == [raw], wanted


@given(st.lists(st.sampled_from(["\u0433", "\U0001f600", '"', "\\", "\n", "x", "u0433", "\u200b"]), min_size=1))
def test_all_occurrences_in_json_are_found_in_any_encoding(parts: list[str]) -> None:
    text = "".join(parts)
    wanted = json.dumps(text)[1:-1]
    for ascii_ in (True, False):
        blob = json.dumps(["needle", text, "\u00e9", "needle" + text], ensure_ascii=ascii_).encode()
        raw = json.dumps("needle" + text, ensure_ascii=ascii_)[1:-1].encode()
        for old in ("needle" + wanted, "needle" + json.dumps(text, ensure_ascii=False)[1:-1]):
            found = find_text(blob, trim(blob), old.encode(), 9, never)
            assert [blob[one.start : one.stop] for one in found] == [raw]


def test_escapes_across_pieces_are_found_and_shown() -> None:
    for spaces in range(14):
        text = "\U0001f600\u0433" * 60_000 + "needle"
        blob = b" " * spaces + json.dumps([text]).encode()
        span = trim(blob)
        (found,) = find_text(blob, span, "\U0001f600\u0433needle".encode(), 9, never)
        assert blob[found.start : found.stop] == rb"\ud83d\ude00\u0433needle"
        assert read(blob, by="chars", offset=120_000).startswith("\U0001f600\u0433needle")
