"""Ranks tools for a search: BM25 over the words of their names, descriptions and parameters.

Words are split at case changes and punctuation, and stemmed. A word of the search also finds related words
(`related_words`) with less weight.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from typing import Any, Final, Protocol

from mcp_mirror.core.related_words import RELATED, STOP_WORDS
from mcp_mirror.core.schema import remove_hint
from mcp_mirror.payload.floods import Steps

_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^\W\d_]")
_SUMMARY_END: Final = re.compile(r"(?<=[.!?])\s|\n")
_MAPS: Final = frozenset(("properties", "$defs", "definitions"))
_SUBSCHEMAS: Final = frozenset(("items", "anyOf", "oneOf", "allOf", "additionalProperties"))
_MAX_PARAMETERS: Final = 500
"""Names, descriptions and values of parameters that count."""
_MAX_CHARACTERS: Final = 4_000
"""Characters of a text that count."""
_MAX_QUERY_WORDS: Final = 40
_SHORTEST_STEM: Final = 3
_LONGEST_WORD: Final = 32
_PLURAL: Final = re.compile(r"[^siu]s$")
_ES: Final = re.compile(r"(?:ch|sh|x|ss|z)es$")
_VERB_FORM: Final = re.compile(r"(\w*[aeiouy]\w*\w)(?:ing|ed)")
_DOUBLED: Final = re.compile(r"([^lsz])\1$")
_SATURATION: Final = 1.6
"""`k1` of BM25: how much a repeated word adds."""
_LENGTH: Final = 0.25
"""`b` of BM25: how much long texts are discounted."""
_RELATED_WEIGHT: Final = 0.7
"""The weight of a related word, where a word of the search has 1."""
_NAME_LENGTH: Final = 0.3
"""How much the words of a long name are discounted: the power of their number."""
_COVERAGE: Final = 0.5
"""How much more a tool counts that matches several words of a search: the power of their number."""
_WEIGHTS: Final[Mapping[str, float]] = {
    "name": 3.0,
    "upstream": 1.0,
    "title": 1.0,
    "summary": 1.0,
    "description": 0.5,
    "parameter": 1.0,
    "parameter description": 0.2,
    "parameter value": 0.4,
}
"""How much a word counts by the part of the definition that contains it."""


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
    def schema(self) -> Mapping[str, Any]:
        """The upstream's input schema."""


class ToolIndex:
    """An index of tools. It does not change."""

    def __init__(self, names: Sequence[str], postings: Mapping[str, Sequence[tuple[int, float]]]) -> None:
        """Keep an index.

        Args:
            names: The names of the tools.
            postings: By stem, the tools that contain it and how much it counts in each.
        """
        self._names = names
        self._postings = postings

    def search(self, query: str, limit: int) -> list[str]:
        """Return the names of the tools that match a search, the best first.

        Args:
            query: Words in any language.
            limit: The most names to return.
        """
        scores: dict[int, float] = defaultdict(float)
        matches: dict[int, int] = defaultdict(int)
        for variants in self._expand(query):
            best: dict[int, float] = {}
            for stem, weight in variants.items():
                for tool, score in self._postings.get(stem, ()):
                    best[tool] = max(best.get(tool, 0.0), weight * score)
            for tool, score in best.items():
                scores[tool] += score
                matches[tool] += 1
        for tool, count in matches.items():
            scores[tool] *= count**_COVERAGE
        ranked = sorted(scores, key=lambda tool: (-scores[tool], tool))
        return [self._names[tool] for tool in ranked[:limit]]

    def _expand(self, query: str) -> Iterable[Mapping[str, float]]:
        """Each word of a search, and each pair of words written as one, with the related stems and their weights."""
        words = split_words(query)[:_MAX_QUERY_WORDS]
        for stem in dict.fromkeys(stem_word(word) for word in words if word not in STOP_WORDS):
            yield {**dict.fromkeys(_RELATED.get(stem, ()), _RELATED_WEIGHT), stem: 1.0}
        for joined in dict.fromkeys(stem_word(f"{one}{other}") for one, other in pairwise(words)):
            if joined in self._postings:
                yield {joined: 1.0}


def build_index(tools: Iterable[IndexedTool]) -> Steps[ToolIndex]:
    """Build the index in steps of one tool."""
    names: list[str] = []
    counts: list[Mapping[str, float]] = []
    for tool in tools:
        yield
        names.append(tool.name)
        counts.append(_count_stems(tool))
    lengths = [sum(each.values()) for each in counts]
    average = sum(lengths) / len(lengths) if lengths else 1.0
    containing: dict[str, int] = defaultdict(int)
    for each in counts:
        for stem in each:
            containing[stem] += 1
    postings: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for number, each in enumerate(counts):
        yield
        norm = _SATURATION * (1 - _LENGTH + _LENGTH * lengths[number] / average)
        for stem, count in each.items():
            rarity = math.log(1 + (len(counts) - containing[stem] + 0.5) / (containing[stem] + 0.5))
            postings[stem].append((number, rarity * count * (_SATURATION + 1) / (count + norm)))
    return ToolIndex(names, postings)


def _count_stems(tool: IndexedTool) -> Mapping[str, float]:
    counts: dict[str, float] = defaultdict(float)
    for part, text in _list_texts(tool):
        words = split_words(text)
        weight = _WEIGHTS[part] / (max(len(words), 1) ** _NAME_LENGTH if part == "name" else 1)
        for word in words:
            if word not in STOP_WORDS:
                counts[stem_word(word)] += weight
    return counts


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
    return word.removesuffix("e") if len(word) > _SHORTEST_STEM else word


def _read_related_words() -> Mapping[str, frozenset[str]]:
    related: dict[str, set[str]] = defaultdict(set)
    for line in RELATED:
        stems = [stem_word(word) for word in line.split()]
        for stem in stems:
            related[stem].update(stems)
    return {stem: frozenset(others - {stem}) for stem, others in related.items()}


_RELATED: Final = _read_related_words()
