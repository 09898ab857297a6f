"""Reads texts in YAML, TOML, XML, INI or JSON with comments as JSON, so that queries find their keys and items. Pure.

An element of XML is an object of its attributes and the elements in it; a name that occurs several times has an array.
Its text is the member `text`, or the whole value if it has nothing else.
"""

import json
import re
import tomllib
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final
from xml.parsers import expat

import msgspec
import yaml

from mcp_mirror.system.json_comments import blank_comments
from mcp_mirror.system.patterns import lazy_pattern

MAX_STRING: Final = 1 << 23
"""Bytes of a JSON string that is decoded to be read."""
_MAX_CHARACTERS: Final = 1 << 22
"""Characters of a text, which take two seconds and a few hundred megabytes."""
_MAX_VALUES: Final = 1_000_000
"""Values of a text. Aliases can repeat a part of it many times."""
_MAX_DEPTH: Final = 100
_FENCED: Final = lazy_pattern(r"^```(?:ya?ml|toml|xml)[ \t]*\r?\n(.*?)^```", re.DOTALL | re.MULTILINE)
"""A code block of Markdown."""
_HTML: Final = lazy_pattern(
    r"\s*<(?:!doctype html|html|head|body|div|table|section|article|ul|ol|p|span)\b", re.IGNORECASE
)
"""The beginning of HTML, which may also be XML."""
_NUMBER: Final = lazy_pattern(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
"""A number of JSON. `0644` and `1_000`, which are other numbers in YAML 1.2, stay texts."""
_COMMENTED: Final = lazy_pattern(r"\{|\[[^\[\]\n]*$|//|/\*", re.MULTILINE)
"""The beginning of JSON with comments."""
_SECTION: Final = lazy_pattern(r"\[([^\[\]]+)\]")
_SETTING: Final = lazy_pattern(r"([^=:\s][^=:]*)[=:](.*)")
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG: Final = "tag:yaml.org,2002:"


def read_data_text(text: str) -> bytes | None:
    """Read a text as YAML, TOML or INI of several lines, as JSON with comments, or as XML; None for any other text.

    It may also be the only code block of a text.

    Returns:
        JSON: an object or an array. Several documents of YAML are an array. Numbers keep their digits, dates are texts,
            and `yes`, `no`, `on` and `off` too; in XML, everything is text.
    """
    if len(text) > _MAX_CHARACTERS:
        return None
    blocks = _FENCED.findall(text)
    if len(blocks) == 1 and 2 * len(blocks[0]) >= len(text):
        text = blocks[0]
    bare = text.strip()
    if _HTML.match(bare) if bare.startswith("<") else "\n" not in bare:
        return None
    for read in _list_readers(bare):
        with suppress(expat.ExpatError, yaml.YAMLError, ValueError, RecursionError):
            if found := read(text):
                return msgspec.json.encode(found)
    return None


def _list_readers(bare: str) -> Sequence[Callable[[str], object]]:
    """The formats that a text may have, by its beginning."""
    if bare.startswith("<"):
        return (_read_xml,)
    if not _COMMENTED.match(bare):
        return (_read_toml, _read_yaml, _read_ini)
    # YAML would read comments as parts of keys.
    return (_read_commented_json,) if "//" in bare or "/*" in bare else (_read_commented_json, _read_yaml)


class _XmlReader:
    """Reads elements, as the parser meets them."""

    def __init__(self) -> None:
        self._open: list[tuple[dict[str, Any], list[str]]] = [({}, [])]
        """The members and the texts of the open elements; the first one contains the root."""

    def read(self, text: str) -> object:
        """Return the object with the root element."""
        parser = expat.ParserCreate()
        parser.buffer_text = True
        parser.StartElementHandler = lambda _, attributes: self._open.append((attributes, []))
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._add_text
        parser.EntityDeclHandler = _refuse_entity
        parser.Parse(text, True)  # noqa: FBT003  # its last part
        return self._open[0][0]

    def _add_text(self, text: str) -> None:
        self._open[-1][1].append(text)

    def _end(self, name: str) -> None:
        members, texts = self._open.pop()
        text = "".join(texts).strip()
        if members and text:
            _add_member(members, "text", text)
        _add_member(self._open[-1][0], name, members or text)


def _add_member(members: dict[str, Any], name: str, value: object) -> None:
    """Add a member; of several values of one name, the member is their array."""
    if name not in members:
        members[name] = value
    elif isinstance(members[name], list):
        members[name].append(value)
    else:
        members[name] = [members[name], value]


def _refuse_entity(*_: object) -> None:
    """Entities can repeat a text without end."""
    raise ValueError


def _read_xml(text: str) -> object:
    return _XmlReader().read(text.strip())


def _read_toml(text: str) -> object:
    return tomllib.loads(text.replace("\r\n", "\n"), parse_float=_read_number)


def _read_number(written: str) -> msgspec.Raw | str:
    return msgspec.Raw(written.encode()) if _NUMBER.fullmatch(written) else written


def _read_commented_json(text: str) -> object:
    return json.loads(blank_comments(text.encode()), parse_float=_read_number)


def _read_ini(text: str) -> object:
    """Return an object of the sections; a ValueError says that a text does not have any, or has other lines."""
    settings: dict[str, Any] = {}
    sections: dict[str, Any] = settings
    for line in map(str.strip, text.splitlines()):
        if not line or line.startswith((";", "#")):
            continue
        if section := _SECTION.fullmatch(line):
            settings = {}
            _add_member(sections, section[1], settings)
        elif setting := _SETTING.fullmatch(line):
            _add_member(settings, setting[1].rstrip(), setting[2].strip())
        else:
            raise ValueError
    if settings is sections:
        raise ValueError
    return sections


def _read_yaml(text: str) -> object:
    reader = _YamlReader()
    documents = [reader.read(node, _MAX_DEPTH) for node in yaml.compose_all(text, Loader=_LOADER)]
    documents = [document for document in documents if document is not None]  # empty ones
    if not all(isinstance(document, dict | list) for document in documents):
        return None
    return documents[0] if len(documents) == 1 else documents


class _YamlReader(msgspec.Struct):
    """Reads nodes, of which aliases can repeat some."""

    values: int = 0

    def read(self, node: yaml.Node, depth: int) -> Any:
        """Return the value of a node; a ValueError says that the text has too many values or levels, or other keys."""
        self.values += 1
        if self.values > _MAX_VALUES or depth == 0:
            raise ValueError
        if isinstance(node, yaml.ScalarNode):
            return _read_scalar(node)
        if isinstance(node, yaml.MappingNode):
            return self._read_members(node, depth - 1)
        return [self.read(item, depth - 1) for item in node.value]

    def _read_members(self, node: yaml.MappingNode, depth: int) -> dict[str, Any]:
        members: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise ValueError  # noqa: TRY004  # the text is not JSON
            if key.tag == f"{_TAG}merge":
                for base in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                    merged = {**self._read_base(base, depth), **merged}
            else:
                members[key.value] = self.read(value, depth)
        return {**merged, **members}

    def _read_base(self, node: yaml.Node, depth: int) -> dict[str, Any]:
        found = self.read(node, depth)
        if not isinstance(found, dict):
            raise ValueError  # noqa: TRY004  # the text is not JSON
        return found


def _read_scalar(node: yaml.ScalarNode) -> object:
    written: str = node.value
    if node.style:  # in quotes, or a block
        return written
    match node.tag.removeprefix(_TAG):
        case "null":
            return None
        case "bool" if (word := written.lower()) in ("true", "false"):
            return word == "true"
        case "int" | "float":
            return _read_number(written)
    return written
