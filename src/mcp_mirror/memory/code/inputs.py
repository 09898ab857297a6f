"""The inputs of a script or an SQL query: resolves memory paths in them, and reads texts when a script needs them."""

import json
import keyword
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Final

import msgspec

from mcp_mirror.core.amounts import format_bytes
from mcp_mirror.core.conversion import Resolved
from mcp_mirror.core.resolve import Pointer, Pointers, check_pointer_count, substitute_pointers
from mcp_mirror.core.results.main_parts import Level, find_long_texts, find_table, read_levels
from mcp_mirror.core.results.media import find_embedded_text
from mcp_mirror.core.texts.embedded_json import (
    MAX_SEARCHED_BYTES,
    find_embedded_json,
    find_quoted_text,
    read_container,
    read_json_container,
)
from mcp_mirror.core.texts.formats import JSON_LINES, find_delimiter, find_format, measure_heading, read_edges
from mcp_mirror.errors import ToolError
from mcp_mirror.memory.flow_guard import ArgumentLoader
from mcp_mirror.memory.tools.tool import ToolInput
from mcp_mirror.payload.json_rpc import contiguous
from mcp_mirror.payload.json_spans import items, kind_at, members_with_offsets, trim
from mcp_mirror.payload.json_strings import text_start
from mcp_mirror.query.texts import decode_string
from mcp_mirror.settings.labels import Labels
from mcp_mirror.system.patterns import lazy_pattern
from mcp_mirror.system.slices import run_by_size
from mcp_mirror.types import Buffer, Descriptor, Member, Span
from mcp_mirror.workers.sql import TableValue

_RESERVED: Final = frozenset({"tools", "json"})
_MAX_INPUTS: Final = 100
_MAX_NAME: Final = 200
"""Characters of the name of an input."""
_MAX_PATH: Final = 400
"""Bytes of a text that may be meant as a memory path."""
_CODE_BLOCKS: Final = ("```", "~~~")
_MAX_FIELDS: Final = 20
"""Fields of a value that an error names."""
_MAX_FIELD: Final = 60
"""Characters of a field's name in an error."""
_MAX_ADVICE: Final = 400
"""Characters of the place of rows or a text in an error."""
_QUOTED: Final = lazy_pattern(r"^[ \t]*(\"[\[{].*\")[ \t\r]*$", re.MULTILINE)
"""A line that is a JSON string with an object or an array."""
_START: Final = 64
"""Bytes of a text that show whether it begins as JSON."""


class ValueBudget:
    """The bytes of values that one script may still read."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._left = most

    def take(self, size: int) -> None:
        """Count a value; ToolError if the script has read too much."""
        if size > self._left:
            raise ToolError(
                f"A script may read {format_bytes(self._most)} of values (`code.values`), and this is more. Use a part "
                "of the value (path/key), or several scripts."
            )
        self._left -= size


class Input(TableValue, frozen=True):
    """One input of a script, or of a query, which makes a table of it."""

    is_stored: bool = False
    """It is the value of a path, not one that the model wrote."""

    @property
    def is_text(self) -> bool:
        """Whether the value is a text."""
        return bytes(self.blob[:1]) == b'"'

    @property
    def is_name(self) -> bool:
        """Whether the value is a short text of one line that is not JSON: models pass a name where a path belongs."""
        if not self.is_text or len(self.blob) > _MAX_PATH:
            return False
        text = self.read_text().strip()
        return "\n" not in text and not text.startswith(("{", "["))

    def read_text(self) -> str:
        """Return a text itself, any other value as JSON text.

        The byte order mark of a file is left out: with it, the first column of a table has another name.
        """
        return decode_string(self.blob).removeprefix("\ufeff") if self.is_text else str(self.blob, "utf-8", "replace")

    def read_variable(self) -> str | bytes:
        """Return the text that a script's variable is, or the JSON text from which it is parsed."""
        if not self.is_text:
            return bytes(self.blob)
        text = self.read_text()
        rows = read_container(text) if self.is_stored else None
        return text if rows is None else rows


class Inputs(msgspec.Struct, frozen=True):
    """All inputs of a script or a query, with the properties of the stored values among them."""

    inputs: tuple[Input, ...]
    labels: Labels
    """The joined flow labels of the stored values."""
    preview: bool
    """The model may see parts of all of them."""
    paths: tuple[str, ...]
    """Their memory paths."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all inputs."""
        return tuple(given.name for given in self.inputs)

    def files(self, budget: ValueBudget) -> Mapping[str, Callable[[], str]]:
        """Return the reader of each input as a file. Each use counts."""

        def read(given: Input) -> str:
            budget.take(len(given.blob))
            return given.read_text()

        return {given.name: partial(read, given) for given in self.inputs}


async def read_files(inputs: Inputs, most: int, principal: str) -> Inputs:
    """Return the inputs with the texts of embedded resources of at most `most` bytes in place of these."""
    changed: list[Input] = []
    for given in inputs.inputs:
        is_file = given.is_media and len(given.blob) <= most
        blob = given.blob
        if is_file:
            blob = await run_by_size(len(blob), read_embedded_file, blob, principal=principal)
        changed.append(msgspec.structs.replace(given, blob=blob))
    return msgspec.structs.replace(inputs, inputs=tuple(changed))


def read_embedded_file(blob: Buffer) -> Buffer:
    """Return the text of an embedded resource, parsed if it is an object or array; any other value as it is."""
    if (span := find_embedded_text(blob)) is None:
        return blob
    literal = memoryview(blob)[span.start : span.stop]
    head = text_start(blob, span, _START).lstrip()
    if head and head[0] not in "{[":
        return literal
    return read_json_container(decode_string(literal)) or literal


def read_content(blob: Buffer) -> Buffer:
    """As `read_embedded_file`; a text that is an object or array, also as Python prints it, is parsed too."""
    content = read_embedded_file(blob)
    return (bytes(content[:1]) == b'"' and read_container(decode_string(content))) or content


def describe_text(name: str, blob: Buffer, *, only_csv: bool = False) -> str | None:
    """Return a sentence about the text `name` of a script: its format, what reads its rows. None for other values.

    `only_csv`: describe only CSV, TSV and text in a JSON string.
    """
    span = trim(blob)
    if kind_at(blob, span.start) != "text":
        return None
    variable = name if name.isidentifier() else "text"
    if find_quoted_text(blob):
        return f"{name} is text in a JSON string: after `import json`, its text is json.loads({variable})."
    edges = read_edges(blob, span)
    heading = edges.head[: measure_heading(edges)]
    form, delimiter = find_format(edges), find_delimiter(edges._replace(head=edges.head[len(heading) :]))
    described = f"{name} is text ({form}), one string" if form else f"{name} is text, one string"
    below = ""
    if skipped := heading.count("\n"):
        below = f"[{skipped}:{-_count_lines_below(heading, edges.end) or ''}]"
    if delimiter:
        return f"{described}: {_describe_csv_reader(name, delimiter, below)}"
    if only_csv:
        return None
    if form.startswith(JSON_LINES):
        reader = f"its values are [json.loads(line) for line in {variable}.splitlines(){below}]"
    elif part := _find_json(blob[span.start : span.stop], variable):
        reader = f"after `import json`, its JSON is json.loads({part})"
    else:
        reader = f"its lines are {variable}.splitlines()"
    return f"{described}: {reader}."


def _describe_csv_reader(name: str, delimiter: str, below: str) -> str:
    """What reads the rows of a text; `below` selects the lines below its heading.

    Lines without their ends lose the line breaks in quoted cells.
    """
    lines = f"text.splitlines(True){below}"
    if name.isidentifier():  # an input, which is a file too
        file = f'open("/memory/{name}", newline="")'
        lines = f"{file}.readlines(){below}" if below else file
    argument = "" if delimiter == "," else f", delimiter={delimiter!r}"
    return f"after `import csv`, its rows are csv.DictReader({lines}{argument})."


def _count_lines_below(heading: str, end: str) -> int:
    """The lines from the end of a code block that begins in a heading; 0 without one."""
    mark = next((mark for mark in _CODE_BLOCKS if mark in heading), None)
    return len(end[end.rfind(f"\n{mark}") + 1 :].splitlines()) if mark and f"\n{mark}" in end else 0


def _find_json(literal: Buffer, variable: str) -> str | None:
    """The code of JSON after a heading, in a code block or in a JSON string; None for a text without it."""
    found = find_embedded_json(literal) if len(literal) <= MAX_SEARCHED_BYTES else None
    text = decode_string(literal).removeprefix("\ufeff")
    if not found:
        return None
    json_text = found.decode()
    if (start := text.find(json_text)) >= 0:
        return f"{variable}[{start}:{start + len(json_text)}]"
    quoted = _QUOTED.search(text)
    is_same = quoted is not None and read_container(quoted[1]) == found
    return f"json.loads({variable}[{quoted.start(1)}:{quoted.end(1)}])" if quoted and is_same else None


def describe_keys(name: str, blob: Buffer) -> str | None:
    """Return a clause about the first keys of an object, or of the first object of an array; None for other values.

    A key with half of a surrogate pair, which is not valid text, ends them.
    """
    span = trim(blob)
    is_array = kind_at(blob, span.start) == "array"
    object_span = next(items(blob, span), span) if is_array else span
    members: list[Member] = []
    if kind_at(blob, object_span.start) == "object":
        with suppress(msgspec.DecodeError):
            members.extend(member for _, member in islice(members_with_offsets(blob, object_span), _MAX_FIELDS))
    if not members:
        return None
    keys = ", ".join(member.key[:_MAX_FIELD] for member in members)
    if is_array:
        return f"{name} has the fields {keys}"
    advice = _locate_rows(name, blob, members) if name.isidentifier() else ""
    return f"{name} is one object with the keys {keys}{advice if len(advice) <= _MAX_ADVICE else ''}"


def _locate_rows(name: str, blob: Buffer, members: Sequence[Member]) -> str:
    """A clause about the rows of an object, which others may wrap, or else about a text of JSON, or a long text.

    Empty without one of them.
    """
    levels = read_levels(blob, members)
    if table := find_table(blob, levels):
        return f": its rows are {_write_item(name, table.keys, levels)}"
    text = next((member.key for member in members if _is_json_text(blob, member.span)), None)
    if text is not None:
        value = _write_item(name, (text,), levels)
        return f"; {value} is text: after `import json`, its JSON is json.loads({value})"
    long = find_long_texts(blob, levels)
    return f": its text is {_write_item(name, long[0].keys, levels)}" if long else ""


def _write_item(name: str, keys: tuple[str, ...], levels: Sequence[Level]) -> str:
    """The code for the part of a value at these keys; those that are not within an object of `levels` are positions."""
    objects = {level.keys for level in levels}
    quoted = (json.dumps(key) if keys[:at] in objects else key for at, key in enumerate(keys))
    return name + "".join(map("[{}]".format, quoted))


def _is_json_text(blob: Buffer, span: Span) -> bool:
    if kind_at(blob, span.start) != "text" or span.length > MAX_SEARCHED_BYTES:
        return False
    is_container = text_start(blob, span, _START).lstrip().startswith(("{", "["))
    return is_container and read_json_container(decode_string(memoryview(blob)[span.start : span.stop])) is not None


async def read_inputs(
    call: ToolInput, raw: bytes, check_names: Callable[[Collection[str]], None], check_size: Callable[[int], None]
) -> Inputs:
    """Resolve the inputs of a call: values by name, a JSON object.

    `check_names` and `check_size` raise ToolError for names that the inputs cannot have, and if the inputs that are
    made of several values have too many bytes together. They are not made before: a few hundred bytes can name one
    large value a thousand times.

    Raises:
        ToolError: A name is not possible, a path has no value, or there are too many paths.
    """
    members = {name: bytes(text) for name, text in msgspec.json.decode(raw, type=dict[str, msgspec.Raw]).items()}
    check_names(members)
    memory = call.memory
    services, guard = memory.services, memory.guard(call.namespace, call.tool)
    loader = ArgumentLoader(services.writer, services.scanner, guard, memory.can_query)
    found: dict[str, Pointers] = {}
    pointers: Pointers = ()
    for name, text in members.items():
        found[name] = await memory.find_pointers(call.namespace, text)
        pointers = (*pointers, *found[name])
        check_pointer_count(pointers, services.limits.traffic.max_pointers)
    described = await loader.describe(pointers)
    values = await loader.load(pointers, described)
    inputs: list[Input] = []
    joined = 0
    for name, text in members.items():
        loaded = {pointer: values[pointer] for pointer in found[name] if pointer in values}
        if whole := next((value for pointer, value in loaded.items() if not pointer.location), None):
            is_media = whole.kind == "binary"
            inputs.append(Input(name, _trim_start(whole.blob), whole.file, is_media, is_stored=True))
            continue
        size = len(text) + sum(len(value.blob) for value in loaded.values())
        joined += size
        check_size(joined)
        segments = substitute_pointers(
            text, found[name], await _parse_literals(loaded, call.namespace), lambda _: frozenset()
        )
        blob = await run_by_size(size, contiguous, segments, principal=call.namespace)
        inputs.append(Input(name, _trim_start(blob)))
    known = (value for value in described.values() if isinstance(value, Descriptor))
    labels = memory.flows.join(*map(memory.flows.read_labels, known))
    paths = tuple(sorted({str(value.path) for value in values.values()}))
    return Inputs(tuple(inputs), labels, all(value.preview for value in values.values()), paths)


def _trim_start(blob: Buffer) -> Buffer:
    """JSON text without white space before it."""
    start = trim(blob).start
    return memoryview(blob)[start:] if start else blob


async def _parse_literals(values: Mapping[Pointer, Resolved], principal: str) -> dict[Pointer, Resolved]:
    """Parse embedded resources and texts that are an object or array, for an input with several paths."""
    blobs = {value.path: value.blob for value in values.values()}

    def parse() -> dict[Pointer, Resolved]:
        parsed = {path: read_content(blob) for path, blob in blobs.items()}
        return {pointer: msgspec.structs.replace(value, blob=parsed[value.path]) for pointer, value in values.items()}

    return await run_by_size(sum(map(len, blobs.values())), parse, principal=principal)


def check_variables(names: Collection[str]) -> None:
    """Check that names can be variables of a script; ToolError if one cannot."""
    if len(names) > _MAX_INPUTS:
        raise ToolError(f"A script may have {_MAX_INPUTS} inputs. Join some of them in one value.")
    for name in names:
        is_name = name.isidentifier() and name.isascii() and not keyword.iskeyword(name)
        if not is_name or len(name) > _MAX_NAME or name in _RESERVED or name.startswith("_"):
            raise ToolError(
                f"{name[:80]!r} cannot name an input: it becomes a variable. Use a name such as `orders` or `users`."
            )
