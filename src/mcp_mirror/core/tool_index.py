"""Ranks tools for a search, and summarizes them: BM25 over the words of their names, descriptions and parameters.

Words are split at case changes and punctuation, and stemmed. A word of the search also finds related words
(`related_words.txt`) with less weight. A word and its related words count as one word, as rare as all of them together.
"""

import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from importlib.resources import files
from itertools import islice, pairwise
from typing import Any, Final, Protocol

import msgspec

from mcp_mirror.core.schemas.accepted_types import types_at
from mcp_mirror.core.schemas.references import Schema, as_mapping, read_required
from mcp_mirror.core.schemas.twin_schemas import remove_hint
from mcp_mirror.security.sanitize import cut, sanitize
from mcp_mirror.system.patterns import lazy_pattern
from mcp_mirror.system.slices import Steps

_WORD: Final = lazy_pattern(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^\W\d_]")
_SUMMARY_END: Final = lazy_pattern(r"(?<=[.!?])\s|\n")
_MAPS: Final = frozenset(("properties", "$defs", "definitions"))
_SUBSCHEMAS: Final = frozenset(("items", "anyOf", "oneOf", "allOf", "additionalProperties"))
_MAX_PARAMETERS: Final = 500
"""Names, descriptions and values of parameters that count."""
_MAX_CHARACTERS: Final = 4_000
"""Characters of a text that count."""
_MAX_WORDINGS: Final = 8
_MAX_WORDS: Final = 40
"""Words of one wording that count."""
_MAX_LONGER: Final = 5
"""Longer words that a word finds that no tool contains, such as *mongodb* for *mongo*."""
_SHORTEST_STEM: Final = 3
_LONGEST_WORD: Final = 32
_PLURAL: Final = lazy_pattern(r"[^siu]s$")
_ES: Final = lazy_pattern(r"(?:ch|sh|x|ss|z)es$")
_VERB_FORM: Final = lazy_pattern(r"(\w*[aeiouy]\w*\w)(?:ing|ed)")
_NOUN: Final = lazy_pattern(r"(\w{4,})(?:ment|ation|ion)")
_DOUBLED: Final = lazy_pattern(r"([^lsz])\1$")
_SATURATION: Final = 4.0
"""`k1` of BM25: how much a repeated word adds."""
_RELATED_WEIGHT: Final = 0.6
"""The weight of a related word, where a word of the search has 1."""
_MATCHES_POWER: Final = 0.75
"""The power of the number of matching words of a search by which the score of a tool is multiplied."""
_NAMED_WEIGHT: Final = 1.1
"""How many times the best other score a tool gets if its name has the words of the search and no others."""
_PARTS: Final[Mapping[str, tuple[float, float]]] = {
    "name": (6.0, 1.0),
    "upstream": (2.0, 0.4),
    "title": (0.25, 0.8),
    "summary": (2.0, 0.4),
    "description": (0.25, 0.4),
    "parameter": (0.7, 0.7),
    "parameter description": (0.4, 0.8),
    "parameter value": (0.7, 0.2),
}
"""By the part of a definition, the weight of its words, and `b` of BM25: how much its length is discounted."""
_STOP_WORDS: Final = frozenset(
    _WORD.findall(
        "a an the of to in on at for from with by as is are was were be been being has have had do does did it its "
        "this that these those and or not if then so than all any each every some more most much very just also only "
        "no about per via such up onto into here there how when where why what which i we you he she they them their "
        "me my our us your can could should would will may might must please use using used tool someone something"
    )
)
"""Words that say nothing about a tool."""
_MAX_LINE_BYTES: Final = 160
_MAX_SIGNATURE_BYTES: Final = 400
_MAX_ARGUMENTS: Final = 24
_MAX_CHOICES: Final = 6
"""The most values of an enumeration that a signature shows."""
_MAX_SCANNED: Final = 2_000
"""Characters of a description that are searched for the end of its first sentence."""
_SENTENCE_END: Final = lazy_pattern(r"(?<=[.!?])\s")
_SHORT: Final[Mapping[str, str]] = {"integer": "int", "boolean": "bool"}
_EVERY_TYPE: Final = 5
"""The number of JSON types other than null, counting `integer` as a number."""


_Postings = tuple[bytes, bytes]
"""The tools that contain a stem, unsigned integers, and its weighted frequency in each, doubles. As `bytes`, since a
collection of garbage visits each array, list and tuple of a large index."""
_NO_POSTINGS: Final[_Postings] = b"", b""


class IndexedTool(Protocol):
    """A tool with the texts that a search reads."""

    @property
    def name(self) -> str:
        """The name under which clients see the tool: the result of a search."""

    @property
    def upstream(self) -> str:
        """The name of its upstream."""

    @property
    def tool(self) -> str:
        """The upstream's own name of the tool."""

    @property
    def advert(self) -> Mapping[str, Any]:
        """The definition that clients see."""

    @property
    def schema(self) -> Schema:
        """The input schema, of an upstream's tool the upstream's."""


class ToolIndex(msgspec.Struct, frozen=True):
    """An index of tools."""

    names: Sequence[str]
    postings: Mapping[str, _Postings]
    """By stem."""
    named: Mapping[str, bytes]
    """By the spellings of a name, the tools with this name: unsigned integers."""

    def search(self, query: str, limit: int) -> list[str]:
        """Return the names of the tools that match a search, the best first.

        A search may have several wordings, separated by semicolons. Each counts the same: its best tool gets 1.
        """
        totals: dict[int, float] = defaultdict(float)
        for wording in query.split(";", _MAX_WORDINGS - 1):
            scores = self._score(wording)
            best = max(scores.values(), default=1.0)
            for tool, score in scores.items():
                totals[tool] += score / best
        ranked = sorted(totals, key=lambda tool: (-totals[tool], tool))
        return [self.names[tool] for tool in ranked[:limit]]

    def _score(self, wording: str) -> Mapping[int, float]:
        """Return the score of each tool that matches one wording."""
        scores: dict[int, float] = defaultdict(float)
        matches: dict[int, float] = defaultdict(float)
        for variants in self._expand(wording):
            frequencies: dict[int, float] = defaultdict(float)
            strengths: dict[int, float] = defaultdict(float)
            for stem, weight in variants.items():
                for tool, frequency in self._list_tools(stem):
                    frequencies[tool] += weight * frequency
                    strengths[tool] = max(strengths[tool], weight)
            containing = sum(strengths.values())
            rarity = math.log(1 + (len(self.names) - containing + 0.5) / (containing + 0.5))
            for tool, frequency in frequencies.items():
                scores[tool] += rarity * frequency / (frequency + _SATURATION)
                matches[tool] += strengths[tool]
        for tool, count in matches.items():
            scores[tool] *= count**_MATCHES_POWER  # tools that match several words of the search come first
        best = max(scores.values(), default=1.0)
        for spelling in _spell_name(wording):  # a tool with this very name comes first of all
            best *= _NAMED_WEIGHT
            scores.update(dict.fromkeys(memoryview(self.named.get(spelling, b"")).cast("I"), best))
        return scores

    def _list_tools(self, stem: str) -> Iterable[tuple[int, float]]:
        """The tools that contain a stem, with its weighted frequency in each."""
        tools, frequencies = self.postings.get(stem, _NO_POSTINGS)
        return zip(memoryview(tools).cast("I"), memoryview(frequencies).cast("d"), strict=True)

    def _expand(self, wording: str) -> Iterable[Mapping[str, float]]:
        """Each word of a wording, and each pair of words written as one, with the related stems and their weights."""
        words = split_words(wording)[:_MAX_WORDS]
        for stem in dict.fromkeys(stem_word(word) for word in words if word not in _STOP_WORDS):
            yield self._find_variants(stem)
        for joined in dict.fromkeys(stem_word(f"{one}{other}") for one, other in pairwise(words)):
            if joined in self.postings or joined in _related_stems():
                yield self._find_variants(joined)

    def _find_variants(self, stem: str) -> Mapping[str, float]:
        """A stem, its related stems, and for an unknown stem those that begin with it, with their weights."""
        variants = dict.fromkeys(_related_stems().get(stem, ()), _RELATED_WEIGHT)
        if stem not in self.postings and len(stem) > _SHORTEST_STEM:
            longer = (other for other in self.postings if other.startswith(stem))
            variants |= dict.fromkeys(islice(longer, _MAX_LONGER), _RELATED_WEIGHT)
        return {**variants, stem: 1.0}


def build_index(tools: Iterable[IndexedTool]) -> Steps[ToolIndex]:
    """Build the index in steps of one tool or stem."""
    names: list[str] = []
    named: dict[str, array[int]] = defaultdict(partial(array, "I"))
    totals: dict[str, array[int]] = {part: array("I") for part in _PARTS}
    counts: dict[str, array[int]] = defaultdict(partial(array, "I"))
    for number, tool in enumerate(tools):
        yield
        for spelling in _spell_name(tool.tool):
            named[spelling].append(number)
        names.append(tool.name)
        stems_by_part: dict[str, Counter[str]] = {part: Counter() for part in _PARTS}
        for part, text in _list_texts(tool):
            stems_by_part[part].update(stem_word(word) for word in split_words(text) if word not in _STOP_WORDS)
        for at, (part, stems) in enumerate(stems_by_part.items()):
            totals[part].append(stems.total())
            for stem, count in stems.items():
                counts[stem].extend((number, at, count))
    postings: dict[str, _Postings] = {}
    parts = [(*_PARTS[part], each, sum(each) / max(len(each), 1)) for part, each in totals.items()]
    for stem in tuple(counts):
        yield
        weights: dict[int, float] = defaultdict(float)
        found = iter(counts.pop(stem))
        for number, at, count in zip(found, found, found, strict=True):
            weight, discount, stems_of_tools, average = parts[at]
            weights[number] += weight / (1 - discount + discount * stems_of_tools[number] / average) * count
        postings[stem] = array("I", weights).tobytes(), array("d", weights.values()).tobytes()
    return ToolIndex(names, postings, {spelling: found.tobytes() for spelling, found in named.items()})


def _spell_name(name: str) -> Iterator[str]:
    """The spellings of a name in the order of their precision: its stems, and its words, both in alphabetical order."""
    words = split_words(name)
    stems = (stem_word(word) for word in words if word not in _STOP_WORDS)
    for kind, spelled in (("stems", stems), ("words", words)):
        if text := " ".join(sorted(set(spelled))):
            yield f"{kind}: {text}"


def _list_texts(tool: IndexedTool) -> Iterable[tuple[str, str]]:
    """The texts of a tool, each with the part of the definition that it is from."""
    definition = tool.advert
    yield "name", tool.tool
    yield "upstream", tool.upstream
    annotations = definition.get("annotations")
    for title in (definition.get("title"), annotations.get("title") if isinstance(annotations, Mapping) else None):
        if isinstance(title, str):
            yield "title", title
    description = remove_hint(str(definition.get("description") or ""))
    yield "summary", _SUMMARY_END.split(description.lstrip(), maxsplit=1)[0]
    yield "description", description
    yield from islice(_list_parameters(tool.schema), _MAX_PARAMETERS)


def _list_parameters(schema: object) -> Iterator[tuple[str, str]]:
    """The names, descriptions and values of the parameters in a schema, at any depth."""
    pending = [schema]
    for part in pending:
        pending += part if isinstance(part, list) else ()
        for key, value in part.items() if isinstance(part, dict) else ():
            if key in _MAPS and isinstance(value, dict):
                yield from (("parameter", name) for name in value if key == "properties")
                pending += value.values()
            elif key == "description" and isinstance(value, str):
                yield "parameter description", value
            elif key == "enum" and isinstance(value, list):
                yield from (("parameter value", one) for one in value if isinstance(one, str))
            elif key in _SUBSCHEMAS:
                pending.append(value)


def split_words(text: str) -> list[str]:
    """Return the words of a text or a name in lower case, split at case changes, digits and punctuation."""
    return [word.lower() for word in _WORD.findall(text[:_MAX_CHARACTERS])]


def stem_word(word: str) -> str:
    """Return a word in lower case without the endings of plurals, verb forms and a silent e.

    On the searches of the tests the Snowball stemmer finds no more.
    """
    word = word[:_LONGEST_WORD]
    if word.endswith("ies") and len(word) > _SHORTEST_STEM + 1:
        word = f"{word[:-3]}y"
    elif _PLURAL.search(word) and len(word) > _SHORTEST_STEM:
        word = word[: -2 if word.endswith("es") and _ES.search(word) else -1]
    if (verb := _VERB_FORM.fullmatch(word)) is not None:
        word = verb[1][:-1] if _DOUBLED.search(verb[1]) else verb[1]
    if (noun := _NOUN.fullmatch(word)) is not None:
        return noun[1]
    return word.removesuffix("e") if len(word) > _SHORTEST_STEM else word


@cache
def _related_stems() -> Mapping[str, Sequence[str]]:
    """Other stems that people use for the same thing in tasks and in definitions of tools, by stem.

    Each line of the file has words that mean the same, or where one is done with the other. A word may be in several.
    """
    related: dict[str, set[str]] = defaultdict(set)
    for line in files(__package__).joinpath("related_words.txt").read_text("utf-8").splitlines():
        stems = [stem_word(word) for word in line.split()]
        for stem in stems:
            related[stem].update(stems)
    return {stem: sorted(others - {stem}) for stem, others in related.items()}


def summarize_tool(name: str, advert: Mapping[str, Any], schema: Schema) -> str:
    """Return two lines: the tool's name with its arguments, and the first sentence of its description."""
    line = describe_in_one_line(remove_hint(str(advert.get("description") or "")))
    return f"{name}({write_signature(advert, schema)})" + (f"\n  {line}" if line else "")


def describe_in_one_line(description: str) -> str:
    """Return the first sentence of a description on one line, at most 160 bytes."""
    text = " ".join(description[:_MAX_SCANNED].split())
    return cut(sanitize(_SENTENCE_END.split(text, maxsplit=1)[0]), _MAX_LINE_BYTES)


def write_signature(advert: Mapping[str, Any], schema: Schema) -> str:
    """Return the arguments of a tool with their types, required ones first; `?` marks the others."""
    own = advert["inputSchema"]
    properties, originals = (as_mapping(one.get("properties")) for one in (own, schema))
    required = read_required(own)
    find_types = types_at(schema)
    names = sorted(properties, key=lambda name: name not in required)
    written = [
        f"{name}{'' if name in required else '?'}: {_write_type(originals.get(name), find_types((name,)))}"
        for name in names[:_MAX_ARGUMENTS]
    ]
    if len(names) > _MAX_ARGUMENTS:
        written.append("...")
    return cut(sanitize(", ".join(written)), _MAX_SIGNATURE_BYTES)


def _write_type(schema: object, types: frozenset[str]) -> str:
    choices = schema.get("enum") if isinstance(schema, Mapping) else None
    if isinstance(choices, list) and 0 < len(choices) <= _MAX_CHOICES:
        return "|".join(str(choice) for choice in choices)
    shown = sorted(types - {"null"} - ({"integer"} if "number" in types else set()))
    return "|".join(_SHORT.get(one, one) for one in shown) if 0 < len(shown) < _EVERY_TYPE else "any"
