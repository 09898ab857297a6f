import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_mirror.tokens import lexicon
from mcp_mirror.tokens.lexicon import Known
from table_file import build_lexicon

names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)


def continuations(numbers: dict[str, int], prefix: str) -> dict[str, int]:
    found = {name: one for name, one in numbers.items() if name.startswith(prefix)}
    return {name[:end]: 0 for name in found for end in range(len(prefix), len(name))} | found


@given(st.dictionaries(names, st.integers(), max_size=200), names)
def test_a_lexicon_equals_its_dict(numbers: dict[str, int], other: str) -> None:
    built = build_lexicon(numbers)
    assert dict(built) == numbers
    assert built.get(other) == numbers.get(other)


@given(st.dictionaries(names, st.integers(), max_size=200), names)
def test_it_finds_all_names_with_a_prefix_and_their_beginnings(numbers: dict[str, int], other: str) -> None:
    built = build_lexicon(numbers)
    for prefix in {other, *(name[:2] for name in numbers)}:
        assert built.continuations(prefix) == continuations(numbers, prefix)


def test_blocks_of_many_names_lose_none() -> None:
    numbers = {f"{number:x}" * (number % 7 + 1): number for number in range(5000)} | {"\u00e9" * 700: -1}
    built = build_lexicon(numbers)
    assert all(built[name] == number for name, number in numbers.items())
    assert len(built) == len(numbers)
    for prefix in ("1", "13", "fff", "\u00e9", "\u00e9" * 3):
        assert built.continuations(prefix) == continuations(numbers, prefix)


def test_it_keeps_few_prefixes_and_forgets_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lexicon, "_KEPT_PREFIXES", 2)
    built = build_lexicon({"aa": 1, "ab": 2, "b": 3})
    for _ in range(2):
        found = [built.continuations(prefix) for prefix in ("a", "aa", "b", "c", "b\0", "\ud800")]
        assert found == [{"a": 0, "aa": 1, "ab": 2}, {"aa": 1}, {"b": 3}, {}, {}, {}]


@pytest.mark.parametrize("absent", ["", "a", "b\0c", "bc", "zz", "\0", "\ud800"])
def test_unknown_names_are_not_found(absent: str) -> None:
    built = build_lexicon({"b": 1, "c": 2, "z": 3})
    assert absent not in built
    assert Known(built)[absent] == 0


def test_the_cache_of_looked_up_names_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lexicon, "_KEPT", 3)
    known = Known(build_lexicon({"b": 1, "c": 2}))
    for _ in range(2):
        assert [known[name] for name in ("b", "c", "d", "e", "b")] == [1, 2, 0, 0, 1]
        assert len(known) <= 3


def test_long_names_are_not_cached() -> None:
    known = Known(build_lexicon({"b" * 200: 1}))
    assert (known["b" * 200], known["c" * 200], len(known)) == (1, 0, 0)
