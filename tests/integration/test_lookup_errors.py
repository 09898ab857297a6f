"""Errors for paths without a stored value."""

import re
from collections.abc import Callable, Sequence
from contextlib import aclosing
from functools import cache
from pathlib import Path
from time import process_time
from typing import Any
from uuid import UUID

import msgspec
import pytest

from mcp_mirror.core.resolve import Pointer
from mcp_mirror.errors import ToolError
from mcp_mirror.memory.flow_guard import ArgumentLoader
from mcp_mirror.memory.lookup_errors import ErrorContent, unknown_path_error
from mcp_mirror.memory.memory import Memory
from mcp_mirror.memory.path_advice import PathAdvice, advise_query
from mcp_mirror.memory.tools.lookup import find_value, read_path
from mcp_mirror.memory.value_lookup import look_up
from mcp_mirror.memory.value_writer import ValueWriter
from mcp_mirror.paths import MemoryPath, new_base, parse_wrapped_path
from mcp_mirror.payload.json_spans import members, trim
from mcp_mirror.payload.scans import scan_array
from mcp_mirror.payload.spool import Spool
from mcp_mirror.security.flows import Flows
from mcp_mirror.settings.policies import WirePolicy
from mcp_mirror.settings.store import StorePolicy
from mcp_mirror.stores.memory import MemoryStore
from mcp_mirror.system.child_watchdog import ChildWatchdog
from mcp_mirror.types import Descriptor, FileSpan, Member, Provenance, Span
from mcp_mirror.workers.frames import FrameScanner

GRID = "make_grid-3f2b8c1e-9d4a-4e7b-8f21-0a1b2c3d4e5f"
SHEET = "tika-9c1d4f0e-6a55-4b8e-9d0a-0f3b2f6f6a11"
MADE_UP = "make_grid-00000000-0000-4000-8000-000000000000"


def descriptor(base: str, created: float = 0.0) -> Descriptor:
    return Descriptor(base, "object", 1, 1, (), created, 2e9, Provenance("up", "tool", "0" * 64))


async def memory_of(bases: Sequence[str]) -> MemoryStore:
    """A memory that got these values in this order."""
    store = MemoryStore(StorePolicy(), lambda: 1e9, lambda: Path("/nonexistent"))
    for at, base in enumerate(bases):
        await store.put("me", descriptor(base, at), (b"1",))
    return store


async def answer(text: str, bases: Sequence[str]) -> str:
    return str(await unknown_path_error(await memory_of(bases), "me", text))


@pytest.mark.parametrize(
    ("text", "part"),
    [
        *((GRID[:-3], ""), (f"{GRID[:-3]}/grid/0", "/grid/0"), (GRID.upper(), ""), (GRID[:-2] + "00", "")),
        *((GRID[:-6] + GRID[-5:-7:-1] + GRID[-4:], ""), (f"<{GRID}>", ""), (f"see {GRID}", "")),
        *((f'["{GRID}/grid/0"]', "/grid/0"), (f'["{GRID}/a b", "{GRID}/c"]', "/a b"), (f"<{GRID}/a>", "/a")),
        *(
            (f"{GRID}#L3", ""),
            (f"{GRID}#L3-L9", ""),
            (f"{GRID}#10-20", ""),
            (f"{GRID}#Part 2", ""),
            (f"{GRID}:3-5", ""),
        ),
        *((f"{GRID[:-3]}/a]b", "/a]b"), (f"({GRID}/a]b)", "/a")),
        *((GRID.replace("make_grid", "makegrid"), ""), (GRID.partition("-")[2], ""), (f"x{GRID}/{'a' * 300}", "")),
    ],
)
async def test_a_miscopied_path_is_answered_with_the_path_to_try_again_with(text: str, part: str) -> None:
    error = await answer(text, [GRID, new_base("make_grid", UUID(int=7, version=4)), SHEET])
    assert error.endswith(f'. The path is not exact: call again with "{GRID}{part}".')


@pytest.mark.parametrize("slug", ["make_grid", "makegrid", "Make_Grid", "zake_grid"])
async def test_a_miscopied_path_is_found_among_many_newer_ones(slug: str) -> None:
    newer = [new_base(tool, UUID(int=at << 64, version=4)) for tool in ("make_grid", "tool") for at in range(70)]
    error = await answer(f"{slug}{GRID[9:-2]}00/x", [GRID, *newer])
    assert error.endswith(f'. The path is not exact: call again with "{GRID}/x".')


@pytest.mark.parametrize("text", [MADE_UP, f"Make_Grid-{MADE_UP[10:]}/a", f"{MADE_UP}.name"])
async def test_a_path_with_a_name_like_the_callers_own_is_answered_with_that(text: str) -> None:
    assert f'Nearest are "{GRID}": call again with one of these paths' in await answer(text, [GRID, SHEET])


@pytest.mark.parametrize(
    ("part", "written"),
    [
        *(("[0].name", "/0/name"), (".grid", "/grid"), (".0.Name", "/0/Name"), ("#/0", "/0"), ("\\0", "/0")),
        *(("['my key']", "/my key"), ('["a/b"][1]', "/a~1b/1"), ('."x y".z', "/x y/z"), ("[0]/a~1b", "/0/a~1b")),
    ],
)
async def test_a_part_in_another_syntax_is_answered_with_its_path(part: str, written: str) -> None:
    assert (await answer(GRID + part, [GRID, SHEET])).endswith(f'. Write it as "{GRID}{written}".')
    assert (await answer(GRID.upper() + part, [GRID, SHEET])).endswith(f'. Write it as "{GRID}{written}".')


@pytest.mark.parametrize("part", ["[*].name", "[?a == 'b']", "[1:2]", "[-1]", ".length()", ".a" * 200])
async def test_an_expression_after_a_path_is_answered_with_the_syntax_of_paths(part: str) -> None:
    wanted = f'. A part of a value follows a slash, such as "{GRID}/0" or "{GRID}/name".'
    assert wanted in await answer(GRID + part, [GRID, SHEET])
    assert wanted not in await answer(f"{GRID}.", [GRID]) + await answer(f"[{GRID}]", [GRID])


@pytest.mark.parametrize("text", ["zzz", "", "the grid from above", "-", "x-11111111-1111-4111-8111-111111111111"])
async def test_a_path_that_is_like_none_is_answered_with_the_newest(text: str) -> None:
    bases = [new_base("tool", UUID(int=number, version=4)) for number in range(5)]
    listed = ", ".join(f'"{base}"' for base in (SHEET, bases[4], bases[3]))
    assert f"Newest are {listed}: call again with one of these paths" in await answer(text, [*bases, SHEET])


async def test_an_empty_memory_is_reported() -> None:
    assert (
        await answer("the grid", [])
        == 'No value is stored under "the grid". Nothing is stored yet: first call the tool that gets the data.'
    )


@pytest.mark.parametrize("part", ["", "/grid/0"])
async def test_the_error_of_a_whole_path_says_that_its_value_may_be_deleted(part: str) -> None:
    store = await memory_of([GRID, SHEET])
    assert await store.delete("me", GRID)
    cause = f'No value is stored under "{GRID}{part}". It was deleted or has expired, or the path is not exact. '
    error = str(await unknown_path_error(store, "me", GRID + part))
    assert error == f'{cause}Newest are "{SHEET}": call again with one of these paths, or first get the value again.'
    await store.delete("me", SHEET)
    error = str(await unknown_path_error(store, "me", GRID + part))
    assert error == f"{cause}Nothing is stored yet: first call the tool that gets the data."
    assert "deleted" not in str(await unknown_path_error(store, "me", GRID[:-3]))


NOTICE = (
    f'"{GRID}"\nThis path stands for object 5 B.\nThe same result\'s text:\n{SHEET}\n'
    "Use the path as the argument of the next tool."
)


async def test_a_notice_of_two_paths_is_answered_with_both() -> None:
    message = f'This is a whole notice, which names several paths. Give only one: "{GRID}" or "{SHEET}".'
    assert await answer(NOTICE, [GRID, SHEET]) == message


@pytest.mark.parametrize("text", [f'["{GRID}","{SHEET}/a"]', f'["{GRID}", "{SHEET}/a"]', f"{GRID} and {SHEET}"])
async def test_a_text_of_two_paths_is_answered_with_both(text: str) -> None:
    assert await answer(text, [GRID, SHEET]) == f'This text names several paths. Give only one: "{GRID}" or "{SHEET}".'


async def test_errors_are_quick_with_ten_thousand_values_and_a_long_text() -> None:
    store = await memory_of([new_base("tool", UUID(int=number << 64, version=4)) for number in range(10_000)])
    started = process_time()
    await unknown_path_error(store, "me", f"{GRID}{'0' * 1_000_000}")
    assert process_time() - started < 4


async def test_a_notice_of_very_many_paths_is_answered_quickly() -> None:
    bases = [new_base("tool", UUID(int=(7919 * number) << 96, version=4)) for number in range(30_000)]
    text = f"The function x\n{' '.join(bases)} as input to another function."
    started = process_time()
    error = await answer(text, [GRID])
    assert process_time() - started < 2  # before: 4
    assert error.endswith(f'Give only one: "{bases[0]}" or "{bases[1]}" or "{bases[2]}".')


async def test_a_pasted_notice_resolves_to_its_value_not_to_its_input() -> None:
    notice = (
        f'The function f was executed with the input {{"a":"{SHEET}"}}.\n'
        f'The output was stored in memory under the path "{GRID}".\n'
        "Give a path, exactly as it is written, as input to another function."
    )
    store = MemoryStore(StorePolicy(), lambda: 1e9, lambda: Path("/nonexistent"))
    await store.put("me", msgspec.structs.replace(descriptor(GRID), kind="array", size=3), (b"[7]",))
    path = read_path(notice)
    assert path is not None
    nowhere: Any = None  # nothing here is scanned by another process
    found_value = await look_up(store, nowhere, "me", path)
    assert found_value is not None
    assert found_value.blob == b"[7]"


async def test_a_value_that_a_call_holds_has_no_index_of_its_members(memory_over: Callable[..., Memory]) -> None:
    """Of fifty calls that wait, the indexes of objects with 10,000 keys would take 100 MB."""
    store = MemoryStore(StorePolicy(), lambda: 1e9, lambda: Path("/nonexistent"))
    indexed = msgspec.structs.replace(descriptor(GRID), size=7, members=(Member("a", Span(5, 1)),))
    await store.put("me", indexed, (b'{"a":7}',))
    memory, pointer = memory_over(store), Pointer(Span(0, 0), ("grid",), GRID, MemoryPath(GRID), is_known=True)
    loader = ArgumentLoader(
        memory.services.writer, memory.services.scanner, memory.guard("me", "total_mirrored"), memory.can_query
    )
    loaded = await loader.load((pointer,), await loader.describe((pointer,)))
    held = [await find_value(memory, "me", GRID, "memory_query"), loaded[pointer]]
    assert [(found.blob, found.descriptor.members) for found in held] == [(b'{"a":7}', ())] * 2
    assert (await find_value(memory, "me", f"{GRID}/a", "memory_query")).blob == b"7"


class Fleeting(MemoryStore):
    """A store that deletes a value right after it has described it."""

    async def file_of(self, namespace: str, base: str) -> FileSpan | None:
        place = await super().file_of(namespace, base)
        await self.delete(namespace, base)
        return place


@pytest.mark.parametrize("kind", [MemoryStore, Fleeting])
@pytest.mark.parametrize("place", ["in a file", "in memory"])
async def test_a_value_deleted_during_its_search_is_searched_to_the_end(
    kind: type[MemoryStore], place: str, tmp_path: Path
) -> None:
    blob = b'{"rows":[' + b"0," * 5_000_000 + b'{"last":7}]}'
    frame = tmp_path / "frame"
    frame.write_bytes(blob)
    file = FileSpan(str(frame), Span(0, len(blob))) if place == "in a file" else None
    store = kind(StorePolicy(), lambda: 1e9, lambda: tmp_path)
    await store.put("me", msgspec.structs.replace(descriptor(GRID), size=len(blob)), (blob,), file)
    with ChildWatchdog() as child_watchdog, Spool(WirePolicy()) as spool:
        async with aclosing(FrameScanner(child_watchdog, spool)) as scanner:
            found = await look_up(store, scanner, "me", MemoryPath(GRID, ("rows", "5000000", "last")))
    assert found is not None
    assert bytes(found.blob) == b"7"


class Recording(MemoryStore):
    """A store that records the spans that are read."""

    spans: list[Span | None]

    async def read(self, namespace: str, base: str, span: Span | None = None, known: Descriptor | None = None) -> Any:
        self.spans.append(span)
        return await super().read(namespace, base, span, known)


@cache
def indexed_value(key: str) -> tuple[Descriptor, bytes]:
    """An indexed array of 100,000 rows, or an object with it as the member `key`."""
    rows = b",".join(b'{"id": %d, "tags": ["a", "b"]}' % at for at in range(100_000))
    blob = b'{"total": 1, "%b": [%b], "last": 2}' % (key.encode(), rows) if key else b" [%b] " % rows
    scan = scan_array(blob, blob.index(b"["))
    assert scan is not None
    known = members(blob, trim(blob)) if key else ()
    described = msgspec.structs.replace(descriptor(GRID), size=len(blob), members=known, array=scan.as_index())
    return msgspec.structs.replace(described, kind="object" if key else "array"), blob


async def recording_store(key: str, kind: type[Recording] = Recording) -> tuple[Recording, bytes]:
    """A store with an indexed value."""
    described, blob = indexed_value(key)
    store = kind(StorePolicy(), lambda: 1e9, lambda: Path("/nonexistent"))
    store.spans = []
    await store.put("me", described, (blob,))
    return store, blob


@pytest.mark.parametrize("key", ["rows", ""])
@pytest.mark.parametrize("index", [0, 1, 50_000, 99_998, 99_999])
async def test_only_a_part_of_an_indexed_array_is_read_for_an_item(key: str, index: int) -> None:
    store, _ = await recording_store(key)
    nowhere: Any = None  # nothing here is scanned by another process
    prefix = (key,) if key else ()
    row = await look_up(store, nowhere, "me", MemoryPath(GRID, (*prefix, str(index))))
    tag = await look_up(store, nowhere, "me", MemoryPath(GRID, (*prefix, str(index), "tags", "1")))
    assert row is not None
    assert tag is not None
    assert (bytes(row.blob), row.kind) == (b'{"id": %d, "tags": ["a", "b"]}' % index, "object")
    assert (bytes(tag.blob), tag.kind) == (b'"b"', "text")
    assert all(span is not None and span.length < 1 << 19 for span in store.spans)


@pytest.mark.parametrize(
    "part", [".rows[5].tags[1]", "['rows'][5]['tags'][1]", "/rows[5].tags/1", "/rows/[5].tags[1]", "#/rows/5/tags/1"]
)
async def test_a_part_in_another_syntax_is_found(part: str) -> None:
    store, _ = await recording_store("rows")
    path = parse_wrapped_path(f"`{GRID}{part}`")
    assert path is not None
    with ChildWatchdog() as child_watchdog, Spool(WirePolicy()) as spool:
        async with aclosing(FrameScanner(child_watchdog, spool)) as scanner:
            found = await look_up(store, scanner, "me", path)
    assert found is not None
    assert (str(found.path), bytes(found.blob)) == (f"{GRID}/rows/5/tags/1", b'"b"')


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [
        (("rows", "100000"), "It is an array whose items are 0 to 99999."),
        (("rows", "01"), "has no key"),
        (("rows", "5", "none"), "Its keys are"),
        (("rows", "5", "tags", "2"), "It is an array whose items are 0 to 1."),
        (("none",), "Its keys are"),
        (("none[0]",), "Its keys are"),
        (("rows[5].none",), "Its keys are"),
        (("rows[5]", *("tags[0]" for _ in range(900))), "It is text, which has no keys"),
        (("rows", "[100000].tags"), "It is an array whose items are 0 to 99999."),
        (("rows[*]",), "Its keys are"),
        (("rows", "100000.id"), "It is an array whose items are 0 to 99999.$"),
        (("rows", "100000", "id"), "It is an array whose items are 0 to 99999.$"),
        (("rows", "id"), r"Query this path: the JMESPath expression \[\*\].id selects from its items.$"),
        (("rows", "*", "id"), r"JMESPath expression \[\*\].id selects from its items.$"),
        (("rows", "*", "1"), r"JMESPath expression \[\*\]\[1\] selects from its items.$"),
        (("rows", "5:7"), r"JMESPath expression \[5:7\] selects from its items.$"),
        (("rows", "-1", "tags"), r"JMESPath expression \[-1\].tags selects from its items.$"),
        (("rows", "[*].id"), r"JMESPath expression \[\*\].id selects from its items.$"),
        (("rows", ".[5:].tags[0]"), r"JMESPath expression \[5:\].tags\[0\] selects from its items.$"),
        (("rows", "[?id == 5]"), "It is an array whose items are 0 to 99999.$"),
    ],
)
async def test_an_error_for_a_path_in_an_indexed_array_is_that_of_a_search(tokens: Any, reason: str) -> None:
    store, blob = await recording_store("rows")
    plain, _ = await recording_store("rows")
    await plain.put(
        "me", msgspec.structs.replace(descriptor(GRID), size=len(blob), members=members(blob, trim(blob))), (blob,)
    )
    errors = []
    with ChildWatchdog() as child_watchdog, Spool(WirePolicy()) as spool:
        async with aclosing(FrameScanner(child_watchdog, spool)) as scanner:
            for one in (store, plain):
                for can_query in (True, False):
                    content = ErrorContent(advise_query=can_query)
                    with pytest.raises(ToolError, match=reason if can_query else None) as caught:
                        await look_up(one, scanner, "me", MemoryPath(GRID, tokens), content=content)
                    errors.append(str(caught.value))
    assert errors[:2] == errors[2:]
    assert "JMESPath" not in errors[1]


@pytest.mark.parametrize(
    ("tokens", "advice"),
    [
        (("nodes", "0", "a b"), f'"data". Pass a whole path, such as "{GRID}/data/all~1/nodes/0/a b".'),
        (("data", "nodes"), f'Its keys are "all~1". Pass a whole path, such as "{GRID}/data/all~1/nodes".'),
        (("data", "all/", "rows"), f'such as "{GRID}/data/all~1/nodes".'),
        (("a b",), f'such as "{GRID}/data".'),
    ],
)
async def test_the_error_of_a_key_within_wrapping_objects_names_its_path(tokens: tuple[str, ...], advice: str) -> None:
    store = await memory_of([])
    blob = msgspec.json.encode({"data": {"all/": {"nodes": [{"a b": "word " * 9}] * 20}}, "errors": []})
    described = msgspec.structs.replace(descriptor(GRID), size=len(blob), members=members(blob, trim(blob)))
    await store.put("me", described, (blob,))
    nowhere: Any = None
    with pytest.raises(ToolError) as caught:
        await look_up(store, nowhere, "me", MemoryPath(GRID, tokens))
    assert str(caught.value).endswith(advice)


KEYS = {f"key {at}": at for at in range(15)}


@pytest.mark.parametrize(
    ("value", "token", "has_preview", "advice"),
    [
        ([], "name", True, "It is an empty array."),
        ([1], "01", True, "It is an array whose items are 0 to 0."),
        ([1], "gr\u00f6\u00dfe", True, 'JMESPath expression [*]."gr\u00f6\u00dfe" selects from its items.'),
        ([1], "order-date", True, 'JMESPath expression [*]."order-date" selects from its items.'),
        ([1], "ship to", True, 'JMESPath expression [*]."ship to" selects from its items.'),
        ([1], "@id", True, 'JMESPath expression [*]."@id" selects from its items.'),
        ([1], "name.first", True, "It is an array whose items are 0 to 0."),
        ([1], "01-02", True, "It is an array whose items are 0 to 0."),
        (KEYS, "no. 14", True, f' and 3 more. Pass a whole path, such as "{GRID}/a/key 14".'),
        (KEYS, "key 15", False, 'Its keys are hidden; name them by position: "/~#0" to "/~#14".'),
        ({"key": 1}, "keys", True, f'Its keys are "key". Pass a whole path, such as "{GRID}/a/key".'),
        ({"key": 1}, "keys", False, 'Its keys are hidden; name them by position: "/~#0".'),
        ({}, "key", True, "It is an empty object."),
        ("text", "key", True, "It is text, which has no keys: use the path itself."),
    ],
)
async def test_the_error_of_a_missing_key_names_those_that_may_be_seen(
    value: Any,
    token: str,
    has_preview: bool,  # noqa: FBT001
    advice: str,
) -> None:
    store = await memory_of([])
    blob = msgspec.json.encode({"a": value})
    described = msgspec.structs.replace(descriptor(GRID), size=len(blob), members=members(blob, trim(blob)))
    await store.put("me", msgspec.structs.replace(described, preview=has_preview), (blob,))
    nowhere: Any = None
    with pytest.raises(ToolError) as caught:
        await look_up(store, nowhere, "me", MemoryPath(GRID, ("a", token)), content=ErrorContent(advise_query=True))
    assert str(caught.value).startswith(f'"{GRID}/a" has no key "{token}". ')
    assert str(caught.value).endswith(advice)


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ('[{"id": 1}]', "It is text that contains JSON. Query the path itself: the JMESPath expression [0].id finds"),
        ("id,name", 'Its keys are "type", "resource". Pass a whole path'),
    ],
)
async def test_an_error_for_a_key_in_a_file_of_json_names_the_query(text: str, advice: str) -> None:
    store = await memory_of([])
    file = {"uri": "file:///a.json", "mimeType": "application/json", "text": text}
    blob = msgspec.json.encode({"type": "resource", "resource": file})
    await store.put("me", msgspec.structs.replace(descriptor(GRID), kind="binary", size=len(blob)), (blob,))
    nowhere: Any = None
    with pytest.raises(ToolError, match=re.escape(advice)):
        await look_up(store, nowhere, "me", MemoryPath(GRID, ("0", "id")), content=ErrorContent(advise_query=True))


async def _accept(_: Any) -> bool:
    """The argument's schema accepts any value of its types."""
    return True


@pytest.mark.parametrize(
    ("value", "wanted", "has_preview", "found"),
    [
        ({"few": [1], "many": [1, 2, 3]}, "array", True, "/many"),
        ({"few": [1], "many": [1, 2, 3]}, "array", False, None),
        ({f"k{at:02}": [1] * at for at in range(14)}, "array", True, "/k00"),
        ({"z": {"n": 1}, "a": {"rows": [1, 2]}, "n": 1}, "array", True, "/a/rows"),
        ([{"n": 5}], "integer", True, None),
    ],
)
async def test_of_the_parts_that_fit_and_may_be_seen_the_largest_is_found(
    value: Any,
    wanted: str,
    has_preview: bool,  # noqa: FBT001
    found: str | None,
) -> None:
    store, blob = await memory_of([]), msgspec.json.encode(value)
    kind, known = ("object", members(blob, trim(blob))) if isinstance(value, dict) else ("array", ())
    described = msgspec.structs.replace(descriptor(GRID), kind=kind, size=len(blob), members=known)
    await store.put("me", msgspec.structs.replace(described, preview=has_preview), (blob,))
    writer = ValueWriter(store, StorePolicy(), lambda: 1e9)
    writer.notices.add("me", f'"{SHEET}"\n{NOTICE.partition(chr(10))[2]}')  # of a value that is deleted
    nowhere: Any = None
    advice = PathAdvice(writer, nowhere, Flows(), "me", frozenset({wanted}), _accept)
    near = await advice.find_near(MemoryPath(GRID))
    assert (near and str(near)) == (found and GRID + found)


@pytest.mark.parametrize(
    ("text", "has_sql", "advice"),
    [
        ('Found:\n{"n": 1, "gr\u00f6\u00dfen": [{"a": 1}]}', False, '`expression` "gr\u00f6\u00dfen".'),
        ("id,name\n" + "1,Ada\n" * 9, True, f' and `inputs` {{"t": "{GRID}"}}.'),
        ("id,name\n" + "1,Ada\n" * 9, False, None),
    ],
)
def test_a_query_is_advised_in_the_form_that_is_served(text: str, has_sql: bool, advice: str | None) -> None:  # noqa: FBT001
    file = {"type": "resource", "resource": {"uri": "file:///a", "text": text}}
    for value in (text, file):
        found = advise_query(msgspec.json.encode(value), MemoryPath(GRID), frozenset({"array"}), has_sql=has_sql)
        assert found is None if advice is None else found is not None and found.endswith(advice)
    assert advise_query(b"{}", MemoryPath(GRID), frozenset({"array"}), has_sql=has_sql) is None


async def test_the_whole_indexed_array_and_other_members_are_found() -> None:
    store, blob = await recording_store("rows")
    nowhere: Any = None
    rows, last = [await look_up(store, nowhere, "me", MemoryPath(GRID, (key,))) for key in ("rows", "last")]
    assert rows is not None
    assert last is not None
    assert bytes(rows.blob) == blob[blob.index(b"[") : blob.rindex(b"]") + 1]
    assert bytes(last.blob) == b"2"


class Deleting(Recording):
    """A store that deletes a value right before it is read."""

    async def read(self, namespace: str, base: str, span: Span | None = None, known: Descriptor | None = None) -> Any:
        await self.delete(namespace, base)
        return await super().read(namespace, base, span, known)


async def test_an_indexed_value_that_is_deleted_during_the_call_is_reported() -> None:
    store, _ = await recording_store("rows", Deleting)
    nowhere: Any = None
    with pytest.raises(ToolError, match="deleted during this call"):
        await look_up(store, nowhere, "me", MemoryPath(GRID, ("rows", "5")))


class Evicting(MemoryStore):
    """A store that evicts a value right before it is read."""

    async def read(self, namespace: str, base: str, span: Span | None = None, known: Descriptor | None = None) -> Any:
        await self.put(namespace, descriptor(SHEET), (b"1",))
        return await super().read(namespace, base, span, known)


async def test_a_value_that_is_evicted_during_the_call_is_reported_as_such() -> None:
    store = Evicting(StorePolicy(max_values=1), lambda: 1e9, lambda: Path("/nonexistent"))
    await store.put("me", descriptor(GRID), (b"{}",))
    nowhere: Any = None
    with pytest.raises(ToolError, match=r'was evicted to make room at .* It came from tool "tool"'):
        await look_up(store, nowhere, "me", MemoryPath(GRID))
