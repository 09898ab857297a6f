"""Computes an upper bound on the work of validation.

A recursive or nested schema can cost exponential time.
"""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from mcp_mirror.core.schemas.references import References, Schema, as_mapping, as_sequence, iterate_subschemas
from mcp_mirror.system.patterns import lazy_pattern

_MAX_SUBSCHEMAS: Final = 10_000
_MAX_DEPTH: Final = 64
_UNITS_PER_PATTERN_BYTE: Final = 20
"""Units of work per byte of the arguments for each pattern."""
_UNITS_PER_MULTIPLE: Final = 200
"""Units of work for each number that may have to be a multiple of another one: it is a fraction of large integers."""
_UNITS_PER_MULTIPLE_BYTE: Final = 100
"""Units of work per byte of arguments with a number that has many digits or a large exponent."""
_LARGE_NUMBER: Final = lazy_pattern(rb"\d[eE][+-]?\d\d|[\d.]{20}")
_MULTIPLES: Final = (1e-12, 1e12)
"""The range of a `multipleOf` for which the units above are a bound."""
_UNBOUNDED: Final = frozenset(("$dynamicRef", "$recursiveRef", "unevaluatedProperties", "unevaluatedItems"))
_SCANNING: Final = frozenset(("format", "contentEncoding", "contentMediaType"))
"""Keywords that read a text to its end, as a pattern does."""
_BACKTRACKING_SYNTAX: Final = lazy_pattern(r"\(\?(?![:imsx])|\\[1-9kgGK]|[+*?}]\+")
"""Look-around, back references and atomic groups: the engine matches such patterns by backtracking."""
_DIALECT: Final = lazy_pattern(r"https?://json-schema\.org/(draft-0[4-7]|draft/20(19-09|20-12))/schema#?")


class UnboundedError(Exception):
    """Validation may take exponential time."""


class Cost(msgspec.Struct, frozen=True):
    """An upper bound on the work of validation."""

    subschemas: int
    """Subschemas that are evaluated for one value of the arguments, references followed."""
    patterns: int
    names: int = 0
    """Subschemas of the names of members. Each wrong name is an error with a copy of the object."""
    multiples: int = 0
    """Subschemas that accept only multiples of a number."""

    def work(self, arguments: bytes) -> int:
        """Maximum units of work for these arguments; a unit is about 0.1 µs."""
        work = self.subschemas * _count_values(arguments) + _UNITS_PER_PATTERN_BYTE * self.patterns * len(arguments)
        if self.multiples:
            work += _UNITS_PER_MULTIPLE * self.multiples * _count_values(arguments)
            if _LARGE_NUMBER.search(arguments):
                work += _UNITS_PER_MULTIPLE_BYTE * self.multiples * len(arguments)
        return work

    def copied_bytes(self, arguments: bytes) -> int:
        """Maximum bytes of the values in all errors of these arguments."""
        return (self.subschemas + self.names * _count_values(arguments)) * len(arguments)


def _count_values(arguments: bytes) -> int:
    return 1 + sum(map(arguments.count, (b",", b"[", b"{")))


def estimate_cost(schema: Schema) -> Cost | None:
    """The cost of a schema; None if the schema is recursive, too large or not understood.

    References count as often as validation follows them, so nested alternatives multiply. Each subschema is visited
    once.
    """
    try:
        return CostCounter(References(schema)).of(schema)
    except UnboundedError:
        return None


class CostCounter(msgspec.Struct, frozen=True):
    """Computes the costs of the parts of one schema, each once."""

    references: References
    bounds_time: bool = True
    """False: accept patterns that need backtracking, and multiples of any number: they add no errors."""
    _known: dict[int, Cost | None] = msgspec.field(default_factory=dict)
    """By identity; None while the cost of a schema is being computed."""

    def of(self, subschema: Any, depth: int = 0) -> Cost:
        """The cost of a part that validation reaches through so many others; UnboundedError if it has none."""
        if not isinstance(subschema, dict):
            return Cost(1, 0)
        if id(subschema) not in self._known:
            self._known[id(subschema)] = None
            try:
                self._known[id(subschema)] = self._sum(subschema, depth)
            except UnboundedError:
                del self._known[id(subschema)]  # at another depth, the part may have a cost
                raise
        if (known := self._known[id(subschema)]) is None:
            raise UnboundedError
        return known

    def _sum(self, subschema: Schema, depth: int) -> Cost:
        if depth > _MAX_DEPTH or not _is_understood(subschema, is_root=not depth):
            raise UnboundedError
        texts = _list_patterns(subschema)
        if self.bounds_time and (any(map(_BACKTRACKING_SYNTAX.search, texts)) or _has_extreme_multiple(subschema)):
            raise UnboundedError
        lists = sum(map(len, _iterate_lists(subschema)))
        below = [
            self.of(inner, depth + 1) for inner in (*self.references.targets(subschema), *iterate_subschemas(subschema))
        ]
        cost = Cost(
            1 + lists + sum(cost.subschemas for cost in below),
            len(texts) + len(_SCANNING.intersection(subschema)) + sum(cost.patterns for cost in below),
            ("propertyNames" in subschema) + sum(cost.names for cost in below),
            ("multipleOf" in subschema) + sum(cost.multiples for cost in below),
        )
        if cost.subschemas > _MAX_SUBSCHEMAS:
            raise UnboundedError
        return cost


def _is_understood(subschema: Schema, *, is_root: bool) -> bool:
    dialect = subschema.get("$schema", "https://json-schema.org/draft/2020-12/schema")
    embedded = not is_root and ("$id" in subschema or "id" in subschema)
    known = isinstance(dialect, str) and _DIALECT.fullmatch(dialect) is not None
    return known and not embedded and _UNBOUNDED.isdisjoint(subschema) and subschema.get("format") != "regex"


def _has_extreme_multiple(subschema: Schema) -> bool:
    """Whether values must be multiples of a very small or very large number, which takes long for each value."""
    least, most = _MULTIPLES
    multiple = subschema.get("multipleOf", 1)
    return isinstance(multiple, int | float) and not least <= multiple <= most


def _iterate_lists(subschema: Schema) -> Iterator[list[Any]]:
    """Yield the lists of a schema whose items are checked one by one, and can each be an error."""
    yield from (as_sequence(subschema.get(word)) for word in ("enum", "required"))
    for word in ("dependentRequired", "dependencies"):
        yield from map(as_sequence, as_mapping(subschema.get(word)).values())


def _list_patterns(subschema: Schema) -> list[str]:
    own = [str(subschema["pattern"])] if "pattern" in subschema else []
    return [*own, *as_mapping(subschema.get("patternProperties"))]
