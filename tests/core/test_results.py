"""What a function returned, as a result; and what it raised."""

import dataclasses
import json
from collections import deque
from datetime import date
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import mcp_types as types
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.server.mcpserver import Audio, Image
from pydantic import BaseModel, Field

from mcp_mirror.capture import CaptureRules, capture
from mcp_mirror.errors import MirrorError, ToolError
from mcp_mirror.results import failure_of, result_of, write_json

RULES = CaptureRules("always", 100, 100, wrapped=True)


class Order(BaseModel):
    item: str = Field(serialization_alias="Item")
    data: bytes = b""


@dataclasses.dataclass
class Place:
    order: Order
    row: int


class Size(NamedTuple):
    wide: int
    high: float


class Unit(Enum):
    CELSIUS = "C"


def members(value: object) -> dict[str, Any]:
    return {key: json.loads(bytes(raw)) for key, raw in result_of(value).items()}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"a": [1, 2.5, None, True]}, {"a": [1, 2.5, None, True]}),
        ("text", "text"),
        (None, None),
        (1 << 70, 1 << 70),
        (float("nan"), None),
        ([float("inf")], [None]),
        (b"\xff\xfe\xfb", "//77"),
        (bytearray(b"a"), "YQ=="),
        (memoryview(b"a"), "YQ=="),
        ({"nested": b"\xff\xfe\xfb"}, {"nested": "//77"}),
        (Order(item="pen", data=b"\xff\xfe\xfb"), {"Item": "pen", "data": "//77"}),
        ([Place(Order(item="pen"), 1)], [{"order": {"Item": "pen", "data": ""}, "row": 1}]),
        (Size(1, 2.5), [1, 2.5]),
        ({1: Unit.CELSIUS, "at": date(2026, 1, 2)}, {"1": "C", "at": "2026-01-02"}),
        ([UUID(int=0), Decimal("1.10")], ["00000000-0000-0000-0000-000000000000", "1.10"]),
        (Path("/a"), "/a"),
        (deque([1]), [1]),
        ((), []),
    ],
)
def test_a_value_is_its_json(value: object, expected: Any) -> None:
    found = members(value)
    assert found["structuredContent"] == {"result": expected}
    text = found["content"][0]["text"]
    assert found["content"] == [{"type": "text", "text": text}]
    assert text == expected if isinstance(expected, str) else json.loads(text) == expected
    assert json.loads(write_json(value)) == expected


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_what_is_stored_of_a_value_is_the_value(value: Any) -> None:
    captured = capture(result_of(value), RULES, len)
    assert captured.value is not None
    assert json.loads(bytes(captured.value.blob)) == value
    assert captured.companion is None
    assert not captured.passed


def test_a_large_value_is_written_once() -> None:
    found = members(["x" * 1000] * 1100)
    assert found["content"] == []
    assert found["structuredContent"]["result"][-1] == "x" * 1000


TEXT = types.TextContent(type="text", text="said")
PICTURE = {"type": "image", "data": "YQ==", "mimeType": "image/png"}
SOUND = {"type": "audio", "data": "YQ==", "mimeType": "audio/wav"}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (TEXT, [{"type": "text", "text": "said"}]),
        (Image(data=b"a", format="png"), [PICTURE]),
        (Audio(data=b"a", format="wav"), [SOUND]),
        (
            ["first", Image(data=b"a", format="png"), {"n": 1}, TEXT],
            [{"type": "text", "text": "first"}, PICTURE, {"type": "text", "text": '{"n":1}'},
             {"type": "text", "text": "said"}],
        ),
        (
            (types.ResourceLink(type="resource_link", uri="file:///a", name="a"),),
            [{"type": "resource_link", "uri": "file:///a", "name": "a"}],
        ),
    ],
)  # fmt: skip
def test_content_is_content(value: object, expected: Any) -> None:
    assert members(value) == {"content": expected}


def test_a_whole_result_is_taken_as_it_is() -> None:
    found = members(types.CallToolResult(content=[TEXT], structured_content={"n": 1}, is_error=True))
    assert found["content"] == [{"type": "text", "text": "said"}]
    assert found["structuredContent"] == {"n": 1}
    assert found["isError"] is True


@pytest.mark.parametrize("value", [object(), {(1, 2): 3}, "\ud800", [lambda: 1]])
def test_what_has_no_json_is_refused_with_its_type(value: object) -> None:
    with pytest.raises(MirrorError, match=f"A value of type {type(value).__name__} cannot be written as JSON: "):
        result_of(value)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("no such city"), "load failed: ValueError: no such city"),
        (KeyError(), "load failed: KeyError"),
        (ToolError("Take another city."), "load failed: Take another city."),
        (ExceptionGroup("several", [ExceptionGroup("of one", [OSError("gone")])]), "load failed: OSError: gone"),
        (ExceptionGroup("two", [OSError(), OSError()]), "load failed: ExceptionGroup: two (2 sub-exceptions)"),
        (ValueError("half \ud800"), "load failed: ValueError: half ?"),
    ],
)
def test_what_is_raised_is_an_error_that_names_it(error: BaseException, said: str) -> None:
    found = {key: json.loads(bytes(raw)) for key, raw in failure_of("load", error).items()}
    assert found == {"content": [{"type": "text", "text": said}], "isError": True}
