"""One of the gateway's own tools: its definition, and the reading of its arguments."""

import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

import msgspec

from mcp_mirror.core.replies import encode_text_block
from mcp_mirror.core.similar_names import find_nearest
from mcp_mirror.errors import ToolError
from mcp_mirror.memory.memory import Memory
from mcp_mirror.paths import SHOWN_END
from mcp_mirror.payload.json_rpc import decode_as, is_json
from mcp_mirror.system.patterns import lazy_pattern
from mcp_mirror.system.slices import run_by_size
from mcp_mirror.types import Buffer, Segments

_FENCE: Final = "```"
_OPENING: Final = lazy_pattern(rf"{_FENCE}\w*[ \t\r]*\n")

_SYNONYMS: Final[Mapping[str, frozenset[str]]] = {
    "memory_path": frozenset(("path", "filepath", "file", "filename", "targetfile")),
    "file": frozenset(("path", "filepath", "filename")),
    "pattern": frozenset(("query", "regex", "regexp", "search")),
    "expression": frozenset(("query", "jmespath")),
    "context": frozenset(("a", "b", "c", "after", "before", "contextlines", "beforecontext", "aftercontext")),
    "offset": frozenset(("skip", "startindex")),
    "limit": frozenset(
        ("head", "headlimit", "linecount", "m", "maxcount", "maxlines", "maxmatches", "maxresults", "numlines")
    ),
    "ignore_case": frozenset(("i", "ignorecase", "caseinsensitive")),
    "line_numbers": frozenset(("n", "linenumbers", "showlinenumbers")),
    "old_text": frozenset(("oldtext", "oldstring", "oldstr", "find", "search")),
    "new_text": frozenset(("newtext", "newstring", "newstr", "replace", "replacement")),
    "all": frozenset(("replaceall",)),
    "inputs": frozenset(("tables", "variables")),
    "code": frozenset(("script", "python")),
    "value": frozenset(("content", "text", "data")),
}
"""The names that tools of clients and frameworks, grep and Python have for an argument, in lower case, without `_`
and `-`."""
_FORMS: Final = {"inputs": '{"name": path}'}
"""The form of required arguments that models write in other ways."""
_MAX_TRANSLATED: Final = 20
"""Arguments with other names that are looked up."""

Content = tuple[Segments, ...]
"""The content blocks of a result, JSON text."""


class Arguments:
    """The arguments of a call, converted to the types of the schema."""

    def __init__(self, values: Mapping[str, Any], raw: Buffer) -> None:
        """Keep arguments by name (`values`: str, int, bool, or JSON text as bytes) and as the client sent them."""
        self._values = values
        self.raw = raw

    def has(self, name: str) -> bool:
        """Whether the call has an argument."""
        return name in self._values

    def text(self, name: str) -> str:
        """Return a string argument; empty if the call does not have it."""
        return str(self._values.get(name, ""))

    def code(self, name: str) -> str:
        """Return a string argument without the Markdown fence that models write around code."""
        text = self.text(name)
        block = text.strip()
        opening = _OPENING.match(block) if block.endswith(_FENCE) else None
        return block[opening.end() : -len(_FENCE)].rstrip() if opening else text

    def number(self, name: str) -> int:
        """Return an integer argument; 0 if the call does not have it."""
        return int(self._values.get(name, 0))

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Return a boolean argument, or `default` if the call does not have it."""
        return bool(self._values.get(name, default))

    def json(self, name: str) -> bytes:
        """Return an argument as JSON text."""
        return bytes(self._values[name])


class ToolInput(msgspec.Struct, frozen=True):
    """One call of one of the gateway's own tools."""

    memory: Memory
    namespace: str
    """The owner of the values."""
    tool: str
    arguments: Arguments


class MemoryTool(msgspec.Struct, frozen=True):
    """One of the gateway's own tools."""

    name: str
    description: str
    properties: Mapping[str, Mapping[str, Any]]
    """The schema of each argument."""
    required: tuple[str, ...]
    run: Callable[[ToolInput], Awaitable[Content]]
    """Answers a call; raises as `call`."""
    hints: Mapping[str, bool] = msgspec.field(default_factory=lambda: READS)
    meta: Mapping[str, Any] = msgspec.field(default_factory=dict)
    unlisted: Mapping[str, Mapping[str, Any]] = msgspec.field(default_factory=dict)
    """Further arguments, which the definition does not have: models know them from the tools of other programs."""
    optional: tuple[str, ...] = ()
    """Required arguments that a call may leave out: models forget arguments that a definition does not require."""
    may_be_empty: tuple[str, ...] = ()
    """Optional arguments whose empty text has a meaning. Any other is left out then: many models fill all arguments."""
    extras: Mapping[str, str] = msgspec.field(default_factory=dict)
    """The extra that adds an argument, by the argument's name."""

    @property
    def tool(self) -> str:
        """The name of the tool, for searches; see `IndexedTool`."""
        return self.name

    @property
    def upstream(self) -> str:
        """A word that finds all of the gateway's own tools."""
        return "memory"

    @property
    def schema(self) -> dict[str, Any]:
        """The input schema."""
        properties = {name: dict(schema) for name, schema in self.properties.items()}
        required = {"required": list(self.required)} if self.required else {}
        return {"type": "object", "properties": properties, **required}

    @property
    def advert(self) -> dict[str, Any]:
        """The tool's definition for clients."""
        return {
            "name": self.name,
            "description": self.description,
            "inputSchema": self.schema,
            "annotations": dict(self.hints),
            **({"_meta": dict(self.meta)} if self.meta else {}),
        }

    async def call(self, memory: Memory, namespace: str, arguments: Buffer) -> Content:
        """Answer a call.

        Raises:
            ToolError: The arguments do not match the schema, a path has no value, or the tool failed.
            FlowError: The flow policy hides a value from the model.
            StoreError: The store failed.
        """
        read = await run_by_size(len(arguments), self.read_arguments, arguments, principal=namespace)
        return await self.run(ToolInput(memory, namespace, self.name, read))

    def read_arguments(self, arguments: Buffer) -> Arguments:
        """Return the arguments of a call, converted to the types of the schema.

        ToolError if an argument is missing, unknown or of another type.
        """
        try:
            members = msgspec.json.decode(arguments, type=dict[str, msgspec.Raw])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise ToolError(f"The arguments are not a JSON object. {self._describe_usage}") from None
        texts = self._translate({name: bytes(raw) for name, raw in members.items() if bytes(raw) != b"null"})
        kept = {*self.required, *self.may_be_empty}.difference(self.optional)
        given = {name: text for name, text in texts.items() if text != b'""' or name in kept}
        for name in given:
            if self._find_schema(name) is None:
                hint = self._hint(name, given)
                raise ToolError(f"{self.name} has no argument {name[:80]!r}.{hint} {self._describe_usage}")
        for name in self.required:
            if name not in given and name not in self.optional:
                raise ToolError(f"{self.name} needs {name!r}. {self._describe_usage}")
        return Arguments({name: self._read(name, raw) for name, raw in given.items()}, arguments)

    def _hint(self, unknown: str, given: Mapping[str, bytes]) -> str:
        """The sentence about an unknown argument that names the right one; empty if it is not known."""
        if given_again := [name for name in self._find_synonyms(unknown) if name in given]:
            return f" Give {given_again[0]!r} once."
        if extra := self.extras.get(unknown):
            return f" It needs the extra `{extra}`: pip install 'mcp-mirror[{extra}]'."
        left = [name for name in self.properties if name not in given and self._accepts(name, given[unknown])]
        if near := find_nearest(unknown, left):
            return f" Did you mean {near[0]!r}?"
        missing = [name for name in left if name in self.required]
        if len(missing) == 1:
            return f" Did you mean {missing[0]!r}?"
        enumerated = (name for name, schema in self.properties.items() if unknown in schema.get("enum", ()))
        return next((f' Write {name}="{unknown}".' for name in enumerated), "")

    def _find_schema(self, name: str) -> Mapping[str, Any] | None:
        """The schema of an argument; None if the tool has no such argument."""
        return self.properties.get(name, self.unlisted.get(name))

    def _translate(self, texts: Mapping[str, bytes]) -> dict[str, bytes]:
        """Give arguments with the names of other tools the names that this tool has for them, where that is clear."""
        known = {name: text for name, text in texts.items() if self._find_schema(name) is not None}
        others = [name for name in texts if name not in known]
        for name in others[:_MAX_TRANSLATED]:
            meant = self._find_synonyms(name)
            is_clear = len(meant) == 1 and meant[0] not in known and self._accepts(meant[0], texts[name])
            known[meant[0] if is_clear else name] = texts[name]
        return known | {name: texts[name] for name in others[_MAX_TRANSLATED:]}

    def _find_synonyms(self, name: str) -> list[str]:
        """The arguments of this tool that other tools give this name."""
        folded = name.replace("_", "").replace("-", "").lower()
        return [name for name in (*self.properties, *self.unlisted) if folded in _SYNONYMS.get(name, ())]

    def _accepts(self, name: str, raw: bytes) -> bool:
        """Whether an argument accepts the type of a value."""
        schema = self._find_schema(name) or {}
        read, _ = _KINDS.get(schema.get("type", ""), _ANY)
        return read(raw) is not None

    def _read(self, name: str, raw: bytes) -> Any:
        """The value of an argument from its JSON text."""
        schema = self._find_schema(name) or {}
        read, described = _KINDS.get(schema.get("type", ""), _ANY)
        value = read(raw)
        if value is None:
            raise ToolError(f"{name!r} of {self.name} must be {described}. {self._describe_usage}")
        options = schema.get("enum", (value,))
        if value not in options and f"{value}s" in options:
            return f"{value}s"
        if value not in options:
            raise ToolError(f"{name!r} of {self.name} must be one of {', '.join(options)}.")
        return value

    @property
    def _describe_usage(self) -> str:
        further = [name for name in self.properties if name not in self.required]
        optional = ", ".join(_describe_argument(name, self.properties[name]) for name in further)
        if not self.required:
            return f"It may take {optional}."
        required = ", ".join(f"{name} ({_FORMS[name]})" if name in _FORMS else name for name in self.required)
        return f"It takes {required}{f', and may take {optional}' if optional else ''}."


def _describe_argument(name: str, schema: Mapping[str, Any]) -> str:
    """The name of an argument, with what its definition says of its values."""
    *options, last = schema.get("enum", ("",))
    described = f"{', '.join(options)} or {last}" if options else schema.get("description", "")
    return f"{name} ({described})" if described else name


def _unquote(raw: bytes) -> str:
    """A scalar without the quotes that models put around numbers and booleans."""
    return raw.decode("utf-8", "replace").strip().strip('"').strip().lower()


def _read_number(raw: bytes) -> int | None:
    match = re.fullmatch(r"([+-]?[0-9]{1,18})(?:\.0*)?", _unquote(raw))
    return int(match[1]) if match else None


def _read_json(opening: bytes, raw: bytes) -> bytes | None:
    """JSON that begins with `opening`, also in a string; None for other JSON."""
    if (text := decode_as(raw, str)) is None:
        return raw if raw[:1] == opening else None
    json_text: bytes = text.strip().encode()
    return json_text if json_text[:1] == opening and is_json(json_text) else None


_KINDS: Final[Mapping[str, tuple[Callable[[bytes], Any], str]]] = {
    "string": (lambda raw: decode_as(raw, str), "text"),
    "integer": (_read_number, "a whole number"),
    "boolean": (lambda raw: {"true": True, "false": False}.get(_unquote(raw)), "true or false"),
    "array": (partial(_read_json, b"["), "a list"),
    "object": (partial(_read_json, b"{"), "an object"),
}
"""The types of arguments: the reader of a value, which returns None for other types, and the name in errors."""
_ANY: Final[tuple[Callable[[bytes], Any], str]] = (bytes, "JSON")

READS: Final[Mapping[str, bool]] = {"readOnlyHint": True, "openWorldHint": False}
ADDS: Final[Mapping[str, bool]] = {"destructiveHint": False, "openWorldHint": False}
DESTROYS: Final[Mapping[str, bool]] = {"openWorldHint": False}


def build_text_content(*texts: str) -> Content:
    """Return a block for each text."""
    return tuple((encode_text_block(text),) for text in texts)


def build_answer_content(text: str) -> Content:
    """Return the part of a value that a tool shows and, unless the call can be continued, a block that ends it.

    Without that block, small models ask for the value that they have read (docs/evaluation/wording.md). It is a block
    of its own, so that programs can parse the first one.
    """
    can_continue = text.rpartition("\n")[2].startswith("... ")
    return build_text_content(text) if can_continue else build_text_content(text, SHOWN_END)
