"""Writes the table of costs in the format that the package reads in place (`mcp_mirror.tokens`)."""

import json
from collections.abc import Mapping
from typing import Final

from mcp_mirror.tokens.costs import CostTable, compute_row_size, lane
from mcp_mirror.tokens.lexicon import BOUNDARY, HEAD, ROW, Lexicon

_BLOCK: Final = 512
"""Bytes of names after which the next block begins."""


def lanes(packed: int, count: int) -> list[int]:
    """The numbers of the first `count` tokenizers."""
    return [lane(packed, at) for at in range(count)]


def encode_table(table: CostTable) -> bytes:
    """Encode the table for the package: uncompressed, so that it can be memory-mapped and read in place.

    The format is a line of JSON, the pieces and the parts (`pack_lexicon`), then the rows of costs in lanes.
    """
    width = len(table.tokenizers)
    rows = {packed: at for at, packed in enumerate(dict.fromkeys([*table.costs.values(), *table.parts.values()]))}
    lexicons = [
        pack_lexicon({name: rows[packed] for name, packed in each.items()}) for each in (table.costs, table.parts)
    ]
    header = {
        "tokenizers": table.tokenizers,
        "margins": [[margin.share, margin.deviations, margin.noise] for margin in table.margins],
        "joints": table.joints,
        "rules": {
            name: [[*rule.weights, rule.spread, rule.doubt] for rule in rules] for name, rules in table.rules.items()
        },
        "unknown": {name: lanes(packed, width) for name, packed in table.unknown.items()},
        "bytes": [len(each) for each in lexicons],
    }
    numbers = b"".join(packed.to_bytes(compute_row_size(width), "little") for packed in rows)
    return json.dumps(header).encode() + b"\n" + b"".join(lexicons) + numbers


def pack_lexicon(rows: Mapping[str, int]) -> bytes:
    """Encode names in the format that `Lexicon` reads.

    Args:
        rows: By name, the index of its number, below 65,536. Names are not empty and contain no NUL.
    """
    ordered = sorted((name.encode(), row) for name, row in rows.items())
    names = b"".join(b"\0" + name for name, _ in ordered) + b"\0"
    boundaries, firsts = list[tuple[int, int]](), list[bytes]()
    at = 0
    for before, (name, _) in enumerate(ordered):
        if not boundaries or at - boundaries[-1][0] >= _BLOCK:
            boundaries.append((at, before))
            firsts.append(name)
        at += 1 + len(name)
    boundaries.append((at, len(ordered)))
    head = HEAD.pack(len(ordered), len(firsts), len(names), len(first_names := b"\0".join(firsts)))
    numbers = b"".join(ROW.pack(row) for _, row in ordered)
    return head + names + numbers + b"".join(BOUNDARY.pack(*one) for one in boundaries) + first_names


def build_lexicon(numbers: Mapping[str, int]) -> Lexicon:
    """The mapping as a lexicon, which needs little memory; it has at most 65,536 distinct numbers."""
    rows = {number: row for row, number in enumerate(dict.fromkeys(numbers.values()))}
    return Lexicon(pack_lexicon({name: rows[number] for name, number in numbers.items()}), 0, list(rows).__getitem__)
