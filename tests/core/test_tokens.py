"""The estimate is never below what a tokenizer counts, and not wildly above."""

import base64
import json
import random
import string
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_mirror.tokens import estimate_tokens

chance = random.Random(11)  # noqa: S311  # the same texts on every run
PROSE = "The gateway keeps large results out of the model's context, and hands them on by their paths instead. "
ROWS = [
    {"id": n, "name": f"item {n}", "price": round(n * 1.17, 2), "tags": ["a", "b"], "ok": n % 2 == 0} for n in range(40)
]
HTML = '<div class="row"><p id=q1>Hello</p><a href="/x?y=1&amp;z=2">link</a></div>'
CODE = "def fit(value: Resolved, wanted: frozenset[str]) -> Segments:\n    return (value.blob,) if wanted else None\n"
LOG = "2026-11-01T12:13:14.123Z ERROR [svc-7f] com.acme.Foo: failed id=8f3a2b1c ms=12\n"


def letters(alphabet: str, count: int = 3000) -> str:
    return "".join(chance.choices(alphabet, k=count))


TEXTS = {
    "prose": PROSE * 30,
    "german": "Die Donaudampfschifffahrtsgesellschaft f\u00fchrt \u00dcbungen f\u00fcr die Matrosen durch. " * 30,
    "code": CODE * 30,
    "json": json.dumps(ROWS),
    "compact json": json.dumps(ROWS, separators=(",", ":")),
    "pretty json": json.dumps(ROWS, indent=4),
    "logs": LOG * 40,
    "floats": json.dumps([chance.random() for _ in range(300)]),
    "small floats": json.dumps([chance.random() * 1e-9 for _ in range(300)]),
    "integers": " ".join(str(chance.randrange(10**9)) for _ in range(300)),
    "csv": "\n".join(",".join(str(chance.randrange(1000)) for _ in range(10)) for _ in range(60)),
    "base64": base64.b64encode(chance.randbytes(3000)).decode(),
    "hexadecimal": chance.randbytes(2000).hex(),
    "uuids": "\n".join(f"{chance.getrandbits(128):032x}" for _ in range(100)),
    "chinese": "\u8fd9\u662f\u4e00\u4e2a\u6d4b\u8bd5\u6587\u672c\uff0c\u5185\u5bb9\u5f88\u957f\u3002" * 80,
    "arabic": "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645 " * 100,
    "emoji": "\U0001f600\U0001f389\U0001f468\u200d\U0001f469\u200d\U0001f467 " * 100,
    "minified html": HTML * 40,
    "spaces": " " * 3000,
    "line breaks": "\n" * 3000,
    "white space": letters(" \n\t\r"),
    "blank lines": "\n " * 1500,
    "capitals": letters(string.ascii_uppercase),
    "letters": letters(string.ascii_letters),
    "single letters": " ".join(letters(string.ascii_letters)),
    "single letters a line": "\n".join(letters(string.ascii_letters)),
    "punctuation": letters(string.punctuation),
    "printable": letters(string.printable),
    "control characters": "".join(map(chr, range(32))) * 50,
    "smiles": "CC(=O)OC1=CC=CC=C1C(=O)O CN1C=NC2=C1C(=O)N(C)C(=O)N2C\n" * 30,
    "proteins": letters("ACDEFGHIKLMNPQRSTVWY"),
    "genes": letters("ACGT"),
    "one letter": "x",
    "a path": "generate_molecule_grid-3f2b8c1e-9d4a-4e7b-8f21-0a1b2c3d4e5f/raw_grid",
}
TEXTS["mixed"] = "".join(TEXTS.values())


@pytest.mark.parametrize("name", TEXTS)
def test_the_estimate_is_never_below_the_count(name: str, count_tokens: Callable[[str], int]) -> None:
    assert estimate_tokens(TEXTS[name].encode()) >= count_tokens(TEXTS[name])


@pytest.mark.parametrize(
    "name", ["prose", "code", "json", "pretty json", "logs", "floats", "base64", "uuids", "minified html", "mixed"]
)
def test_the_estimate_is_within_three_times_the_count(name: str, count_tokens: Callable[[str], int]) -> None:
    assert estimate_tokens(TEXTS[name].encode()) <= 3 * count_tokens(TEXTS[name])


@pytest.mark.parametrize("dense", [0, 1, 2], ids=["first", "between", "last"])
def test_a_dense_part_of_a_large_text_counts_wherever_it_stands(dense: int, count_tokens: Callable[[str], int]) -> None:
    parts = [" " * 400_000] * 2
    parts.insert(dense, TEXTS["floats"] * 3)
    text = "".join(parts)
    assert estimate_tokens(text.encode()) >= count_tokens(text)


@given(st.text(max_size=200), st.integers(1, 3000))
def test_a_text_of_any_size_costs_what_its_parts_cost(text: str, times: int) -> None:
    once, often = estimate_tokens(text.encode()), estimate_tokens(memoryview(text.encode() * times))
    assert often <= once * times
    assert often >= (once - 2) * times
    assert once <= max(1, len(text.encode())) + 1


def test_nothing_costs_next_to_nothing() -> None:
    assert estimate_tokens(b"") <= 1


def test_a_text_past_every_budget_is_weighed_in_part_and_scaled_up() -> None:
    line = b"The quick brown fox, 12,345.678 times; over 3 lazy dogs.\n"
    part, whole = estimate_tokens(line * 70_000), estimate_tokens(line * 700_000)
    assert len(line) * 70_000 < 1 << 22 < len(line) * 700_000
    assert 9.9 < whole / part < 10.1
