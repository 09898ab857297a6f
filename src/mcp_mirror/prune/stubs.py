"""Stubs for pruned parts, the stored form of a part, and the way back from both.

A stub has the type of the part that it replaces, so that the provider accepts it: a text remains a text, arguments a
JSON text, an input an object, a list of blocks a list. The stored form is the one most useful to a tool: a text that
is a JSON object or array as that JSON, other text as a JSON string, blocks as the array of their texts.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

import msgspec

from mcp_mirror.paths import PRUNED_SLUG, read_notice_path, replaces_value
from mcp_mirror.payload.json_rpc import as_plain_text, open_array, open_object
from mcp_mirror.system.patterns import lazy_pattern
from mcp_mirror.types import Buffer

Domain = str
"""The stored form of a part; it is an input of the part's path."""

_MAX_NOTICE: Final = 2048
"""Characters up to which a text may be a notice."""
_MAX_STUB: Final = 200
"""Maximum characters of a stub."""
_ID: Final = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_PATH: Final = f"{PRUNED_SLUG}-{_ID}"
_WORDS: Final = r"[1-9][0-9,]* bytes of (?:tool result|tool input|assistant text|user text)"
_TEXT: Final = lazy_pattern(
    rf'"(?P<path>[A-Za-z0-9_-]+-{_ID}(?:/[^\n]*)?)"\n'
    rf"This path stands for what was pruned: (?P<words>{_WORDS})(?: \((?P<id>{_ID})\))?\.\n"
    rf"Use it as the argument of the next tool\."
    rf"|Pruned: (?P<lost>{_WORDS})\."
)
_IS_PATH: Final = lazy_pattern(_PATH)
_ARE_WORDS: Final = lazy_pattern(_WORDS)
_PARSERS: Final[Mapping[str, Callable[[Buffer], object]]] = {"{": open_object, "[": open_array}
"""Parsers that check whether a text with this first character is JSON."""
_REQUEST_MEMBERS: Final = ("cache_control", "providerOptions")
"""Members of a block that belong to the request rather than the result, and remain in place."""


class Stub(msgspec.Struct, frozen=True):
    """A stub for a pruned part."""

    words: str
    """A description of the part: `1,234 bytes of tool result`."""
    path: str | None
    """The path of the stored part; None if it is not stored."""
    shown: str | None = None
    """The path of the value that the part shows. The stub names it, and of the other path only the id."""

    def as_text(self) -> str:
        """The stub as text for a model. It is framed like a notice, so that a pasted stub resolves to its path."""
        path = self.shown or self.path
        if path is None:
            return f"Pruned: {self.words}."
        stored = f" ({self.path.removeprefix(f'{PRUNED_SLUG}-')})" if self.shown and self.path else ""
        return (
            f'"{path}"\nThis path stands for what was pruned: {self.words}{stored}.\n'
            "Use it as the argument of the next tool."
        )

    def as_object(self) -> dict[str, Any]:
        """The stub as a JSON object."""
        return {"pruned": self.words} if self.path is None else {"memory_path": self.path, "pruned": self.words}


class Text(msgspec.Struct, frozen=True):
    """A text that a model reads."""

    domains: ClassVar[tuple[Domain, ...]] = ("text",)

    def pack(self, value: str) -> tuple[Domain, bytes] | None:
        """The text as JSON if it is an object or an array, else as a JSON string."""
        blob = None if _is_notice(value) else _pack_text(value)
        return ("text", blob) if blob else None

    def put(self, value: str, stub: Stub) -> str:
        """The stub's words."""
        shown = read_notice_path(value)
        return (msgspec.structs.replace(stub, shown=str(shown)) if shown else stub).as_text()

    def find(self, value: str) -> Stub | None:
        """The stub that the whole text is."""
        if not (match := _TEXT.fullmatch(value)):
            return None
        if match["path"] is None or _IS_PATH.fullmatch(match["path"]):
            return Stub(match["words"] or match["lost"], match["path"])
        return Stub(match["words"], f"{PRUNED_SLUG}-{match['id']}" if match["id"] else None, match["path"])

    def unpack(self, value: str, domain: Domain, blob: Buffer) -> str:  # noqa: ARG002  # the stub has no part of the text
        """The text."""
        return as_plain_text(blob)


class JsonText(Text, frozen=True):
    """Arguments as a JSON text, which a model may have written incorrectly; stored like any text."""

    def put(self, value: str, stub: Stub) -> str:  # noqa: ARG002  # the text is dropped
        """The stub as JSON text."""
        return json.dumps(stub.as_object())

    def find(self, value: str) -> Stub | None:
        """The stub that the text spells."""
        try:
            return _parse_stub(json.loads(value)) if len(value) <= _MAX_STUB else None
        except ValueError:
            return None


class Json(msgspec.Struct, frozen=True):
    """A JSON value: an input or a structured result."""

    domains: ClassVar[tuple[Domain, ...]] = ("json",)

    def pack(self, value: Any) -> tuple[Domain, bytes] | None:
        """Its JSON text."""
        blob = None if isinstance(value, str) and _is_notice(value) else _pack_json(value)
        return ("json", blob) if blob else None

    def put(self, value: Any, stub: Stub) -> dict[str, Any]:  # noqa: ARG002  # the value is dropped
        """The stub as an object."""
        return stub.as_object()

    def find(self, value: Any) -> Stub | None:
        """The stub that the object is."""
        return _parse_stub(value)

    def unpack(self, value: Any, domain: Domain, blob: Buffer) -> Any:  # noqa: ARG002  # the stub has no part of the value
        """The value."""
        return json.loads(bytes(blob))


class Blocks(msgspec.Struct, frozen=True):
    """A result as a list of content blocks; a list with a block of unknown type is not pruned."""

    text: str
    """The type of a text block."""
    others: frozenset[str]
    """The other known types of blocks."""
    domains: ClassVar[tuple[Domain, ...]] = ("text", "blocks")

    def pack(self, value: list[Any]) -> tuple[Domain, bytes] | None:
        """One text block as its text, several blocks as an array, in which plain text blocks are strings."""
        if not all(isinstance(block, dict) and self._is_known(block) for block in value):
            return None
        if self._is_one_text(value):
            return Text().pack(value[0]["text"])
        is_plain = [block["type"] == self.text and list(block) == ["type", "text"] for block in value]
        blob = _pack_json([block["text"] if plain else block for block, plain in zip(value, is_plain, strict=True)])
        return ("blocks", blob) if blob else None

    def put(self, value: list[Any], stub: Stub) -> list[Any]:
        """One text block with the members that belong to the request."""
        if self._is_one_text(value):
            return [{**value[0], "text": Text().put(value[0]["text"], stub)}]
        kept = {key: block[key] for block in value for key in _REQUEST_MEMBERS if key in block}
        return [{"type": self.text, "text": stub.as_text(), **kept}]

    def find(self, value: list[Any]) -> Stub | None:
        """The stub that the only block is."""
        return Text().find(value[0]["text"]) if self._is_one_text(value) else None

    def unpack(self, value: list[Any], domain: Domain, blob: Buffer) -> list[Any]:
        """The blocks."""
        if domain == "text":
            return [{**value[0], "text": as_plain_text(blob)}]
        blocks = json.loads(bytes(blob))
        return [{"type": self.text, "text": block} if isinstance(block, str) else block for block in blocks]

    def _is_known(self, block: Mapping[str, Any]) -> bool:
        kind = block.get("type")
        if kind == self.text:
            return isinstance(block.get("text"), str)
        return isinstance(kind, str) and kind in self.others

    def _is_one_text(self, value: list[Any]) -> bool:
        block = value[0] if len(value) == 1 else None
        return isinstance(block, dict) and block.get("type") == self.text and isinstance(block.get("text"), str)


PartForm = Text | JsonText | Json | Blocks
"""The type of a prunable part. `domains` are its possible stored forms."""


def _is_notice(text: str) -> bool:
    """Whether a text is the notice of a value: it is short, and its value is in memory already."""
    return len(text) <= _MAX_NOTICE and replaces_value(text)


def _parse_stub(value: Any) -> Stub | None:
    """The stub in a JSON value; None if the value has any other members."""
    if not isinstance(value, dict) or value.keys() - {"memory_path", "pruned"}:
        return None
    path, words = value.get("memory_path"), value.get("pruned")
    if not isinstance(words, str) or not _ARE_WORDS.fullmatch(words):
        return None
    if "memory_path" in value and not (isinstance(path, str) and _IS_PATH.fullmatch(path)):
        return None
    return Stub(words, path)


def _pack_text(text: str) -> bytes | None:
    try:
        encoded = text.encode()
    except UnicodeEncodeError:  # a lone surrogate, which UTF-8 cannot encode
        return None
    opened = _PARSERS.get(text.lstrip(" \t\r\n")[:1])
    return msgspec.json.encode(text) if opened is None or opened(encoded) is None else encoded


def _pack_json(value: Any) -> bytes | None:
    """The JSON text of a value if it can be restored from it, else None."""
    try:
        blob = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
        return blob if json.loads(blob) == value else None
    except (TypeError, ValueError, RecursionError):
        return None
