"""Explains why a JMESPath expression finds nothing: the value does not have a key, or has it at another place."""

import json
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

from jmespath.exceptions import JMESPathError
from jmespath.functions import Functions
from jmespath.visitor import TreeInterpreter

from mcp_mirror.core.results.main_parts import find_column_names
from mcp_mirror.core.similar_names import find_nearest
from mcp_mirror.core.texts.embedded_json import read_json_container
from mcp_mirror.paths import MemoryPath, unescape_token
from mcp_mirror.payload.json_spans import kind_at, members, trim
from mcp_mirror.security.sanitize import as_expression_key, as_json_string
from mcp_mirror.types import Buffer, JsonToken, Location

NULL: Final = frozenset({"null", "None"})
"""Names of keys that no value has; a comparison with one is a comparison with null, as it was meant."""
_MAX_NAME: Final = 80
"""Bytes of a key that an error quotes."""
_MAX_LOCATION: Final = 200
"""Characters of the place of a key that an error names."""
_MAX_SEARCHED: Final = 10_000
"""Objects, arrays and texts of a value in which a key is searched."""
_OF_ARRAYS: Final = frozenset({"index_expression", "projection", "filter_projection", "flatten"})
"""Parts of expressions that select nothing from an object."""
_CHAINS: Final = _OF_ARRAYS | {"subexpression", "value_projection", "pipe"}
"""Parts of expressions whose first part is evaluated on the value, and the others on what it selects."""
_PROJECTIONS: Final = ("projection", "value_projection", "filter_projection")
"""Parts of expressions whose second part is evaluated on each item that the first one selects."""
_WHOLE: Final = ("identity", "current")
"""Parts of expressions that stand for the value itself."""

_MIN_ROWS: Final = 2
"""Items of an array that may be meant by the length of its object."""
_MAX_KEYS: Final = 500
"""Keys of a value with which a key that it does not have is compared."""
_MIN_RECORDS: Final = 4
"""Members of an object from which they may be its rows."""
_SAMPLED: Final = 20
"""Such members that are examined."""

Node = Mapping[str, Any]
"""A part of a parsed expression."""
_GeneralLocation = tuple[JsonToken | None, ...]
"""A place as `Location`, but None means all members of an object."""


def quote_key(name: str) -> str:
    """A key as an error names it."""
    return as_json_string(name, _MAX_NAME)


def walk(node: Node) -> Iterator[Node]:
    """Yield all parts of an expression."""
    yield node
    for child in node["children"]:
        if isinstance(child, Mapping):  # a slice has numbers
            yield from walk(child)


def find_made_keys(parsed: Node) -> frozenset[str]:
    """The keys of objects that an expression makes."""
    return frozenset(node["value"] for node in walk(parsed) if node["type"] == "key_val_pair")


def has_key(blob: Buffer, name: str) -> bool:
    """Whether any object in JSON text has a key, written with or without escapes for characters beyond ASCII."""
    return re.search(_match_name(name) + rb"\s*:", blob) is not None


def _match_name(name: str) -> bytes:
    """The pattern of a key or a text in JSON."""
    forms = {json.dumps(name), json.dumps(name, ensure_ascii=False)}
    return f"(?:{'|'.join(map(re.escape, forms))})".encode("utf-8", "surrogatepass")


def explain_nothing(parsed: Node, blob: Buffer, value: Any) -> str | None:
    """Explain why an expression finds nothing, and name the next step; None if its keys are where it looks for them."""
    made = find_made_keys(parsed)
    names = dict.fromkeys(node["value"] for node in walk(parsed) if node["type"] == "field")
    for name in names:
        if name in made | NULL or has_key(blob, name):
            continue
        reason, plain = f"No object of the value has the key {quote_key(name)}.", unescape_token(name)
        if plain != name and has_key(blob, plain):
            return f"{reason} It is escaped as in a path: write {quote_key(plain)}."
        if (place := _find_text_with_key(value, name)) is not None:
            return f"{reason} The text at {place} contains JSON with this key: add {place} to `memory_path`."
        if cells := _find_column(blob, name):
            return f"{reason} The rows are arrays: the cells of this column are {cells}."
        return reason + _name_alternative(name, value)
    return _explain_part(parsed, value) or _explain_texts(parsed, blob)


def explain_length(parsed: Node, value: Any) -> str | None:
    """Explain that `length(@)` counts the keys of an object, which has rows; None for other expressions and values."""
    if parsed["type"] == "pipe" and parsed["children"][0]["type"] in _WHOLE:
        parsed = parsed["children"][1]
    is_length = parsed["type"] == "function_expression" and parsed["value"] == "length"
    if not is_length or parsed["children"][0]["type"] not in _WHOLE or not isinstance(value, dict):
        return None
    arrays = {key: member for key, member in value.items() if isinstance(member, list)}
    place = (max(arrays, key=lambda key: len(arrays[key])),) if arrays else _find_rows(value)
    rows: Any = value
    for key in place:
        rows = rows[key]
    located, count = _format_location(place), len(rows)
    if not place or count < _MIN_ROWS or len(located) > _MAX_LOCATION:
        return None
    if not isinstance(rows[0], dict) and count <= len(value):
        return None
    return f"length(@) is {len(value):,}, the number of keys: length({located}) is {count:,}."


def _explain_texts(parsed: Node, blob: Buffer) -> str | None:
    """Explain that an expression compares two keys, where the name of the second is a text of the first."""
    for left, right in (node["children"] for node in walk(parsed) if node["type"] == "comparator"):
        if left["type"] != "field" or right["type"] != "field" or right["value"] in NULL:
            continue
        key, text = left["value"], right["value"]
        if re.search(_match_name(key) + rb"\s*:\s*" + _match_name(text), blob):
            literal = "'" + quote_key(text)[1:-1].replace("'", "\\'") + "'"
            return f"{quote_key(text)} is a text of {quote_key(key)}, not only a key: write {literal}."
    return None


def _name_alternative(name: str, value: Any) -> str:
    """What a key was meant for that a value does not have, as a sentence after a space; empty if that is unknown."""
    if name in Functions.FUNCTION_TABLE:
        return f" It is a function: write | {name}(@) in place of the key."
    keys = (key for _, inner in _walk_value(value) if isinstance(inner, dict) for key in inner)
    near = find_nearest(name, dict.fromkeys(islice(keys, _MAX_KEYS)))
    return f" Similar keys: {', '.join(map(quote_key, near))}." if near else ""


def _find_column(blob: Buffer, name: str) -> str | None:
    """The expression of a column's cells, if the value is an object with an array of arrays and their names."""
    span = trim(blob)
    known = members(blob, span) if kind_at(blob, span.start) == "object" else ()
    for key, table in known:
        names = find_column_names(blob, known, table) if kind_at(blob, table.start) == "array" else ()
        if name in names:
            return f"{as_expression_key(key, _MAX_NAME)}[*][{[*names].index(name)}]"
    return None


def _find_text_with_key(value: Any, name: str) -> str | None:
    """The JSON Pointer of the first text that is JSON with a key, quoted; None without one."""
    for location, inner in _walk_value(value):
        if isinstance(inner, str) and location and json.dumps(name)[1:-1] in inner:
            json_text = read_json_container(inner)
            if json_text is not None and has_key(json_text, name):
                return _quote_pointer(location)
    return None


def _quote_pointer(location: _GeneralLocation) -> str | None:
    """The JSON Pointer of a location, quoted; None if it is too long for an error."""
    pointer = str(MemoryPath("", tuple(map(str, location))))
    quoted = as_json_string(pointer, _MAX_LOCATION)
    return quoted if json.loads(quoted) == pointer else None


def _explain_part(node: Node, value: Any, above: _GeneralLocation = ()) -> str | None:
    """Explain why a part of an expression finds nothing in `value`; None if it may find something.

    A chain such as `data.rows[].id` is followed from its first part on, as long as its parts select keys. `above` has
    the keys that the expression has selected before.
    """
    kind, children = node["type"], node["children"]
    if kind == "field":
        return _explain_key(node["value"], value, above)
    if kind not in _CHAINS:
        parts = () if kind == "expref" else (_explain_part(child, value, above) for child in children)
        return next(filter(None, parts), None)
    whole = value
    for at, child in enumerate(children):
        if at and kind != "subexpression":  # it is evaluated on each item
            return _explain_items(node, whole)
        reason, keys = _explain_part(child, value, above), _read_keys(child)
        if reason or keys is None:
            return reason or _explain_items(node, whole)
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        above = (*above, *keys)
        if kind in _OF_ARRAYS and isinstance(value, dict | str):
            return _explain_no_array(value, above)
    return None


def _explain_no_array(value: Mapping[str, Any] | str, location: _GeneralLocation) -> str | None:
    """Explain that an expression selects items of an object, or of a text, which may contain JSON."""
    if isinstance(value, Mapping):
        named = _format_location(location) or "The value"
        return f"{named} is an object, not an array: begin with {_name_rows(value, location)}."
    place = _quote_pointer(location) if location else None
    if place and read_json_container(value) is not None:
        return f"The text at {place} contains JSON: add {place} to `memory_path`."
    return f"The value at {place} is text, not an array." if place else None


def _explain_items(node: Node, value: Any, *, is_inner: bool = False) -> str | None:
    """Explain that the part after a projection selects from each of its items, or that a filter gets arrays.

    `rows[?open][0]` is the first item of each row: `rows[?open] | [0]` is the first row. So with `rows[].name[0]`.
    `is_inner`: the projection is within another one, such as `groups[].rows[?open][0]`, and `value` is an item.
    """
    kind, children = node["type"], node["children"]
    if kind not in _PROJECTIONS:
        return None
    if found := _find_selector(children[1]):
        name, before = found
        items = _evaluate({**node, "children": [children[0], before, *children[2:]]}, value)
        if items and not any(isinstance(item, list) for item in items):
            form = f".[KEYS | {name}] for those of each array" if is_inner else f"| {name} for all items"
            return f"{name} selects from each item before it, and no item is an array: write {form}."
    rows = _evaluate(children[0], value) if kind == "filter_projection" else None
    if isinstance(rows, list) and rows and all(isinstance(row, list) for row in rows):
        inner = next((item for row in rows for item in row), None)
        return (
            "The items before [?...] are arrays: write [] | [?...] in its place." if isinstance(inner, dict) else None
        )
    outer = _evaluate(children[0], value)
    item = next(filter(None, outer), None) if isinstance(outer, list) else None
    return _explain_items(children[1], item, is_inner=True) if item else None


def _find_selector(node: Node) -> tuple[str, Node] | None:
    """Return the first index or filter in the part after a projection, as an error names it, and the keys before it."""
    kind, children = node["type"], node["children"]
    if kind in _OF_ARRAYS and _read_keys(children[0]) is not None:
        index = children[1] if kind == "index_expression" else {}
        name = f"[{index['value']}]" if index.get("type") == "index" else "[...]"
        return "[?...]" if kind == "filter_projection" else name, children[0]
    for at, child in enumerate(children if kind in _CHAINS else ()):
        if found := _find_selector(child):
            name, before = found
            return name, {"type": "subexpression", "children": [*children[:at], before]}
        if kind != "subexpression" or _read_keys(child) is None:
            break
    return None


def _evaluate(node: Any, value: Any) -> Any:
    """Return what a part of an expression selects from a value; None if the value does not fit it."""
    try:
        return TreeInterpreter().visit(node, value)
    except JMESPathError:
        return None


def _explain_key(name: str, value: Any, above: _GeneralLocation) -> str | None:
    if isinstance(value, dict) and name not in value:
        place = _find_place(value, name, above)
        return place and f"The key {quote_key(name)} is within other values: begin with {place}."
    if isinstance(value, list):
        path, item = _format_location(above), _format_location((*above, 0, name))
        named = path or "The value"
        return f"{named} is an array: begin with {path}[] for all of its items, as in {item}."
    return None


def _read_keys(node: Node) -> tuple[str, ...] | None:
    """The keys that a part of an expression selects one within the other; None for any other part."""
    if node["type"] in _WHOLE:
        return ()
    if node["type"] == "field":
        return (node["value"],)
    if node["type"] != "subexpression":
        return None
    parts = [*map(_read_keys, node["children"])]
    return None if None in parts else tuple(key for part in parts if part for key in part)


def _name_rows(value: Mapping[str, Any], above: _GeneralLocation) -> str:
    """The place of an object's first array of objects, or an expression for an array of its members."""
    place = _find_rows(value)
    located = _format_location((*above, *place))
    is_short = len(located) <= _MAX_LOCATION and all(len(key) <= _MAX_NAME for key in place)
    return located if place and is_short else f"values({_format_location(above) or '@'})"


def _find_rows(value: Mapping[str, Any]) -> tuple[str, ...]:
    """The keys to the first array of objects, which may be within objects that are the only ones at their places."""
    keys: tuple[str, ...] = ()
    for _ in range(_MAX_LOCATION):  # a place of more keys is too long to be named
        for key, member in value.items():
            if isinstance(member, list) and member and isinstance(member[0], dict):
                return (*keys, key)
        inner = [(key, member) for key, member in value.items() if isinstance(member, dict)]
        if len(inner) != 1:
            break
        ((key, value),) = inner
        keys = (*keys, key)
    return ()


def _find_place(value: Any, name: str, above: _GeneralLocation) -> str | None:
    """The expression for the first object, and its key; None without one."""
    for location, inner in _walk_value(value):
        if isinstance(inner, dict) and name in inner:
            place = _format_location((*above, *_generalize(value, (*location, name))))
            return place if len(place) <= _MAX_LOCATION and place.isprintable() else None
    return None


def _generalize(value: Any, location: Location) -> Iterator[JsonToken | None]:
    """Yield the tokens of a location, with None in place of the key of one record among others."""
    for token, following in zip(location, (*location[1:], None), strict=True):
        samples = [*islice(value.values(), _SAMPLED)] if isinstance(value, dict) else []
        is_record = len(samples) >= _MIN_RECORDS and all(
            isinstance(sample, dict) and following in sample for sample in samples
        )
        yield None if is_record else token
        value = value[token]


def _walk_value(value: Any) -> Iterator[tuple[Location, Any]]:
    """Yield a value and the values within it with their locations, those of the highest levels first.

    Of an array, only the first item counts: the others resemble it.
    """
    waiting: deque[tuple[Location, Any]] = deque([((), value)])
    seen = 1
    while waiting:
        location, node = waiting.popleft()
        yield location, node
        children: Iterable[tuple[JsonToken, Any]] = node.items() if isinstance(node, dict) else ()
        if isinstance(node, list):
            children = enumerate(node[:1])
        for token, child in children:
            if seen < _MAX_SEARCHED and isinstance(child, dict | list | str):
                waiting.append(((*location, token), child))
                seen += 1


def _format_location(location: _GeneralLocation) -> str:
    """The expression for a location: all items of an array, and all members of an object for None."""
    written = ""
    for token in location:
        if isinstance(token, int):
            written += "[]"
        elif token is None:
            written += ".*"
        else:
            is_plain = token.isascii() and token.isidentifier()
            written += f".{token if is_plain else json.dumps(token, ensure_ascii=False)}"
    return written.removeprefix(".")
