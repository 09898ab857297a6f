"""A late item or line of a large value is found without reading everything before it again."""

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from mcp_mirror.errors import ToolError
from mcp_mirror.payload.json_spans import Miss, item, locate, trim
from mcp_mirror.query.edits import Patch, join_pieces
from mcp_mirror.query.indexes import count, find_item, keep_indexes
from mcp_mirror.query.shape import Shape
from mcp_mirror.query.windows import Budget, Unit, Window
from mcp_mirror.types import FileSpan, Span

BUDGET = Budget(1000, 4000, lambda text: len(text) // 3)


@cache
def rows() -> list[Any]:
    return [{"id": at, "name": f"user {at}", "tags": ["a", "b"][: at % 3]} for at in range(100_000)]


@cache
def array() -> bytes:
    return json.dumps(rows()).encode()


@cache
def lines() -> list[str]:
    return [f'line {at}, größe \\ "{at}"' for at in range(150_000)]


@cache
def long_text() -> str:
    return "\n".join(lines())


class Counted(bytes):
    """Bytes that count how many of them are read in slices."""

    read = 0

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        if isinstance(key, slice):
            Counted.read += len(found)
        return found


def never() -> bool:
    return False


def kept(name: str, size: int) -> FileSpan:
    return FileSpan(name, Span(0, size))


def window(by: Unit, offset: int, limit: int = 2) -> Window:
    return Window(by, offset, limit, BUDGET)


@pytest.mark.parametrize("at", [0, 1, 7, 50_000, 99_999])
@pytest.mark.parametrize("lead", [b"", b'  {"rows": '])
def test_an_indexed_item_is_the_item_of_a_search(at: int, lead: bytes) -> None:
    blob = lead + array() + b"  "
    span = Span(len(lead), len(array()))
    assert find_item(blob, span, at) == item(blob, span, at)
    with keep_indexes(kept(f"items {lead!r}", len(blob)), blob):
        assert find_item(blob, span, at) == find_item(blob, span, at) == item(blob, span, at)


ARRAYS: dict[str, Callable[[], list[Any]]] = {
    "rows": rows,
    "nothing": list,
    "one": lambda: [1],
    "numbers": lambda: [at / 7 for at in range(200_000)],
    "a long text": lambda: ["x" * 3_000_000, 1],
    "arrays": lambda: [[[]] * 2],
}


@pytest.mark.parametrize("name", ARRAYS)
def test_an_indexed_array_has_its_length(name: str) -> None:
    values = ARRAYS[name]()
    blob = json.dumps(values).encode()
    span = Span(0, len(blob))
    assert count(blob, span) == len(values) == find_item(blob, span, len(values))


def test_an_array_without_an_index_is_searched_item_by_item() -> None:
    values = [*([at, str(at), None][at % 3] for at in range(400_000)), {}]
    blob = json.dumps(values).encode()
    with keep_indexes(kept("irregular", len(blob)), blob):
        for _ in range(2):
            found = find_item(blob, Span(0, len(blob)), len(values) - 2)
            assert isinstance(found, Span)
            assert json.loads(blob[found.start : found.stop]) == values[-2]
    assert count(blob, Span(0, len(blob))) == len(values)


def test_an_item_at_the_end_of_the_part_without_an_index_is_whole() -> None:
    blob = b"[%b]" % b",".join(b"%d" % at for at in range(1_000_000, 1_400_000))
    for at in range(262_140, 262_146):
        assert find_item(blob, Span(0, len(blob)), at) == item(blob, Span(0, len(blob)), at)


def test_a_pointer_finds_a_late_item_by_an_index() -> None:
    blob = b'{"rows":' + array() + b"}"
    found = locate(blob, ("rows", "99999", "name"), find_item=find_item)
    assert found == locate(blob, ("rows", "99999", "name"))
    assert locate(blob, ("rows", "100000"), find_item=find_item) == Miss(1, "array", length=len(rows()))


def test_a_kept_index_spares_reading_an_array_again() -> None:
    blob = Counted(array())
    with keep_indexes(kept("spared items", len(blob)), blob):
        find_item(blob, Span(0, len(blob)), 90_000)
        Counted.read = 0
        found = find_item(blob, Span(0, len(blob)), 99_998)
        assert count(blob, Span(0, len(blob))) == len(rows())
    assert isinstance(found, Span)
    assert json.loads(array()[found.start : found.stop]) == rows()[99_998]
    assert Counted.read == 0


@pytest.mark.parametrize("dump", [json.dumps, lambda text: json.dumps(text, ensure_ascii=False)])
@pytest.mark.parametrize("by", ["lines", "chars"])
def test_windows_of_an_indexed_text_show_the_same_in_any_order(dump: Callable[[Any], str], by: Unit) -> None:
    blob = f" {dump(long_text())} ".encode()
    units: Any = lines() if by == "lines" else long_text()
    with keep_indexes(kept(f"{by} {dump('é')}", len(blob)), blob):
        for offset in (0, 140_000, 3, 60_000, len(units) - 2, -2, -100_000, 140_000):
            shown = window(by, offset)(blob, never)
            start = offset % len(units)
            wanted = "\n".join(units[start : start + 2]) if by == "lines" else long_text()[start : start + 2]
            assert shown.startswith(wanted)
            assert shown == window(by, offset)(bytes(blob), never)
        assert window(by, len(units))(blob, never) == "(nothing more)"
        with pytest.raises(ToolError, match=f"there are {len(units):,}"):
            window(by, len(units) + 1)(blob, never)


def test_a_kept_index_spares_reading_a_text_again() -> None:
    blob = Counted(json.dumps(long_text()).encode())
    with keep_indexes(kept("spared lines", len(blob)), blob):
        window("lines", -1)(blob, never)
        Counted.read = 0
        assert window("lines", -1)(blob, never) == lines()[-1]
        assert 0 < Counted.read < 3 << 20


def test_windows_of_json_text_by_line_are_indexed_too() -> None:
    blob = json.dumps(rows(), indent=1).encode()
    shown = blob.decode().split("\n")
    with keep_indexes(kept("json lines", len(blob)), blob):
        for offset in (len(shown) - 3, 400_000, 0):
            assert window("lines", offset)(blob, never).startswith("\n".join(shown[offset : offset + 2]))


@pytest.mark.parametrize(("blob", "shown"), [(b'""', "(nothing more)"), (b'"a"', "a"), (b'"a\\n"', "a")])
def test_windows_of_small_texts_by_line(blob: bytes, shown: str) -> None:
    assert window("lines", 0)(blob, never) == shown
    assert window("lines", -1)(blob, never) == shown


def test_later_queries_continue_an_index_that_the_time_limit_cut_off() -> None:
    blob = json.dumps(long_text() * 3).encode()
    calls = iter(range(1000))
    with keep_indexes(kept("late", len(blob)), blob):
        with pytest.raises(ToolError, match="takes longer"):
            window("lines", -1)(blob, lambda: next(calls) >= 3)
        assert window("lines", -1)(blob, never) == lines()[-1]
        with pytest.raises(ToolError, match="takes longer"):
            find_item(array(), Span(0, len(array())), 99_999, lambda: True)


def test_only_the_latest_indexes_are_kept() -> None:
    blob, small = Counted(array()), b'"a"'
    with keep_indexes(kept("the oldest", len(blob)), blob):
        find_item(blob, Span(0, len(blob)), 99_999)
    for number in range(64):
        with keep_indexes(kept(f"later {number}", 3), small):
            window("lines", 0)(small, never)
    Counted.read = 0
    with keep_indexes(kept("the oldest", len(blob)), blob):
        find_item(blob, Span(0, len(blob)), 99_999)
    assert Counted.read >= len(array())


@pytest.mark.parametrize("added", [["a", "b", "c"], [[0], [1, 2]], [[0, 1], [2]] * 99_999])
def test_an_edit_of_an_added_array_does_not_use_the_index_of_the_value(added: list[Any]) -> None:
    operations = [
        {"op": "replace", "path": "/99000/tags", "value": added},
        {"op": "replace", "path": "/99000/tags/1", "value": None},
        {"op": "remove", "path": f"/99000/tags/{len(added) - 1}"},
    ]
    blob = array()
    with keep_indexes(kept("edited", len(blob)), blob):
        for _ in range(2):
            edited = b"".join(join_pieces(blob, Patch(json.dumps(operations).encode())(blob, never)))
            expected = [added[0], None, *added[2:]][:-1]
            assert json.loads(edited)[99_000] == {**rows()[99_000], "tags": expected}


def test_late_items_are_edited_and_counted_by_an_index() -> None:
    patch = Patch(b'[{"op":"replace","path":"/99998/id","value":-1},{"op":"remove","path":"/99999"}]')
    edited = json.loads(b"".join(join_pieces(array(), patch(array(), never))))
    assert edited == [*rows()[:-2], {**rows()[-2], "id": -1}]
    assert Shape(BUDGET)(array(), never).startswith("array, 100,000 items")
    assert window("items", -1)(array(), never) == f"99999: {json.dumps(rows()[-1])}"
    assert trim(array()) == Span(0, len(array()))
