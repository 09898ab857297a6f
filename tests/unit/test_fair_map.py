"""A map of bounded size, in which each owner keeps its newest entries."""

from mcp_mirror.system.fair_map import FairMap


def test_the_owner_with_the_most_entries_makes_room() -> None:
    entries = FairMap[int](4, 4)
    entries.put("bob", "his", 0)
    for number in range(9):
        entries.put("alice", f"{number}", number)
    assert entries.of("bob") == {"his": 0}
    assert entries.of("alice") == {"6": 6, "7": 7, "8": 8}


def test_an_owner_keeps_its_newest_entries() -> None:
    entries = FairMap[int](9, 2)
    for key in ("a", "b", "a", "c"):
        entries.put("alice", key, len(entries.of("alice")))
    assert [*entries.of("alice")] == ["a", "c"]


def test_the_bound_applies_to_many_owners_too() -> None:
    entries = FairMap[int](3, 3)
    for number in range(9):
        entries.put(f"{number}", "a", number)
    assert sum(len(entries.of(f"{number}")) for number in range(9)) == 3
