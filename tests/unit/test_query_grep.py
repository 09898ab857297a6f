"""Searches for a pattern in the lines of a text and in the strings of a JSON value."""

import json
import re
from typing import Any

import pytest
from computing import least_seconds
from hypothesis import given
from hypothesis import strategies as st
from samples import sample

from mcp_mirror.errors import ToolError
from mcp_mirror.query.grep import Search, excerpt
from mcp_mirror.query.lines import Matcher, find_matching_lines, measure_pattern
from mcp_mirror.query.windows import Budget
from mcp_mirror.tokens import estimate_tokens

WIDE = Budget(1_000_000, 10_000, estimate_tokens)


def never() -> bool:
    return False


def grep(value: Any, pattern: str, budget: Budget = WIDE, **keys: int) -> str:
    blob = value if isinstance(value, bytes) else json.dumps(value).encode()
    arguments = {"context": 0, "offset": 0, "limit": 30} | keys
    return Search(pattern, budget=budget, path="p", **arguments)(blob, never)


LINES_WITH_GAP = "p/a line 0- 1\nline 1: 2\nline 2- 3\n--\nline 5- 6\nline 6: 7"
NO_TEXT = "No match in the texts of this value. Keys and numbers are not searched."
OTHER_CASE = " With other upper and lower case there is a match: begin the pattern with (?i)."
TEXT = "alpha one\nbeta two\ngamma one\ndelta\nepsilon"


@pytest.mark.parametrize("pattern", ["(?<=a)b", "a(?=b)", "a(?!b)", "(?<!a)b", r"(a)\1", "(?P<x>a)(?P=x)", "a(?>b)"])
def test_the_error_of_a_pattern_that_only_backtracking_matches_says_so(pattern: str) -> None:
    with pytest.raises(
        ToolError, match=r"RE2 has no look-around and no back references: match the text beside it too\."
    ):
        grep(TEXT, pattern)


@pytest.mark.parametrize(
    ("value", "pattern", "keys", "expected"),
    [
        (TEXT, "one", {}, "0: alpha one\n2: gamma one"),
        (TEXT, "^d.*a$", {}, "3: delta"),
        (TEXT, r"\Ag", {}, "2: gamma one"),
        (TEXT, r"a\sg", {}, "No match."),
        (TEXT, r"o\s+g|ne", {}, "0: alpha one\n2: gamma one"),
        (TEXT, "(?i)ALPHA", {}, "0: alpha one"),
        (TEXT, "Alpha", {}, f"No match.{OTHER_CASE}"),
        (TEXT, "Alpha", {"offset": 1}, "No match."),
        (b'{"a": "GLS"}', "gls", {}, f"{NO_TEXT}{OTHER_CASE}"),
        (TEXT, "one", {"limit": 1}, "0: alpha one\n... 1 more; next: offset=2"),
        (TEXT, "one", {"offset": 1}, "2: gamma one"),
        (TEXT, "nothing", {}, "No match."),
        (TEXT, r"one\|delta", {}, r"No match. \| is the character |: write | between alternatives."),
        (b'["a"]', r"a\|b", {}, NO_TEXT + r" \| is the character |: write | between alternatives."),
        (TEXT, r"\<one\>", {}, r"No match. \< and \> are the characters < and >: write \b at the edges of a word."),
        (TEXT, r"one\n.*", {}, "No match. A match is within one line: match one of the lines, with `context`."),
        (TEXT, "one\n.*", {}, "No match. A match is within one line: match one of the lines, with `context`."),
        ("a\nZu\u0308rich", "Z\u00fc.", {}, "1: Zu\u0308rich"),
        (b'["Z\xc3\xbcrich"]', "Zu\u0308r", {}, "p/0: Z\u00fcrich"),
        ("Zurich", "Z[u\u00fc]x", {}, "No match."),
        ("Zurich", "Z\u00fcr", {}, "No match."),
        (TEXT, r"one\\|d", {}, "3: delta"),
        ("a|b", r"a\|b", {}, "0: a|b"),
        ("", "x", {}, "No match."),
        ("", "^$", {}, "No match."),
        ("x\r\ny\r\n", "x", {}, "0: x"),
        ("x\r\n\r\ny\r\n", "^$", {}, "1: "),
        ("\ufeffid;name\r\n1;x", "^id", {}, "0: id;name"),
        (b'"\\ufeffid;name\\n1;x"', "^id", {}, "0: id;name"),
        ("x\n\ufeffy", "^y", {}, "No match."),
        ("ax\r\nx b\r\nx", "x$", {}, "0: ax\n2: x"),
        ("x$\r\nx\r\n", r"\$$", {}, "0: x$"),
        ("x$\r\nx:\r\n", "[$]$", {}, "0: x$"),
        ("x$\r\nx:\r\n", "[[:digit:]$]|\\Q$:", {}, "0: x$"),
        ("x$\r\nx\r\n", r"x\Q$\E$", {}, "0: x$"),
        ({"a": "one\r\none two\r\n"}, "^.*one$", {}, "p/a line 0: one"),
        (TEXT, "two", {"context": 1}, "0- alpha one\n1: beta two\n2- gamma one"),
        (TEXT, "epsilon", {"context": 9}, "0- alpha one\n1- beta two\n2- gamma one\n3- delta\n4: epsilon"),
        (TEXT, "alpha", {"context": 1}, "0: alpha one\n1- beta two"),
        (TEXT, "alpha|delta", {"context": 1}, "0: alpha one\n1- beta two\n2- gamma one\n3: delta\n4- epsilon"),
        (TEXT, "alpha|epsilon", {"context": 1}, "0: alpha one\n1- beta two\n--\n3- delta\n4: epsilon"),
        ("a\nb\nc\n", "[ab]", {"context": 1}, "0: a\n1: b\n2- c"),
        ("a\nb\nc\n", "b", {"context": 3}, "0- a\n1: b\n2- c"),
        ("a\nb\n\n", "b", {"context": 3}, "0- a\n1: b\n2- "),
        ("a\nb\n", "b", {"context": 3}, "0- a\n1: b"),
        ({"a": "x\ny\nz"}, "x", {"context": 1}, "p/a line 0: x\nline 1- y"),
        ("a\nb\n" + "x\n" * 40_000, "b", {"context": 1}, "0- a\n1: b\n2- x"),
        ("x" * 200 + "y", "y", {}, f"0: {'x' * 200}y"),
        ("a\nb", "$", {}, "0: a\n1: b"),
        ("x" * 300, "$", {}, f"0 (char 300): ...{'x' * 80}"),
        ("a\nb\n", "x*$", {}, "0: a\n1: b"),
        ("a\n\nb  ", " *$", {}, "0: a\n1: \n2: b  "),
        ("a\nb\nc\nd\n", "[abc]", {"context": 1, "limit": 1}, "0: a\n1- b\n... 2 more; next: offset=1"),
        (["a", "b"], "[ab]", {"context": 1}, "p/0: a\np/1: b"),
        ({"a": ["x one", {"b/c": "y one"}], "one": 1}, "one", {}, "p/a/0: x one\np/a/1/b~1c: y one"),
        ({"b\r\np/a: x": "y one"}, "one", {}, r'"p/b\r\np~1a: x": y one'),
        (
            {"a": "one", "b": "one", "c": "one"},
            "one",
            {"limit": 2},
            "p/a: one\np/b: one\n... 1 more; next: offset=2",
        ),
        ({"a": "one", "b": "one", "c": "one"}, "one", {"offset": 2}, "p/c: one"),
        ({"a": 'say "hi"\nthere', "b": "x"}, '"hi"$', {}, 'p/a line 0: say "hi"'),
        (
            {"a": "one\ntwo\nno one", "b": ["one"]},
            "one",
            {},
            "p/a line 0: one\nline 2: no one\np/b/0: one",
        ),
        ({"a": "1\n2\n3", "b": "1\n2"}, "[12]", {}, "p/a line 0: 1\nline 1: 2\np/b line 0: 1\nline 1: 2"),
        (["x\ny", "x\ny"], "y", {"context": 1}, "p/0 line 0- x\nline 1: y\np/1 line 0- x\nline 1: y"),
        ({"a": "1\n2\n3\n4\n5\n6\n7"}, "[27]", {"context": 1}, LINES_WITH_GAP),
        ({"a": "1\n2\n3\n4"}, "[23]", {"context": 2}, "p/a line 0- 1\nline 1: 2\nline 2: 3\nline 3- 4"),
        ({"a": "1\n2\n3\n4"}, "[24]", {"context": 1}, "p/a line 0- 1\nline 1: 2\nline 2- 3\nline 3: 4"),
        (
            {"a": "1\n2\n3\n4"},
            "[1-4]",
            {"context": 1, "limit": 2, "offset": 1},
            "p/a line 0- 1\nline 1: 2\nline 2: 3\nline 3- 4\n... 1 more; next: offset=3",
        ),
        (
            {"a": "one\none\none", "b": "one"},
            "one",
            {"offset": 1, "limit": 1},
            "p/a line 1: one\n... 2 more; next: offset=2",
        ),
        ({"a": "one\n" * 5000}, "one", {"limit": 1}, "p/a line 0: one\n... at least 1,000 more; next: offset=1"),
        ("one\n" * 5000, "one", {"limit": 1}, "0: one\n... at least 1,000 more; next: offset=1"),
        (b'{"k":"hit 1","k":"hit 2","k":"hit 3","l":"hit"}', "hit", {"limit": 3}, "p/k: hit 3\np/l: hit"),
        (b'{"k":"hit 1","k":"hit 2","k":"hit 3"}', "hit", {"limit": 1}, "\n... 1 more; next: offset=2"),
        ([1, 2.5, True, None, []], "1", {}, NO_TEXT),
        ({"k": "v"}, "^v$", {}, "p/k: v"),
        ({"k": "v"}, "w", {}, NO_TEXT),
        ([12, "a\u00e912"], "7", {}, NO_TEXT),
        ([[[["a"]]], [[["hit"]]]], "hit", {}, "p/1/0/0/0: hit"),
        ([["deep"]], r"\Adeep\z", {}, "p/0/0: deep"),
        (b'{"k" : "k" , "k":"z"}', "k", {}, NO_TEXT),
    ],
)
def test_hits_are_listed_with_their_locations(value: Any, pattern: str, keys: Any, expected: str) -> None:
    assert grep(value, pattern, **keys) == expected


def test_a_hit_in_a_long_line_is_shown_with_its_position() -> None:
    shown = grep(f"short\n{'x' * 5000}needle{'y' * 5000}", "needle")
    assert shown == f"1 (char 5006): ...{'x' * 80}needle{'y' * 80}..."
    assert grep("needle " * 40, "needle").startswith("0 (char 0; 39 more in this line): needle needle")
    assert grep("needle " * 4000, "needle").startswith("0 (char 0; at least 1,000 more in this line): ")
    assert excerpt(b"a" * 1000, (0, 900)) == "a" * 380 + "..."
    assert excerpt(b"a" * 1000, (990, 1000)) == "..." + "a" * 90
    assert grep({"a": "x" * 5000 + "needle"}, "needle") == f"p/a (char 5000): ...{'x' * 80}needle"


FAR = "x" * 500
SPREAD = f"{FAR}needle1{FAR}needle2 needle3{FAR}needle4"
AROUND = "x" * 80


@pytest.mark.parametrize("as_text", [True, False])
def test_further_hits_of_a_long_line_are_shown_while_there_is_room(as_text: bool) -> None:  # noqa: FBT001
    value, at = (SPREAD, "0") if as_text else ([SPREAD], "p/0")
    first = f"{at} (char 500; 3 more in this line): ...{AROUND}needle1{AROUND}..."
    second = f"(char 1007): ...{AROUND}needle2 needle3{'x' * 72}..."
    third = f"(char 1522): ...{AROUND}needle4"
    assert grep(value, r"needle\d").splitlines() == [first, second, third]
    assert grep(value, r"needle\d", limit=2).splitlines() == [first, second]
    assert grep(f"\u20ac{SPREAD}", r"needle\d").splitlines()[2] == third.replace("1522", "1523")
    narrow = Budget(160 + 130, 10_000, len)
    assert grep(value, r"needle\d", narrow).splitlines() == [first]


@pytest.mark.parametrize(
    ("pattern", "place"),
    [
        ("x$", "char 4999999"),
        (r"x{999}\z", "char 4999001"),
        ("(?s)x.$", "char 4999998"),
        ("^x{9}", "char 0"),
        ("x{1000}", "char 0; at least 1,000 more in this line"),
    ],
)
def test_a_very_long_line_that_is_searched_in_parts_has_one_end(pattern: str, place: str) -> None:
    assert grep("x" * 5_000_000, pattern).startswith(f"0 ({place}): ")


def test_the_cuts_of_a_very_long_line_are_no_part_of_a_hit() -> None:
    text = f"{'n' * 49}z" * 100_000
    found = grep(f"{'n' * 61}z{text}{'n' * 61}", "n[^z]{60}")
    assert found.splitlines()[0].startswith("0 (char 0; 1 more in this line): "), found


def test_the_first_hit_of_each_line_comes_before_further_hits() -> None:
    text = f"{SPREAD}\n{SPREAD}"
    shown = grep(text, r"needle\d", limit=3).splitlines()
    assert [line.split("(")[0] for line in shown] == ["0 ", "", "1 "]
    assert grep(text, r"needle\d", limit=1).endswith("... 1 more; next: offset=1")
    assert grep([SPREAD, "needle5"], r"needle\d").splitlines()[-1] == "p/1: needle5"


def test_a_pattern_that_is_too_large_is_refused_with_advice() -> None:
    with pytest.raises(ToolError, match=r"pattern too large - compile failed\. Shorten it, or lower its counts\."):
        grep(TEXT, "((a{10}){10}){10}" * 1_000)
    with pytest.raises(ToolError, match=r"`pattern` has 70,000 characters; 65,536 are accepted\. Shorten it\."):
        grep(TEXT, "a" * 70_000)


def test_groups_of_a_pattern_take_no_time() -> None:
    pattern = "(" * 500 + "x" + ")" * 500
    assert grep("x" * 500, pattern).startswith("0 (char 0; 499 more in this line): ")
    # 1 s with the positions of the groups in each match
    assert least_seconds(lambda: grep("x" * 500, pattern)) < 0.5


def test_an_invalid_pattern_is_refused() -> None:
    for pattern in ("(", "*x", "[z-a]"):
        with pytest.raises(ToolError, match=r"`pattern` is not a valid RE2 expression: .+ Escape"):
            grep("x", pattern)
    with pytest.raises(ToolError, match=r"missing \): \(one\$\. Escape"):
        grep("x", "(one$")


def test_hits_stay_within_the_budget_but_at_least_one_is_shown() -> None:
    lines = "\n".join(f"hit {'x' * 30}" for _ in range(50))
    shown = grep(lines, "hit", budget=Budget(1_000_000, 400, estimate_tokens))
    assert len(shown) <= 400
    assert shown.splitlines()[-1] == "... 44 more; next: offset=6"
    assert grep(lines, "hit", budget=Budget(1, 1, estimate_tokens)).startswith("0: hit")
    few = grep(lines, "hit", budget=Budget(200, 1_000_000, estimate_tokens))
    assert "more; next: offset=" in few
    assert estimate_tokens(few.encode()) <= 200
    rows = [f"hit {'x' * 30}"] * 50
    assert "... 44 more; next: offset=6" in grep(rows, "hit", budget=Budget(1_000_000, 400, estimate_tokens))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("value", "looks"), [("hit\n" * 300_000, 1), (["hit" * 500] * 4000, 3)], ids=["text", "strings"]
)
def test_at_the_time_limit_the_hits_and_the_next_offset_are_shown(value: Any, looks: int) -> None:
    left = iter([False] * looks)
    blob = json.dumps(value).encode()
    shown = Search("hit", 0, 0, 1_000_000_000, Budget(10**9, 10**9, len))(blob, lambda: next(left, True))
    last = shown.splitlines()[-1]
    assert re.fullmatch(r"\.\.\. the time limit was reached; next: offset=\d+", last)
    with pytest.raises(ToolError, match=r"memory_tools\.timeout"):
        Search("hit", 0, 0, 10, WIDE)(blob, lambda: True)
    with pytest.raises(ToolError, match=r"memory_tools\.timeout"):
        Search("[h]it", 0, 0, 10, WIDE)(blob, lambda: True)


def test_at_the_time_limit_the_count_of_further_hits_is_a_minimum() -> None:
    looks = iter([False])
    blob = json.dumps("hit\nhit\n" + "x\n" * 1_000_000).encode()
    shown = Search("hit", 0, 0, 1, WIDE)(blob, lambda: next(looks, True))
    assert shown == "0: hit\n... at least 1 more; next: offset=1"


LINE_PATTERNS = ["a", "b$", "^", "x|\u00e9", "^a?$", "[^x]*b", r"[\s\S]*a", "(?s)b.*x", "[^b]+"]


@given(st.lists(st.text("ab\u00e9x", max_size=5), max_size=40), st.sampled_from(LINE_PATTERNS))
def test_a_search_equals_a_search_line_by_line(lines: list[str], pattern: str) -> None:
    text = "\n".join(lines)
    all_lines = text.split("\n") if text else []
    all_lines = all_lines[:-1] if all_lines and not all_lines[-1] else all_lines
    wanted = [f"{number}: {line}" for number, line in enumerate(all_lines) if re.search(pattern, line)]
    shown = grep(text, pattern, limit=1000)
    assert (shown.splitlines() if shown != "No match." else []) == wanted


@given(st.lists(st.text("ab\n", max_size=8), max_size=20), st.integers(0, 3))
def test_matching_lines_do_not_depend_on_the_pieces(pieces: list[str], context: int) -> None:
    text = "".join(pieces)
    found = list(find_matching_lines(Matcher("a"), (piece.encode() for piece in pieces), context))
    numbers = [number for number, line in enumerate(text.split("\n")) if "a" in line]
    assert [line.number for line in found] == numbers
    lines = text.split("\n")
    for line in found:
        before = line.data[: line.start].decode().split("\n")[:-1]
        wanted = lines[max(line.number - context, 0) : line.number]
        assert before[len(before) - len(wanted) :] == wanted
        behind = line.data[line.stop + 1 :].decode().split("\n")[:context]
        after = lines[line.number + 1 : line.number + 1 + context]
        assert [one for one in behind if one] == [one for one in after[: len(behind)] if one]


@pytest.mark.slow
def test_a_line_of_megabytes_is_searched_to_its_end() -> None:
    line = "\u20ac" * 1_300_000 + "needle" + "\u20ac" * 1_300_000
    found = list(find_matching_lines(Matcher("needle"), _cut(f"first\n{line}\nlast needle"), 1))
    assert [one.number for one in found] == [1, 2]
    assert found[0].data[found[0].start + found[0].at[0] :].startswith(b"needle")
    shown = grep(f"first\n{line}\nlast needle", "needle")
    assert shown.startswith("1 (char 1300006): ...")
    assert grep([line * 2], "needle").startswith("p/0 (char 1300000; 1 more in this line): ...")


PART = 1 << 21
"""Bytes of a line that are searched at once."""


@pytest.mark.parametrize(
    "places",
    [
        [1_000_000, 3_000_000, 5_000_000],
        [PART - 2, 2 * PART],
        [PART - 4_100, PART - 4_090, PART - 60],
        [10, 20, 5_900_000],
        [3_000_000],
    ],
)
@pytest.mark.parametrize("as_text", [True, False])
def test_the_first_match_of_a_very_long_line_is_shown_and_all_are_counted(places: list[int], as_text: bool) -> None:  # noqa: FBT001
    line = bytearray(b"x" * 6_000_000)
    for place in places:
        line[place : place + 6] = b"needle"
    more = f"; {len(places) - 1} more in this line" if places[1:] else ""
    long = line.decode()
    first, *_, last = grep(f"{long}\nlast needle" if as_text else [long, "last needle"], "needle").splitlines()
    assert first.startswith(f"{'0' if as_text else 'p/0'} (char {places[0]}{more}): ")
    assert last == ("1: last needle" if as_text else "p/1: last needle")
    assert grep(long, "^x{2}").startswith("0 (char 0): ")


def test_after_the_time_limit_no_other_case_is_searched() -> None:
    blob = b'"%b needle"' % (b"x" * 6_000_000)
    looks = 0

    def count() -> bool:
        nonlocal looks
        looks += 1
        return False

    search = Search("[N]eedle", 0, 0, 30, WIDE)
    assert search(blob, count) == f"No match.{OTHER_CASE}"
    first = iter([False] * (looks // 2 + 1))  # the second search looks as often at the time as the first one
    assert search(blob, lambda: next(first, True)) == "No match."


def test_at_the_time_limit_a_match_in_a_very_long_line_is_shown() -> None:
    looks = iter([False] * 5)
    blob = b'"%b"' % (b"needle" + b"x" * 6_000_000)
    shown = Search("needle", 0, 0, 30, WIDE)(blob, lambda: next(looks, True))
    assert shown.startswith("0 (char 0): needlexxx")
    assert shown.endswith("... the time limit was reached; next: offset=1")


def _cut(text: str) -> list[bytes]:
    data = text.encode()
    return [data[at : at + 100_000] for at in range(0, len(data), 100_000)]


ATOMS = st.sampled_from(["needle", "ne", "edle", " ", '"', "\\", "\n", "/", "é", "\x01", ":", "}", "x" * 300])
STRINGS = st.lists(ATOMS, max_size=8).map("".join)
KEYS = STRINGS.filter(lambda key: "\n" not in key)
"""Keys that leave a path on one line, since the test counts lines."""
VALUES = st.recursive(
    STRINGS | st.integers() | st.none(),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=30,
)
PATTERNS = st.sampled_from(
    [
        *(
            "needle",
            "^needle$",
            "ne.dle",
            "nee+dle",
            "needles*",
            "ne?edle +",
            'needle"',
            "needle/",
            r"needle\\",
            "needle|x",
        ),
        *("x{3}", "(?i)NEEDLE", "[n]eedle", "needle\u00e9", ": *needle", "^$", ".", "needle.*?x", "needle\x01"),
    ]
)


def find_strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    below = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [string for one in below for string in find_strings(one)]


@given(
    value=VALUES,
    pattern=PATTERNS,
    times=st.integers(0, 3),
    indent=st.sampled_from([None, 1]),
    is_ascii=st.booleans(),
)
def test_a_search_of_json_equals_a_search_of_each_string(
    value: Any, pattern: str, times: int, indent: int | None, *, is_ascii: bool
) -> None:
    rows = [value, *([{"key needle:": "x" * 50_000, "b": "plain"}] * 6 + [value]) * times]
    blob = json.dumps(rows, indent=indent, ensure_ascii=is_ascii).encode()
    wanted = sum(
        re.search(pattern, line, re.ASCII) is not None
        for string in find_strings(rows)
        for line in (string.removesuffix("\n").split("\n") if string else [])
    )
    shown = Search(pattern, 0, 0, 10**6, Budget(10**9, 10**9, len))(blob, never)
    lines = [line for line in shown.split("\n") if not line.startswith("(char ")]  # without further hits of a line
    assert (0 if shown.startswith("No match") else len(lines)) == wanted


@pytest.mark.parametrize("text", ["needle", "\u00e9 needle", "a/needle", 'say "needle"', "line\nneedle"])
@pytest.mark.parametrize("at", [0, 262_140, 262_145, 600_000])
def test_a_literal_is_found_at_any_place_and_with_any_escapes(text: str, at: int) -> None:
    for written in (json.dumps("x" * at + text), json.dumps("x" * at + text).replace("n", r"\u006e")):
        assert not grep(written.encode(), "needle").startswith("No match")
        assert not grep(f'["a", {{"b": {written}}}]'.encode(), "^.*needle.?$").startswith("No match")
        assert grep(written.encode(), "needles") == "No match."


def test_the_time_limit_ends_a_search_for_a_literal_without_hits() -> None:
    with pytest.raises(ToolError, match=r"memory_tools\.timeout"):
        Search("needle", 0, 0, 10, WIDE)(json.dumps("x" * 600_000).encode(), lambda: True)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("pattern", sample([r"[\s\S]*b", "[^z]*", "(?s)a.*"], lambda pattern: pattern == "[^z]*"))
def test_a_pattern_that_matches_line_breaks_is_searched_in_linear_time(pattern: str) -> None:
    matcher, text = Matcher(pattern), b"ab\n" * 200_000
    assert sum(1 for _ in find_matching_lines(matcher, [text], 0)) == 200_000


@pytest.mark.parametrize("begin", [b"", b'"text",'])
def test_numbers_without_strings_are_searched_in_linear_time(begin: bytes) -> None:
    assert grep(b"[%b%b1]" % (begin, b"1," * 500_000), "^") == ("p/0: text" if begin else NO_TEXT)


@pytest.mark.parametrize(
    ("pattern", "least", "most"),
    [
        ("ERROR", 5, 5),
        ("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", 30, 40),
        (r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}(:\d{2}(\.\d+)?)?Z", 15, 30),
        (r"[\w.+-]+@[\w-]+\.[\w.]{2,20}", 20, 50),
        ("(?:[a-z]{10}){10}", 100, 130),
        ("x{,5}a)", 7, 7),
        (r"\p{L}{100}", 50_000, 50_000),
        (r"[^\d\p{Greek}]{3,}", 1500, 1600),
        ("(.{100}", 800, 810),
        ("[a-z]{1,100}" * 30, 130_000, 150_000),
        ("a?" * 2000, 60_000, 70_000),
        ("^a$", 3, 6),
        ("$" * 2000, 250_000, 300_000),
        ("((a{1000}){1000}){1000}", 1 << 20, 1 << 20),
        ("[a" * 10_000, 1 << 20, 1 << 20),
    ],
)
def test_the_time_to_compile_a_pattern_is_known_before(pattern: str, least: int, most: int) -> None:
    assert least <= measure_pattern(pattern) <= most
