"""The strings of arguments that are pointers."""

import json
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_mirror.core.resolve import (
    EscapedPath,
    Pointer,
    explain_strings,
    find_cut_texts,
    find_embedded_bases,
    find_pointers,
)
from mcp_mirror.core.results.captured import Captured, ErrorExcerpt
from mcp_mirror.core.results.notice import write_notice
from mcp_mirror.core.results.notice_keys import NoticeInput
from mcp_mirror.paths import FixedBases, MemoryPath, may_copy_notice, parse_path, unwrap_result
from mcp_mirror.payload.json_spans import members, trim
from mcp_mirror.settings.policies import NoticeStyle
from mcp_mirror.types import Draft, Location, Span

ID, OTHER_ID = "3f2b8c1e-9d4a-4e7b-8f21-0a1b2c3d4e5f", "11111111-2222-4333-8444-555555555555"
BASE, OTHER = f"make_grid-{ID}", f"make_grid-{OTHER_ID}"
FOREIGN = f"order-{ID}"
KNOWN = frozenset({"make_grid"})
STYLES: tuple[NoticeStyle, ...] = ("compact", "paper", "json", "opaque")


def find(arguments: Any) -> tuple[Pointer | EscapedPath, ...]:
    return find_pointers(json.dumps(arguments).encode(), KNOWN)


def pointer_of(text: str) -> Pointer | EscapedPath | None:
    found = find({"x": text})
    assert len(found) <= 1
    return found[0] if found else None


def test_the_stub_of_pruned_json_is_one_pointer() -> None:
    path = f"pruned-{ID}"
    stub = {"memory_path": path, "pruned": "12 bytes of tool input"}
    arguments = {"a": [stub], "b": {**stub, "c": 1}, "d": {"pruned": path, "memory_path": 1}, "e": [path]}
    text = json.dumps(arguments).encode()
    found = find_pointers(text, frozenset({"pruned"}))
    locations = [one.location for one in found if isinstance(one, Pointer)]
    assert locations == [("a", 0), ("b", "memory_path"), ("d", "pruned"), ("e", 0)]
    assert json.loads(text[found[0].span.start : found[0].span.stop]) == stub
    (whole,) = find_pointers(json.dumps(stub).encode(), frozenset({"pruned"}))
    assert isinstance(whole, Pointer)
    assert (whole.location, str(whole.path)) == ((), path)
    (nested,) = find_pointers(json.dumps({**stub, "pruned": path}).encode(), frozenset({"pruned"}))
    assert isinstance(nested, Pointer)
    assert nested.location == ()
    (other,) = find([{**stub, "memory_path": BASE}])
    assert isinstance(other, Pointer)
    assert other.location == (0, "memory_path")
    (bare,) = find_pointers(json.dumps(path).encode(), frozenset({"pruned"}))
    assert isinstance(bare, Pointer)
    assert bare.location == ()


@pytest.mark.parametrize("below", ["", "/raw_grid", "/a~1b/0/~0", "/"])
@pytest.mark.parametrize("around", ["{}", " {}\n", '"{}"', "`{}`", "memory://{}", "'memory://{}'"])
def test_a_string_that_is_a_path_in_any_wrapping_is_a_pointer(below: str, around: str) -> None:
    found = pointer_of(around.format(BASE + below))
    assert isinstance(found, Pointer)
    assert (found.path, found.is_known, found.location) == (parse_path(BASE + below), True, ("x",))


BLOCK = {"type": "text", "text": f'"{BASE}"\nThis path stands for the result.\nIt\'s not the preview.'}
PRINTED = f"TextContent(type='text', text={BLOCK['text']!r}, annotations=None, meta=None)"


@pytest.mark.parametrize("end", ["", "}", '", '])
@pytest.mark.parametrize(
    "pasted",
    [
        BLOCK["text"],
        BLOCK | {"text": BASE},
        BLOCK | {"annotations": None, "meta": None},
        [BLOCK],
        {"content": [BLOCK]},
        {"content": [BLOCK], "isError": False},
        {"_meta": None, "content": [BLOCK | {"_meta": None}], "structuredContent": None, "isError": False},
        {"meta": None, "content": [BLOCK], "is_error": False, "result_type": "complete"},
    ],
)
def test_a_path_in_a_pasted_block_or_result_is_a_pointer(pasted: object, end: str) -> None:
    found = pointer_of(json.dumps(pasted) + end)
    assert isinstance(found, Pointer)
    assert found.path == parse_path(BASE)


@pytest.mark.parametrize("end", ["", ")", "']"])
@pytest.mark.parametrize(
    "pasted",
    [
        PRINTED,
        f"[{PRINTED}]",
        f"meta=None content=[{PRINTED}] structuredContent=None isError=False",
        f"meta=None content=[{PRINTED}] structured_content=None is_error=False result_type='complete'",
        f"CallToolResult(meta=None, content=[{PRINTED}], structuredContent=None, isError=False)",
        f'TextContent(type="text", text="{BASE}")',
    ],
)
def test_a_path_in_a_result_as_python_prints_it_is_a_pointer(pasted: str, end: str) -> None:
    found = pointer_of(pasted + end)
    assert isinstance(found, Pointer)
    assert found.path == parse_path(BASE)


@pytest.mark.parametrize(
    "pasted",
    [
        [BLOCK, BLOCK],
        [BLOCK, {"type": "image", "data": "", "mimeType": "image/png"}],
        [],
        {"content": BLOCK},
        {"content": [BLOCK], "structuredContent": {"id": 1}},
        {"result": [BLOCK]},
        {"content": [[BLOCK]]},
        {"content": [{"content": [BLOCK]}]},
        BLOCK | {"annotations": {"priority": 1}},
    ],
)
def test_a_pasted_result_that_says_more_than_a_path_is_a_literal(pasted: object) -> None:
    assert pointer_of(json.dumps(pasted)) is None


@pytest.mark.parametrize("label", ["makegrid", "make-grid", "Make_Grid", "MAKE_GRID"])
def test_a_path_with_a_miscopied_tool_is_a_pointer_that_has_no_value(label: str) -> None:
    for identity in (ID, ID.upper(), ID[:24]):
        found = pointer_of(f"{label}-{identity}")
        assert isinstance(found, Pointer)
        assert found.is_known
        assert str(found.path) != BASE
    escaped = pointer_of(f"literal:{label}-{ID}")
    assert isinstance(escaped, EscapedPath)
    assert escaped.text == f"{label}-{ID}"


def test_a_notice_without_its_path_is_a_pointer_to_nothing() -> None:
    found = pointer_of("This path stands for the result.\nUse it as the argument of the next tool.")
    assert isinstance(found, Pointer)
    assert found.path is None


@pytest.mark.parametrize("form", ['"{}"', '{{"type": "text", "text": "{}"}}', "TextContent(type='text', text='{}')"])
def test_a_shown_result_with_half_of_a_surrogate_pair_is_text(form: str) -> None:
    shown = form.format(rf"\ud83d{BASE}")
    assert unwrap_result(shown) == shown


PRINTED_WITH_MORE = (
    f"[{PRINTED}, {PRINTED}]",
    f"meta=None content=[{PRINTED}] structured_content={{'id': 1}} is_error=False",
    f"print({PRINTED}) # {BASE}",
    rf"TextContent(type='text', text='\N{{x}}{BASE}')",
    f"TextContent(type='text', text='{BASE}",
    f"TextContent(type='text', text='\0{BASE}')",
    rf'{{"type": "text", "text": "\x{BASE}"}}',
)


@pytest.mark.parametrize(
    "text",
    [
        *(f"see {BASE}", f"{BASE} {OTHER}", f"{BASE}\n{OTHER} is it", f"a/{BASE}", f"{BASE}, please"),
        *(f"{BASE},{OTHER}", f'["{BASE}","{OTHER}"]', f'["{BASE}", "{OTHER}"]', f"[{BASE}/a,{BASE}/b]"),
        *("make_grid", ID, "", "x"),
        *PRINTED_WITH_MORE,
    ],
)
def test_a_string_that_says_more_or_less_than_a_path_is_a_literal(text: str) -> None:
    assert pointer_of(text) is None


def test_a_path_of_an_unknown_tool_may_stay_a_literal() -> None:
    found = pointer_of(FOREIGN)
    assert isinstance(found, Pointer)
    assert (found.path, found.is_known) == (MemoryPath(FOREIGN), False)


@pytest.mark.parametrize("text", [f"{BASE}.", f"make_grid-{ID[:-1]}", f"make_grid-{ID[:13]}...", f"{{{{{BASE}}}}}"])
def test_a_mistyped_path_of_a_known_tool_is_flagged(text: str) -> None:
    found = pointer_of(text)
    assert isinstance(found, Pointer)
    assert (found.path, found.is_known, found.text) == (None, True, text)
    assert pointer_of(text.replace("make_grid", "order")) is None


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        (f"literal:{BASE}", BASE),
        (f"literal:{BASE}/a~1b", f"{BASE}/a~1b"),
        (f"literal:literal:{BASE}", f"literal:{BASE}"),
        (f"literal:literal:literal:{BASE}", f"literal:literal:{BASE}"),
        (f"literal:{FOREIGN}", FOREIGN),
        (f"literal:{BASE}.", f"{BASE}."),
        (f"literal:make_grid-{ID[:-1]}", f"make_grid-{ID[:-1]}"),
        (f" `literal:{BASE}` ", BASE),
        ("literal:", None),
        ("literal:x", None),
        (f"literal:order-{ID[:-1]}", None),
        (f"Literal:{BASE}", None),
    ],
)
def test_the_escape_sends_what_would_have_been_a_pointer(text: str, sent: str | None) -> None:
    found = pointer_of(text)
    assert (found.text if isinstance(found, EscapedPath) else found) == sent


def stored(
    base: str = BASE, companion: str = "", arguments: bytes = b'{"molecule":"water"}', **changes: Any
) -> NoticeInput:
    blob = b'{"raw_grid":[[1,2],[3,4]],"shape":[2,2]}'
    value = Draft(blob, "object", 0, members(blob, trim(blob)))
    captured = Captured(is_named=bool(companion), **changes)
    return NoticeInput(value, captured, FixedBases(base, companion), "make_grid", arguments, len)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"shown": '{"a": 1}'},
        {"error": ErrorExcerpt("failed\nhere")},
        {"arguments": f'{{"x":"{OTHER}","y":"{FOREIGN}/a"}}'.encode()},
    ],
    ids=["plain", "shown", "error", "with paths as input"],
)
@pytest.mark.parametrize("around", ["{}", "\n{} "])
def test_a_whole_notice_resolves_to_the_path_that_it_names(
    style: NoticeStyle, changes: dict[str, Any], around: str
) -> None:
    found = pointer_of(around.format(write_notice(stored(**changes), style)))
    assert isinstance(found, Pointer)
    assert (found.path, found.is_known, found.text) == (MemoryPath(BASE), True, BASE)


@pytest.mark.parametrize("style", ["compact", "paper", "json"])
def test_a_notice_of_two_values_is_an_invalid_pointer(style: NoticeStyle) -> None:
    for text in (
        write_notice(stored(companion=OTHER), style),
        f"{write_notice(stored(), style)}\n{write_notice(stored(base=OTHER), style)}",
    ):
        found = pointer_of(text)
        assert isinstance(found, Pointer)
        assert (found.path, found.is_known) == (None, True)
        escaped = pointer_of(f"literal:{text}")
        assert isinstance(escaped, EscapedPath)
        assert escaped.text == text


@pytest.mark.parametrize("style", ["compact", "paper", "json"])
def test_a_notice_that_is_not_ours_or_not_whole_is_a_literal(style: NoticeStyle) -> None:
    notice = write_notice(stored(), style)
    for text in (
        write_notice(stored(base=FOREIGN), style),
        write_notice(stored(companion=FOREIGN), style),
        f"See: {notice}",
        f"{notice} OK",
        notice[:-1],
        notice.replace(BASE, "x"),
    ):
        assert pointer_of(text) is None
    assert pointer_of(write_notice(stored(shown="x" * 20_000), style)) is None


STRINGS = st.sampled_from(
    [BASE, f" {BASE}/a ", FOREIGN, f"{BASE}.", f"literal:{BASE}", "plain", "", "2026-11-01", f"in {BASE}"]
)
ARGUMENTS = st.dictionaries(
    st.sampled_from(["a", "b", "", "c/d", BASE]),
    st.recursive(
        STRINGS | st.integers() | st.none() | st.lists(st.integers(0, 9), min_size=60, max_size=70),
        lambda inner: (
            st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["a", "b", BASE]), inner, max_size=3)
        ),
        max_leaves=12,
    ),
)


def strings(value: Any, at: Location = ()) -> list[tuple[Location, str]]:
    if isinstance(value, str):
        return [(at, value)]
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, part in below for found in strings(part, (*at, key))]


@given(ARGUMENTS, st.sampled_from([None, 1]), st.booleans())
def test_pointers_are_found_at_any_depth_in_the_order_of_the_text(
    arguments: Any,
    indent: int | None,
    as_view: bool,  # noqa: FBT001
) -> None:
    text = json.dumps(arguments, indent=indent).encode()
    found = find_pointers(memoryview(text) if as_view else text, KNOWN)
    assert [one.span.start for one in found] == sorted(one.span.start for one in found)
    spelled = [json.loads(text[one.span.start : one.span.stop]) for one in found]
    expected = [
        (at, string) for at, string in strings(arguments) if string.strip().startswith(("make", "order", "literal"))
    ]
    assert spelled == [string for _, string in expected]
    located = [(one.location, string) for one, string in zip(found, spelled, strict=True) if isinstance(one, Pointer)]
    assert located == [pair for pair in expected if not pair[1].startswith("literal")]


def test_a_repeated_key_counts_with_its_last_value() -> None:
    text = f'{{"a":"{OTHER}","b":1,"a":"{BASE}"}}'.encode()
    (found,) = find_pointers(text, KNOWN)
    assert isinstance(found, Pointer)
    assert found.path == MemoryPath(BASE)
    assert text[found.span.start - 4 : found.span.start] == b'"a":'


def test_a_path_spelled_with_escapes_is_a_pointer() -> None:
    text = f'{{"a":"make_grid\\u002d{ID}\\/x"}}'.encode()
    (found,) = find_pointers(text, KNOWN)
    assert isinstance(found, Pointer)
    assert found.path == MemoryPath(BASE, ("x",))


@pytest.mark.parametrize("depth", [100, 20_000])
def test_very_deep_arguments_are_walked_without_recursion(depth: int) -> None:
    text = b'{"a":' + b"[" * depth + f'"{BASE}"'.encode() + b"]" * depth + b"}"
    if depth > 1000:
        text = text.replace(b'"a":', b'"a":[],"b":')
        assert find_pointers(b'{"a":' + b"[" * depth + b"]" * depth + b"}", KNOWN) == ()
        return
    (found,) = find_pointers(text, KNOWN)
    assert isinstance(found, Pointer)
    assert found.location == ("a", *((0,) * depth))


@pytest.mark.parametrize("item", ["some text of a list, {}", 1.5, {"a": [1]}], ids=["texts", "numbers", "objects"])
def test_one_pointer_in_megabytes_of_literals_is_found(item: Any) -> None:
    count = 5_000_000 // (len(json.dumps(item)) + 2)
    text = json.dumps({"rows": [item] * count + [BASE], "after": 1}).encode()
    (found,) = find_pointers(text, KNOWN)
    assert isinstance(found, Pointer)
    assert found.location == ("rows", count)
    assert found.span == Span(text.index(b'"make'), len(BASE) + 2)


def test_as_many_candidates_as_there_are_items_are_looked_at_once_each() -> None:
    ids = [f"order-{UUID(int=n << 70 | 4 << 76 | 8 << 60, version=4)}" for n in range(20_000)]
    assert len(find_pointers(json.dumps({"ids": ids}).encode(), KNOWN)) == 20_000


@pytest.mark.parametrize(
    ("text", "path", "why"),
    [
        (f"{BASE}/a", f"{BASE}/a", "it is a memory path"),
        (FOREIGN, FOREIGN, "it is a path of a tool that this gateway does not serve"),
        (f"literal:{BASE}", None, "it is text: it has the prefix `literal:`"),
        (BASE[:-4], None, "it is rejected: it resembles a path, but is malformed"),
        (f"see {BASE}", None, "it is text: it contains a path or something like one"),
    ],
)
def test_the_log_explains_why_a_string_is_or_is_not_a_path(text: str, path: str | None, why: str) -> None:
    [(at, found, reason)] = explain_strings(json.dumps({"x": ["y", text]}).encode(), KNOWN)
    assert (at, found, reason.startswith(why)) == (("x", 1), path, True)


def test_strings_that_resemble_no_path_are_not_explained() -> None:
    assert explain_strings(b'{"x": "plain", "y": 1}', KNOWN) == ()


@pytest.mark.timeout(20)
def test_a_million_prefixes_are_removed_in_linear_time() -> None:
    found = pointer_of("literal:" * 1_000_000 + BASE)
    assert isinstance(found, EscapedPath)
    assert found.text == "literal:" * 999_999 + BASE


@pytest.mark.parametrize(
    "text", [f"see {BASE}", f"Dear all,\n\n{BASE}\n\nBest", f"<memory>{BASE}</memory>", f"{BASE}\n{BASE}"]
)
def test_a_path_within_a_longer_text_is_found_there(text: str) -> None:
    assert find_embedded_bases(json.dumps({"x": ["y", text]}).encode(), KNOWN) == ((("x", 1), BASE),)


@pytest.mark.parametrize(
    "text",
    [
        BASE,
        f"literal:{BASE}",
        f"{BASE}.",
        f"see {FOREIGN}",
        f"{BASE} and {OTHER}",
        f"see {BASE}" + " " * 70_000,
        "plain",
    ],
)
def test_paths_several_paths_and_long_texts_are_not_texts_with_a_path(text: str) -> None:
    assert find_embedded_bases(json.dumps({"x": text}).encode(), KNOWN) == ()


def test_texts_that_may_have_been_cut_are_found_at_any_depth() -> None:
    arguments = json.dumps({"a": "one...", "b": [{"c": "é... two..."}], "d": "none", "e": "literal:three..."}).encode()
    assert sorted(find_cut_texts(arguments)) == [(("a",), "one..."), (("b", 0, "c"), "é... two...")]
    assert may_copy_notice(memoryview(arguments))


def test_long_texts_and_texts_without_a_mark_are_not_searched_for_previews() -> None:
    arguments = json.dumps({"a": f"one...{' ' * 70_000}", "b": "two.."}).encode()
    assert [*find_cut_texts(arguments)] == []
    assert not may_copy_notice(b'{"b":"two.."}')
