"""Pinned definitions and findings about changes."""

import json
import time
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_mirror.security.pins import (
    NO_LOCK,
    NO_PINS,
    DefinitionChange,
    Lock,
    Pinned,
    Pins,
    compare_locks,
    compare_tool,
    hash_json,
    pin_upstream,
    read_lock,
    write_lock,
)
from mcp_mirror.settings.upstreams import LockMode, StdioEndpoint, UpstreamPolicy

TOOL: Mapping[str, Any] = {
    "name": "add",
    "title": "Add",
    "description": "Adds.\nTwo numbers.",
    "inputSchema": {"type": "object", "properties": {"a": {"type": "number", "default": 1}}, "required": ["a"]},
    "outputSchema": {"type": "object"},
    "annotations": {"readOnlyHint": True},
    "_meta": {"x/y": 1},
    "icons": [{"src": "data:x"}],
    "x-unknown": [1.0],
}


def policy(name: str = "up", **more: Any) -> UpstreamPolicy:
    return UpstreamPolicy(name, StdioEndpoint("x"), **more)


def lock(*tools: Mapping[str, Any], instructions: str | None = None) -> Lock:
    return Lock(1, {"up": pin_upstream(policy(), instructions, tools)[0]})


def deep() -> Any:
    value: Any = 1
    for _ in range(5000):
        value = {"a": value}
    return value


SAME = [
    TOOL,
    dict(reversed(list(TOOL.items()))),
    {**TOOL, "x-unknown": [1]},
    {**TOOL, "inputSchema": dict(reversed(TOOL["inputSchema"].items()))},
]
OTHER = [
    *({**TOOL, key: "other"} for key in TOOL if key != "name"),
    *({other: TOOL[other] for other in TOOL if other != key} for key in TOOL if key != "name"),
    {**TOOL, "new": 1},
    {**TOOL, "annotations": {"readOnlyHint": 1}},
    {**TOOL, "inputSchema": {**TOOL["inputSchema"], "required": ["a", "a"]}},
    {**TOOL, "description": "Adds.\nTwo numbers.\u200b"},
]


@pytest.mark.parametrize("now", SAME)
def test_an_equal_definition_in_other_json_text_is_unchanged(now: Mapping[str, Any]) -> None:
    assert compare_tool(lock(TOOL), "up", "add", now) is None


@pytest.mark.parametrize("now", OTHER)
def test_a_change_names_the_member_that_differs(now: Mapping[str, Any]) -> None:
    change = compare_tool(lock(TOOL), "up", "add", now)
    assert change is not None
    assert change.predicate == "is not as locked"
    (differing,) = [key for key in {**TOOL, **now} if TOOL.get(key) != now.get(key) or (key == "annotations" and
                    json.dumps(now.get(key)) != json.dumps(TOOL[key]))]  # fmt: skip
    assert change.changed_members == f' ("{differing}")'
    assert any(line.startswith(("-", "+")) for line in change.lines())


def test_new_and_removed_tools_are_changes() -> None:
    other = {**TOOL, "name": "sub"}
    assert compare_tool(NO_LOCK, "up", "add", TOOL) == DefinitionChange("up", "add", None, TOOL)
    found = compare_locks(lock(TOOL, instructions="Hi."), lock(other))
    assert [(one.subject, one.predicate, one.changed_members) for one in found] == [
        ("The instructions of upstream 'up'", "were removed", ""),
        ("Tool \"sub\" of upstream 'up'", "is not in the lock file", ""),
        ("Tool \"add\" of upstream 'up'", "was removed", ""),
    ]
    gone = compare_locks(lock(TOOL), Lock(1, {}))
    assert [(one.tool, one.now) for one in gone] == [("add", None)]
    assert all(line.startswith("-") for line in gone[0].lines())


@pytest.mark.parametrize(
    ("was", "now", "how"),
    [
        (None, None, None),
        ("Hi.", "Hi.", None),
        ("", None, None),
        (None, "Hi.", "are not in the lock file"),
        ("Hi.", "Ho.", "are not as locked"),
        ("Hi.", None, "were removed"),
    ],
)
def test_instructions_are_pinned_too(was: str | None, now: str | None, how: str | None) -> None:
    finding = Pins(lock(instructions=was), "block").check_instructions(policy(), now)
    assert (finding.change.predicate if finding else None) == how
    if finding:
        assert finding.change.changed_members == ""
        assert f"{how}: they are quarantined." in finding.sentence


@pytest.mark.parametrize("of_all", ["off", "warn", "block"])
@pytest.mark.parametrize("own", [None, "off", "warn", "block"])
def test_an_upstream_can_override_the_mode_unless_it_is_off(of_all: LockMode, own: LockMode | None) -> None:
    pins, upstream = Pins(lock(TOOL), of_all), policy(lock=own)
    finding = pins.check_tool(upstream, "add", {**TOOL, "description": "Subtracts."})
    wanted = "off" if of_all == "off" else own or of_all
    assert (finding is None) == (wanted == "off")
    assert pins.pinned_tools([upstream, policy("two")]) == ([("up", "add")] if wanted != "off" else [])
    if finding:
        assert finding.is_blocked == (wanted == "block")
        served = "it is quarantined" if wanted == "block" else "it is still served"
        assert served in finding.sentence
        assert '("description")' in finding.sentence
        assert finding.refusal == (
            "Tool \"add\" of upstream 'up' is not as locked, so it is quarantined. Ask the operator to review it: "
            "`mcp-mirror lock --check` shows the difference, `mcp-mirror lock` accepts it."
        )


def test_without_pins_nothing_is_found() -> None:
    assert NO_PINS.check_tool(policy(), "add", TOOL) is None
    assert NO_PINS.check_instructions(policy(), "x") is None


def test_a_tool_that_is_not_served_is_not_pinned() -> None:
    listed = [TOOL, {**TOOL, "title": "second"}, {}, {"name": 7}, {"name": ""}, {**TOOL, "name": "drop"}]
    pinned, problems = pin_upstream(policy(deny=("drop",)), "", listed)
    assert (list(pinned.tools), pinned.tools["add"].definition["title"], pinned.instructions) == (["add"], "Add", None)
    assert problems == ()
    assert Pins(lock(TOOL), "block").pinned_tools([policy(deny=("add",))]) == []


def test_a_definition_nested_too_deep_is_always_a_change() -> None:
    bad = {**TOOL, "inputSchema": deep()}
    pinned, problems = pin_upstream(policy(), None, [bad])
    assert pinned.tools == {}
    assert problems == ("Tool \"add\" of upstream 'up' is nested too deep to be locked.",)
    finding = Pins(lock(TOOL), "block").check_tool(policy(), "add", bad)
    assert finding is not None
    assert '("inputSchema")' in finding.sentence
    assert any("nested too deep" in line for line in finding.change.lines())


@pytest.mark.alone
def test_a_changed_large_definition_is_found_without_its_digest() -> None:
    fields = {f"p{number}": {"type": "string", "description": "text " * 20} for number in range(9_000)}
    tool = {**TOOL, "inputSchema": {"type": "object", "properties": fields}}
    pinned, now = lock(tool), json.loads(json.dumps({**tool, "description": "other"}))
    begin = time.perf_counter()
    digest = hash_json(now)
    middle = time.perf_counter()
    assert compare_tool(pinned, "up", "add", now) is not None
    assert time.perf_counter() - middle < (middle - begin) / 2, digest


def test_a_diff_is_readable_and_escapes_invisible_characters() -> None:
    description = "Adds.\nThree numbers.\u202e\x1b[31m\u200bnow\x9b"
    change = compare_tool(lock(TOOL), "up", "add", {**TOOL, "description": description, "icons": [], "\u2028k": {}})
    assert change is not None
    lines = list(change.lines())
    assert '-    "Two numbers."' in lines
    assert '+    "Three numbers.\\u202e\\u001b[31m\\u200bnow\\u009b"' in lines
    assert '+  "icons": []' in lines
    assert all(character.isprintable() for line in lines for character in line)
    assert '"\\u2028k"' in change.changed_members
    assert all(len(line) <= 512 for line in DefinitionChange("up", "x", None, {"a": "b" * 9999}).lines())


def test_a_finding_names_few_of_many_changed_members() -> None:
    change = compare_tool(lock(TOOL), "up", "add", {**TOOL, **{f"k{number}": number for number in range(9)}})
    assert change is not None
    assert change.changed_members == ' ("k0", "k1", "k2", "k3", "k4" and 4 more)'


TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@given(TEXT, TEXT, st.none() | TEXT)
def test_a_lock_survives_writing_and_reading(name: str, description: str, instructions: str | None) -> None:
    tool = {"name": name, "description": description, "n": 1.0, "big": 10**30, "none": float("nan")}
    made = lock(tool, instructions=instructions)
    text = write_lock(made)
    assert text.isascii()
    assert read_lock(text) == made
    assert compare_tool(read_lock(text), "up", name, tool) is None
    assert compare_locks(made, read_lock(text)) == ()


def damaged(change: Any) -> str:
    tree = json.loads(write_lock(lock(TOOL)))
    change(tree)
    return json.dumps(tree)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "Expecting"),
        ("[" * 100_000, "nested too deep"),
        ("[]", "Expected `object`"),
        ('{"format": 2, "upstreams": {}}', "Invalid enum value 2"),
        ('{"format": 1, "upstreams": {}, "more": 1}', "unknown field `more`"),
        (damaged(lambda tree: tree["upstreams"]["up"]["tools"]["add"]["definition"].update(title="x")), "sha256"),
        (damaged(lambda tree: tree["upstreams"]["up"]["tools"]["add"].update(sha256="0")), "\"add\" of upstream 'up'"),
    ],
)
def test_an_edited_lock_is_rejected(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_lock(text)


def test_an_upstream_without_instructions_is_pinned() -> None:
    assert lock() == Lock(1, {"up": Pinned(None, {})})
