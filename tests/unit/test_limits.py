"""Limits on messages, definitions and arguments: each error names its key."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_mirror.core.resolve import check_pointer_count, find_pointers
from mcp_mirror.core.results.capture import CaptureRules
from mcp_mirror.core.results.processing import ProcessingOptions, process_frame
from mcp_mirror.core.schemas.tool_inspection import find_excess
from mcp_mirror.errors import BusyError, ToolError, WireError
from mcp_mirror.paths import TEXT_USE, FixedBases
from mcp_mirror.payload.json_bounds import check_envelope, is_deeper
from mcp_mirror.payload.json_rpc import open_message
from mcp_mirror.settings.limits import TrafficPolicy, UpstreamBounds

LEAVES = st.text(alphabet='[]{}"\\a\u00e9') | st.integers() | st.booleans() | st.none()
TREES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('[]"\\', max_size=3), inner, max_size=3)
)


def depth_of(tree: Any) -> int:
    inside = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else None
    return 0 if inside is None else 1 + max(map(depth_of, inside), default=0)


@given(TREES, st.booleans())
def test_depth_is_counted_only_outside_strings(tree: Any, ascii_only: bool) -> None:  # noqa: FBT001
    text, depth = json.dumps(tree, ensure_ascii=ascii_only).encode(), depth_of(tree)
    assert not is_deeper(text, depth)
    assert depth == 0 or is_deeper(text, depth - 1)


def test_a_string_with_brackets_does_not_hide_depth() -> None:
    text = b'[[["]]]",[[["]]]",[[[1]]]]]]]]]'
    assert depth_of(json.loads(text)) == 9
    assert is_deeper(text, 8)
    assert not is_deeper(text, 9)


@pytest.mark.parametrize("before", [(1 << 20) - 3, (1 << 20) - 2, (1 << 20) - 1, 1 << 20])
def test_an_escape_that_is_cut_in_two_is_one_still(before: int) -> None:
    for escapes in ("\\\\", '\\"', '\\\\\\"'):
        text = f'["{"x" * before}{escapes}[[[",1]'.encode()
        assert not is_deeper(text, 1)
        assert is_deeper(text, 0)


def test_a_message_that_is_too_deep_names_the_bound_and_the_place() -> None:
    frame = b'{"method":"x","params":{"a":[[1]]}}'
    assert open_message(frame, 4).method == "x"
    with pytest.raises(WireError, match=r"at byte 29 it has more than 3 levels \(`limits.max_depth`\)"):
        open_message(frame, 3)


def test_a_result_that_was_not_looked_at_is_held_to_the_depth_too() -> None:
    frame = b'{"jsonrpc":"2.0","id":1,"result":{"content":[],"structuredContent":{"a":[[[1]]]}}}'
    rules = CaptureRules("auto", 10, 10, is_wrapped=False)
    order = ProcessingOptions(rules, "compact", "t", b"{}", FixedBases("t-1", "t-2"), 1000, max_depth=5)
    with pytest.raises(WireError, match=re.escape("`limits.max_depth`")):
        process_frame(frame, order)


def test_a_message_without_its_payload_is_bounded() -> None:
    check_envelope(b"12345", 5)
    with pytest.raises(WireError, match=r"6 bytes .* the limit is 5 \(`limits.max_envelope_bytes`\)"):
        check_envelope(b"123456", 5)


BOUNDS = UpstreamBounds(max_tool_bytes=1000, max_name_bytes=10, max_schema_depth=5)


def nested(depth: int) -> Any:
    tree: Any = {}
    for _ in range(depth):
        tree = [tree]
    return tree


@pytest.mark.parametrize(
    ("tool", "expected"),
    [
        ({"name": "small", "inputSchema": {"type": "object"}}, None),
        ({"name": "x", "description": "y" * 1000}, "`limits.max_tool_bytes` is 1,000"),
        ({"name": "x" * 11}, r"its name is longer than `limits.max_name_bytes` \(10\)"),
        ({"name": "\u00e9" * 6}, "`limits.max_name_bytes`"),
        ({"name": "x", "inputSchema": nested(4)}, r"nested deeper than `limits.max_schema_depth` \(5\)"),
        ({"name": "x", "inputSchema": nested(3)}, None),
        ({"name": "x", "inputSchema": nested(200_000)}, "`limits.max_schema_depth`"),
        ({"name": "x", "odd": "\ud800"}, None),
    ],
    ids=["small", "bytes", "name", "letters", "depth", "within", "far too deep", "odd"],
)
def test_an_oversized_definition_names_its_limit(tool: dict[str, Any], expected: str | None) -> None:
    excess = find_excess(tool, BOUNDS)
    assert (excess is None) == (expected is None)
    assert expected is None or re.search(expected, excess or "")


def test_a_call_may_have_so_many_memory_paths() -> None:
    path = "t-9c1d4f0e-6a55-4b8e-9d0a-0f3b2f6f6a11"
    arguments = json.dumps({"a": [path] * 3, "b": f"literal:{path}"}).encode()
    found = find_pointers(arguments, frozenset({"t"}))
    check_pointer_count(found, 3)
    with pytest.raises(ToolError, match=r"contain 3 memory paths; one call may have 2 \(`limits.max_pointers`\)"):
        check_pointer_count(found, 2)


def test_a_call_may_have_so_many_notices_without_their_paths() -> None:
    pasted = [TEXT_USE] * 9
    found = find_pointers(json.dumps({"a": pasted}).encode(), frozenset({"t"}))
    assert len(found) == len(pasted)
    check_pointer_count(found[1:], 20)
    with pytest.raises(ToolError, match="contain 9 notices without their paths; one call may have 8"):
        check_pointer_count(found, 20)


@pytest.mark.parametrize("prefix", ["", "literal:"])
def test_the_memory_paths_of_a_call_may_have_so_many_characters(prefix: str) -> None:
    path = "t-9c1d4f0e-6a55-4b8e-9d0a-0f3b2f6f6a11"
    paths = [f"{prefix}{path}/{'k' * 60_000}{index}" for index in range(18)]
    found = find_pointers(json.dumps({"a": paths}).encode(), frozenset({"t"}))
    check_pointer_count(found[1:], 20)
    with pytest.raises(ToolError, match=r"have 1,080,[0-9]{3} characters together; one call may have 1,048,576"):
        check_pointer_count(found, 20)


def test_a_busy_error_tells_when_to_try_again() -> None:
    assert (str(BusyError("Too much.", 0.2)), BusyError("Too much.", 2.1).retry_after) == (
        "Too much. Try again in 1 s.",
        3,
    )


@pytest.mark.parametrize(("configured", "rates"), [(None, (0, 6000)), (0, (0, 0)), (5, (5, 5))])
def test_authenticated_clients_have_a_default_rate(configured: int | None, rates: tuple[int, int]) -> None:
    traffic = TrafficPolicy(calls_per_minute=configured)
    assert (traffic.rate(has_auth=False), traffic.rate(has_auth=True)) == rates
