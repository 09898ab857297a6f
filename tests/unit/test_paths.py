"""The grammar of memory paths, and the ways in which models change them."""

import json
import pickle
from typing import Any
from uuid import UUID, uuid4

import pytest
from computing import least_seconds
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_mirror.paths import (
    TEXT_USE,
    FixedBases,
    MemoryPath,
    NewBases,
    cut_for_candidates,
    find_bases,
    find_candidate_offsets,
    find_copied_notice,
    find_notice_bases,
    has_candidates,
    is_pathless_notice,
    is_whole_notice,
    list_bases,
    new_base,
    parse_path,
    parse_uri,
    parse_wrapped_path,
    read_steps,
    slug_of,
    slug_of_near_miss,
    strip_wrapping,
    tool_slug,
)

ID = "3f2b8c1e-9d4a-4e7b-8f21-0a1b2c3d4e5f"
BASE = f"make_grid-{ID}"
KEYS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["", "/", "~", "~1", "a/b~c", "0"]
)
UUIDS = st.uuids(version=4)


@given(st.text(max_size=120), UUIDS, st.lists(KEYS, max_size=4))
@example("", UUID(ID), [""])
@example("---", UUID(ID), ["/", "~01"])
def test_a_path_reads_back_as_it_was_written(tool: str, identity: UUID, tokens: list[str]) -> None:
    base = new_base(tool, identity)
    path = MemoryPath(base, tuple(tokens))
    assert parse_path(str(path)) == path
    assert slug_of(base) == tool_slug(tool)


@given(st.text(max_size=200))
def test_a_label_is_safe_short_and_the_same_each_time(tool: str) -> None:
    label = tool_slug(tool)
    assert 1 <= len(label) <= 80
    assert set(label) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
    assert tool_slug(label) == label


@pytest.mark.parametrize(
    "text",
    [
        *("", "make_grid", ID, f"-{ID}", f"{BASE}.", f"{BASE} ", f" {BASE}", f"{BASE}\n", f"{BASE}#/a", f"a b-{ID}"),
        *(f"\u00e9-{ID}", f"make_grid-{ID.upper()}", f"make_grid-{ID[:14]}5{ID[15:]}", f"make_grid{ID}"),
    ],
)
def test_only_exact_paths_are_parsed(text: str) -> None:
    assert parse_path(text) is None


@pytest.mark.parametrize(
    "around",
    [
        "{}",
        " {}\n",
        '"{}"',
        "'{}'",
        "`{}`",
        "memory://{}",
        '`"memory://{}"`',
        '"memory:// {}"',
        "mcp-mirror://{}",
        "memory:{}",
    ],
)
def test_wrapping_around_a_path_is_removed(around: str) -> None:
    assert strip_wrapping(around.format(f"{BASE}/a")) == f"{BASE}/a"
    assert (path := parse_wrapped_path(around.format(f"{BASE}/a"))) is not None
    assert path.without_wrapping == MemoryPath(BASE, ("a",))
    assert parse_wrapped_path(around.format(BASE)) == MemoryPath(BASE)
    assert parse_wrapped_path(around.format(f"/{BASE}/a")) == MemoryPath(BASE, ("a",))


@pytest.mark.parametrize("key", ["a ", 'say "a"', "\n", "`a` '"])
def test_what_only_ends_a_path_may_be_the_end_of_its_last_key(key: str) -> None:
    assert parse_wrapped_path(f"{BASE}/x /{key}") == MemoryPath(BASE, ("x ", key))
    assert parse_wrapped_path(f"{BASE}/~#3{key[-1]}") == MemoryPath(BASE, (3,))
    assert MemoryPath(BASE, ("x ", key)).without_wrapping == MemoryPath(BASE, ("x ", key.rstrip(" \n'\"`")))


def test_a_path_without_a_key_at_its_end_has_no_wrapping() -> None:
    for path in (MemoryPath(BASE), MemoryPath(BASE, ("a ", 3))):
        assert path.without_wrapping == path


@pytest.mark.parametrize(
    "text",
    [
        *(
            f"make_grid-{ID[:-1]}",
            f"make_grid-{ID}0",
            f"make_grid-{ID.upper()}",
            f"make_grid-{ID[:23]}",
            f"make_grid-{ID[:18]}",
        ),
        *(f"make_grid-{ID[:13]}", f"make_grid-{ID[:13]}...", f"make_grid-{ID[:8]}...", f"make_grid-{ID[:8]}\u2026"),
        *(f"{BASE}.", f"{BASE}.raw_grid", f"{BASE}[0]", f"{BASE}#/a", f"{{{{{BASE}}}}}", f"<{BASE}>", f"${BASE}"),
        *(f'["{BASE}"]', f'[ "{BASE}" ]', f'[\n  "{BASE}"\n]\n', f"( {BASE}; )"),
        *(f"make_grid-{ID[:14]}9{ID[15:]}", f"make_grid-{ID[:9]}zzzz{ID[13:]}", f"make_grid-{ID[:-1]}/some key/b"),
        *(f"{BASE}['some key'].b", f"{BASE}[?a == 'b c'].d"),
        *(f"make_grid-{ID[:24]}", f"make_grid-{ID[:25]}", f"path: {BASE}", f'memory_path="{BASE}/a"', f"Path = {BASE}"),
    ],
)
def test_a_miscopied_path_is_recognized(text: str) -> None:
    assert parse_path(text) is None
    assert slug_of_near_miss(text) == "make_grid"
    assert find_candidate_offsets(json.dumps(text).encode())


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "make_grid",
            "report-20261101-1200",
            "report-20261101-final.csv",
            "git-facade-pattern",
            "git-feedback-branch",
        ),
        *(
            "make_grid-1",
            "a-123456",
            "https://x.example/a-1234567",
            f"see {BASE}",
            f"{BASE} and more",
            f"{BASE}['key'] and more",
            "2026-11-01",
            "a-b-c",
        ),
        *("build-20261101-1200-20261101", "x-decade-face-bead", "version-1.2.3-rc1", "tool-abcdefab-1 is the one"),
    ],
)
def test_a_text_of_its_own_is_not_taken_for_a_mistyped_path(text: str) -> None:
    assert slug_of_near_miss(text) is None


@given(UUIDS, st.sampled_from(["a", "make_grid", "x-1", "T0"]), st.booleans(), st.data())
def test_every_path_in_json_is_a_candidate(
    identity: UUID,
    tool: str,
    ascii_only: bool,  # noqa: FBT001
    data: st.DataObject,
) -> None:
    text = str(MemoryPath(new_base(tool, identity), (data.draw(KEYS),)))
    escaped = data.draw(st.sets(st.integers(0, len(text) - 1), max_size=3))
    spelled = "".join(
        f"\\u{ord(c):04x}" if at in escaped and ord(c) < 128 else json.dumps(c, ensure_ascii=ascii_only)[1:-1]
        for at, c in enumerate(text)
    )
    blob = f'["before", "{spelled}", 1]'.encode()
    assert json.loads(blob)[1] == text
    (start, stop) = (blob.index(b'"', 10), blob.rindex(b'"'))
    found = find_candidate_offsets(memoryview(blob))
    assert found == sorted(found)
    assert any(start < offset < stop for offset in found)


@pytest.mark.parametrize("text", ["[0.12345678901, -1.5e-05, -123456]", '["2026-11-01T12:00:00", "well-known"]', "{}"])
def test_numbers_dates_and_words_are_not_candidates(text: str) -> None:
    assert find_candidate_offsets(text.encode()) == []


@pytest.mark.parametrize("before", [0, 100, (1 << 20) - 20, (1 << 20) - 12, (1 << 20) - 1, (1 << 20) + 5, 3 << 20])
def test_a_path_anywhere_in_a_long_text_is_in_one_of_its_parts(before: int) -> None:
    text = b'"' + b"x" * before
    assert not any(map(has_candidates, cut_for_candidates(text + b'"')))
    parts = list(cut_for_candidates(text + b" " + BASE.encode() + b" " + b"y" * 10 + b'"'))
    assert any(map(has_candidates, parts))
    assert max(map(len, parts)) < 1_100_000


NOT_PREVIEW = "Use the path as the argument of the next tool, not the preview."
OTHER = f"other-{ID}"


@pytest.mark.parametrize(
    ("text", "bases"),
    [
        (f'"{BASE}"\nThis path stands for object 5 B.\nUse it as the argument of the next tool.', {BASE}),
        (f'"{BASE}"\nThis path (5 B) stands for the result.\nUse it as the argument of the next tool.', {BASE}),
        (f'"{BASE}"\nThis path stands for the result. Preview, not the result: 5 B\n| x\n{NOT_PREVIEW}', {BASE}),
        (f'"{BASE}"\nThis path stands for 5 B.\n{OTHER}\nUse it as the argument of the next tool.', {BASE, OTHER}),
        (f'The function f was executed with {OTHER}.\nIt is "{BASE}".\nGive it as input to another function.', {BASE}),
        (f'The function f gave "{BASE}", use it as input to another function.', {BASE}),
        (f'{{"result": "{BASE}", "use": "x"}}', {BASE}),
        (f'{{"memory_path": "{BASE}", "pruned": "x"}}', {BASE}),
        (f'{{"result": "see {BASE}"}}', set()),
        (f'See "{BASE}"\nThis path stands for 5 B.\nUse it as the argument of the next tool.', set()),
        (f'"{BASE}"\nThis path stands for 5 B.\nUse it', set()),
        (f'"{BASE}" is what I give as the argument of the next tool.', set()),
        (f'a value\nwith {OTHER}\nPath: "{BASE}"\nResult ends.', {BASE}),
        (f'Path: "{BASE}"\nResult ends.', {BASE}),
        (
            f'a value\nPath: "{BASE}"\ntext_path: "{OTHER}"\n"{BASE}/0" image/png, 5 B\nand 2 more\nResult ends.',
            {BASE},
        ),
        (f'"{BASE}"\n\na text\nwith {OTHER}\n\n{TEXT_USE}\nResult ends.', {BASE}),
        (f'"{BASE}/data/a text"\n\na text\n\nThe result also has "n" 1.\n{TEXT_USE}\nResult ends.', {BASE}),
        (f'"{BASE}/stdout"\nThis path stands for text, 9 kB.\nUse it as the argument of the next tool.', {BASE}),
        (f'a\n\nPath: "{BASE}"\nThis path stands for object: "n" 1.\ntext_path: "{OTHER}"\nResult ends.', {BASE}),
        (f"a text\n\n{TEXT_USE}\nResult ends.", set()),
        (f'a value, Path: "{BASE}"\nResult ends.', set()),
        (f'Path: "{BASE}"\nResult ends.\nmore', set()),
        (f'Path: "{BASE}"\nResult ends.\nPath: "{OTHER}"\n', set()),
    ],
)
def test_the_bases_in_a_whole_notice_are_found(text: str, bases: set[str]) -> None:
    assert find_notice_bases(text) == bases
    assert is_whole_notice(text) or not bases


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("This path stands for the result. Preview, not the result: text\n| a\n" + NOT_PREVIEW, True),
        ("This path (9 kB of text) stands for the result.\nUse it as the argument of the next tool.", True),
        (f'"{BASE}"\nThis path stands for the result.\nUse it as the argument of the next tool.', False),
        (f"This path stands for {BASE}.\nUse it as the argument of the next tool.", False),
        ("This path stands for the result.", False),
        (TEXT_USE, True),
        (f"{TEXT_USE}\nResult ends.", True),
        (f"I see: {TEXT_USE}", False),
        ("I see: This path stands for the result.\nUse it as the argument of the next tool.", False),
    ],
)
def test_a_notice_without_its_path_is_recognized(text: str, expected: bool) -> None:  # noqa: FBT001
    assert is_pathless_notice(text) is expected
    assert bool(find_candidate_offsets(json.dumps(text).encode())) or not expected


@pytest.mark.parametrize(
    ("text", "copied"),
    [
        ("5 rows\n| a\n| b\n| c", "near"),
        (" 5 rows\n| a\n| b\n| c\n", "near"),
        ("5 rows\n| a\n| b\n| wrong", "near"),
        ("5 rows\n| a\n| wrong\n| wrong too", None),
        ("5 rows\n| a\n| both", None),
        ("6 rows\n| a\n| b\n| c", None),
    ],
)
def test_a_copied_notice_is_the_one_that_is_most_similar(text: str, copied: str | None) -> None:
    notices = {"far": "5 rows\n| a\n| y\n| both", "near": "5 rows\n| a\n| b\n| c\n| both", "none": "7 rows\n| d\n| e"}
    assert find_copied_notice(text, notices) == copied


@given(st.lists(st.tuples(st.sampled_from([" ", "\n", '"', ", x=", "/a "]), UUIDS)))
def test_every_base_in_a_text_is_found(parts: list[tuple[str, Any]]) -> None:
    text = "".join(f"{before}t-{identity}" for before, identity in parts)
    assert find_bases(text) >= {f"t-{identity}" for _, identity in parts[:1]}
    assert all(f"t-{identity}" in " ".join(find_bases(text)) for _, identity in parts)


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        (f"memory://{BASE}", BASE),
        (f"memory://{BASE}/a~1b/c%20d/0", f"{BASE}/a~1b/c d/0"),
        ("memory://knowledge-graph", None),
        ("memory://", None),
        (f"memory://{BASE}x", None),
        (f"file:///{BASE}", None),
        (BASE, None),
    ],
)
def test_only_a_memory_uri_with_a_whole_path_is_a_path(uri: str, path: str | None) -> None:
    found = parse_uri(uri)
    assert (found and str(found)) == path


@pytest.mark.timeout(20)
def test_long_texts_that_resemble_paths_are_read_in_linear_time() -> None:
    assert slug_of_near_miss("-" * 100_000 + "-123abc-12 and more") is None
    text = "gen-" + "85fdec44-" * 100_000
    assert slug_of_near_miss(text) is None
    assert least_seconds(lambda: slug_of_near_miss(text)) < 0.1  # 0.4 s if each place is tried
    assert slug_of_near_miss("-123abc-12" * 10_000 + "[" * 100_000 + " and more") is None
    assert slug_of_near_miss(f"{BASE}{'] ' * 100_000} and more") is None
    assert is_pathless_notice("This path stands for " + "a" * 300_000 + " next tool.")
    assert find_bases("a" * 300_000 + " " + "-" * 300_000 + BASE) == {"-" * 300_000 + BASE}


@pytest.mark.parametrize(
    ("part", "tokens"),
    [
        *((".rows", ("rows",)), ("[0].name", ("0", "name")), (".0.Name", ("0", "Name")), (".[5].tags", ("5", "tags"))),
        *(("['my key']", ("my key",)), ('["a/b"][1]', ("a/b", "1")), ('."x y".z', ("x y", "z"))),
        *(("#/a~1b/0", ("a/b", "0")), ("[0]/a~1b", ("0", "a/b")), ("\\rows\\0", ("rows", "0"))),
    ],
)
def test_a_part_in_another_syntax_is_read(part: str, tokens: tuple[str, ...]) -> None:
    assert parse_wrapped_path(f"`{BASE}{part}`") == MemoryPath(BASE, tokens)


@pytest.mark.parametrize(
    ("part", "tokens"),
    [
        *(("[*].name", ("[*].name",)), ("[?a == 'b']", ("[?a == 'b']",)), ("[1:2]", ("[1:2]",)), ("[-1]", ("[-1]",))),
        *((".rows[*].id", ("rows", "[*].id")), ("[0].a.[:3]", ("0", "a", ".[:3]"))),
    ],
)
def test_an_expression_at_the_end_of_a_part_is_its_last_key(part: str, tokens: tuple[str, ...]) -> None:
    assert parse_wrapped_path(f"{BASE}{part}") == MemoryPath(BASE, tokens)
    assert read_steps(part) == ()
    assert read_steps(".rows[0]") == ("rows", "0")


@pytest.mark.parametrize("part", [".length()", ".", ".a b", ".a" * 200, "[*] and more", "[1:2", f"[*].{'a' * 300}"])
def test_text_after_a_path_is_not_a_part_of_it(part: str) -> None:
    assert parse_wrapped_path(f"{BASE}{part}") is None


def test_a_path_has_no_more_steps_than_values_have_levels() -> None:
    path = parse_path(f"{BASE}/a" + "/b" * 1_000_000)
    assert path is not None
    assert (len(path.tokens), path.tokens[:2], path.tokens[-1]) == (1_000, ("a", "b"), "b" + "/b" * 999_001)
    assert tool_slug("a" + "/" * 100 + "b" * 1_000_000) == "a_" + "b" * 78


def test_new_bases_are_made_when_they_are_needed_and_stay_the_same() -> None:
    made: list[UUID] = []

    def new_id() -> UUID:
        made.append(uuid4())
        return made[-1]

    bases = NewBases("read file", new_id)
    assert not made
    assert bases.companion == bases.companion == f"read_file-{made[0]}"
    assert bases.value == bases.value == f"read_file-{made[1]}"
    assert len(made) == 2


def test_a_worker_process_gets_the_bases_of_its_gateway() -> None:
    bases = NewBases("read_file", uuid4)
    sent = pickle.loads(pickle.dumps(bases))  # noqa: S301  # our own
    assert sent == FixedBases(bases.value, bases.companion)


def test_bases_are_listed_once_in_the_order_of_the_text() -> None:
    other = f"other-{ID}"
    assert list_bases(f"see {other}, {BASE} and {other}") == [other, BASE]
