"""Return values and exceptions of functions as results."""

import base64
import dataclasses
import json
import sqlite3
import time
from array import array
from collections import UserDict, deque
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import date, timedelta
from decimal import Decimal
from enum import Enum
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import mcp_types as types
import pytest
from converted_results import members, result
from hypothesis import given
from hypothesis import strategies as st
from mcp.server.mcpserver import Audio, Image
from PIL import Image as Pillow
from pydantic import BaseModel, Field
from pydantic_core import core_schema

from mcp_mirror.core.results.capture import CaptureRules, capture
from mcp_mirror.core.results.media import detect_media_type
from mcp_mirror.errors import MirrorError, ToolError
from mcp_mirror.functions.reply import Reply, ScriptReply
from mcp_mirror.functions.results import (
    convert_failure,
    convert_result,
    encode_arguments,
    encode_media,
    is_small,
    write_cut_texts,
    write_json,
)

RULES = CaptureRules("always", 100, 100, is_wrapped=True)


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


@dataclasses.dataclass
class Sheet:
    size: Size
    _note: int


@dataclasses.dataclass
class Shelf:
    labels: set[str]


class Name(str):
    __slots__ = ()


class Money:
    """A class that only pydantic can encode."""

    def __init__(self, amount: int) -> None:
        self.amount = amount

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> core_schema.CoreSchema:
        del source, handler
        written = core_schema.plain_serializer_function_ser_schema(lambda money: f"{money.amount} EUR")
        return core_schema.is_instance_schema(cls, serialization=written)


class Unit(Enum):
    CELSIUS = "C"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"a": [1, 2.5, None, True]}, {"a": [1, 2.5, None, True]}),
        ("text", "text"),
        (None, None),
        (1 << 70, 1 << 70),
        (float("nan"), None),
        ([float("inf")], [None]),
        ({"nested": b"\xff\xfe\xfb"}, {"nested": "//77"}),
        (Order(item="pen", data=b"\xff\xfe\xfb"), {"Item": "pen", "data": "//77"}),
        ([Place(Order(item="pen"), 1)], [{"order": {"Item": "pen", "data": ""}, "row": 1}]),
        (Size(1, 2.5), {"wide": 1, "high": 2.5}),
        ({"sizes": [(Size(1, 2), "of", 3)]}, {"sizes": [[{"wide": 1, "high": 2}, "of", 3]]}),
        (Sheet(Size(1, 2), 3), {"size": {"wide": 1, "high": 2}, "_note": 3}),
        ({"a": Size(1, 2)}.values(), [{"wide": 1, "high": 2}]),
        ({"parts": {"a": 1}.values()}, {"parts": [1]}),
        (iter((1, Size(1, 2))), [1, {"wide": 1, "high": 2}]),
        (range(3), [0, 1, 2]),
        (UserDict(a=Size(1, 2)), {"a": {"wide": 1, "high": 2}}),
        (Name("Ann"), "Ann"),
        (Money(3), "3 EUR"),
        (array("d", [1.5, float("nan")]), [1.5, None]),
        ({"a": array("B", b"\xff\xfe\xfb")}, {"a": "//77"}),
        ({"a": array("i", [1, 2])}, {"a": [1, 2]}),
        (timedelta(days=1), "P1D"),
        ({True: 1, False: {None: 2}, 1.5: 3}, {"true": 1, "false": {"null": 2}, "1.5": 3}),
        ({1: Unit.CELSIUS, "at": date(2026, 1, 2)}, {"1": "C", "at": "2026-01-02"}),
        ([UUID(int=0), Decimal("1.10")], ["00000000-0000-0000-0000-000000000000", "1.10"]),
        (Path("/a"), "/a"),
        (deque([1]), [1]),
        ((), []),
        ({"b", "a", "c"}, ["a", "b", "c"]),
        ({"sets": [frozenset({3, 20, 1, 100}), set()]}, {"sets": [[1, 3, 20, 100], []]}),
        ({Size(2, 1), Size(1, 2)}, [{"wide": 1, "high": 2}, {"wide": 2, "high": 1}]),
        (Shelf(labels={"z", "y", "x"}), {"labels": ["x", "y", "z"]}),
        ({Unit.CELSIUS}, ["C"]),
        ({"b": 1, "a": 2}.keys(), ["b", "a"]),
    ],
)
def test_a_value_is_its_json(value: object, expected: Any) -> None:
    found = members(value)
    assert found["structuredContent"] == {"result": expected}
    text = found["content"][0]["text"]
    assert found["content"] == [{"type": "text", "text": text}]
    assert text == expected if isinstance(expected, str) else json.loads(text) == expected
    assert json.loads(write_json(value if not isinstance(value, Iterator) else iter(expected))) == expected


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_the_stored_value_equals_the_returned_value(value: Any) -> None:
    captured = capture(convert_result(value), RULES, len)
    assert captured.value is not None
    assert json.loads(bytes(captured.value.blob)) == value
    assert captured.companion is None
    assert not captured.passed


def test_the_items_of_a_set_without_an_order_are_all_written() -> None:
    found = result({1, "b", None, (2, 3)})
    assert sorted(map(str, found)) == ["1", "None", "[2, 3]", "b"]


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


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[Any] = [Size(1, 2)]
    loop.append(loop)
    twice: list[Any] = []
    twice += [twice, twice, {"a": twice}]
    for value in (loop, twice):
        with pytest.raises(MirrorError, match="A value of type list cannot be encoded as JSON: "):
            convert_result(value)


def test_an_iterator_in_a_value_is_read_to_its_end() -> None:
    assert members({"a": (number for number in (1, 2))})["structuredContent"] == {"result": {"a": [1, 2]}}


PNG = b"\x89PNG\r\n\x1a\n" + bytes(9)


@pytest.mark.parametrize(
    ("data", "media_type"),
    [
        (PNG, "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF87a", "image/gif"),
        (b"GIF89a", "image/gif"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"),
        (b"RIFF\0\0\0\0WAVEfmt ", "audio/wav"),
        (b"ID3\x04", "audio/mpeg"),
        (b"\xff\xfb\x90\x00", "audio/mpeg"),
        (b"%PDF-1.7", "application/pdf"),
        (b"RIFF\0\0\0\0AVI ", "application/octet-stream"),
        (b"\xff\xfb\xff", "application/octet-stream"),
        (b"\xff\xfb", "application/octet-stream"),
        (b"\xff\xff\xff", "application/octet-stream"),
        (b"text", "application/octet-stream"),
        (b"", "application/octet-stream"),
    ],
)
def test_the_first_bytes_tell_the_media_type(data: bytes, media_type: str) -> None:
    assert detect_media_type(data) == media_type


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, BytesIO])
def test_bytes_are_a_block_of_their_media_type(kind: Any) -> None:
    encoded = base64.b64encode(PNG).decode()
    assert members(kind(PNG)) == {"content": [{"type": "image", "data": encoded, "mimeType": "image/png"}]}
    assert members(kind(b"ID3"))["content"] == [{"type": "audio", "data": "SUQz", "mimeType": "audio/mpeg"}]
    resource = {"uri": "data:application/pdf", "mimeType": "application/pdf", "blob": "JVBERi0="}
    assert members(kind(b"%PDF-"))["content"] == [{"type": "resource", "resource": resource}]


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, BytesIO])
def test_bytes_among_content_are_media_and_in_data_base64(kind: Any) -> None:
    encoded = base64.b64encode(PNG).decode()
    blocks = members(["a picture", kind(PNG), TEXT])["content"]
    assert [block["type"] for block in blocks] == ["text", "image", "text"]
    assert members(["a picture", kind(PNG)])["structuredContent"] == {"result": ["a picture", encoded]}
    assert members({"picture": kind(PNG)})["structuredContent"] == {"result": {"picture": encoded}}
    assert json.loads(write_json(kind(PNG))) == encoded
    assert json.loads(encode_media(kind(PNG)) or b"") == blocks[1]


def test_a_file_in_memory_is_read_from_its_start() -> None:
    file = BytesIO()
    file.write(PNG)
    assert members({"picture": file}) == members({"picture": PNG})


def test_a_pillow_image_is_a_png() -> None:
    block = members(Pillow.new("L", (3, 2)))["content"][0]
    assert block["mimeType"] == "image/png"
    assert Pillow.open(BytesIO(base64.b64decode(block["data"]))).size == (3, 2)
    assert [one["type"] for one in members([Pillow.new("L", (3, 2)), 1])["content"]] == ["image", "text"]


def test_only_bytes_and_pictures_are_media() -> None:
    assert json.loads(encode_media(PNG) or b"")["type"] == "image"
    for value in ("text", [1], array("d", [1]), None, TEXT):
        assert encode_media(value) is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, True),
        ("text", True),
        ({"a": 1}, True),
        ([1, "two"], True),
        ((), True),
        ("x" * (1 << 21), False),
        ([[1]], False),
        (dict.fromkeys(range(65), 1), False),
        ([1] * 65, False),
        (b"", False),
        (iter(()), False),
    ],
)
def test_a_small_value_has_few_scalars(value: object, expected: object) -> None:
    assert is_small(value) is expected


def test_a_whole_result_is_taken_as_it_is() -> None:
    found = members(types.CallToolResult(content=[TEXT], structured_content={"n": 1}, is_error=True))
    assert found["content"] == [{"type": "text", "text": "said"}]
    assert found["structuredContent"] == {"n": 1}
    assert found["isError"] is True


@pytest.mark.parametrize("value", [object(), {(1, 2): 3}, "\ud800", [lambda: 1]])
def test_the_error_for_a_value_without_json_names_its_type(value: object) -> None:
    with pytest.raises(MirrorError, match=f"A value of type {type(value).__name__} cannot be encoded as JSON: "):
        convert_result(value)


@pytest.mark.parametrize("value", [["name\udc80"], {"\udc80": 1}])
def test_the_error_for_a_text_that_is_not_unicode_says_how_to_replace_it(value: object) -> None:
    with pytest.raises(MirrorError, match=r"half of a surrogate pair, .* Replace it: text\.encode\(errors="):
        convert_result(value)


class NamedRow(Sequence[Any]):
    """Like `Row` of SQLAlchemy."""

    _fields = ("id", "name")

    def __init__(self, *items: Any) -> None:
        self._items = items

    def __getitem__(self, at: Any) -> Any:
        return self._items[at]

    def __len__(self) -> int:
        return len(self._items)


def test_a_row_of_a_database_is_an_object_with_the_names_of_its_columns() -> None:
    selected = "SELECT 1 AS id, 'Ada' AS name"
    ada = {"id": 1, "name": "Ada"}
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.row_factory = sqlite3.Row
        assert result(connection.execute(selected).fetchone()) == ada
        assert result(connection.execute(selected)) == result(connection.execute(selected).fetchall()) == [ada]
        with pytest.raises(MirrorError, match="two columns of a row have the same name"):
            convert_result(connection.execute("SELECT 1 AS id, 2 AS id").fetchall())
    assert result({"rows": (NamedRow(1, "Ada"),)}) == {"rows": [ada]}
    assert result(NamedRow(1, {Size(1, 2)})) == {"id": 1, "name": [{"wide": 1, "high": 2}]}


@pytest.mark.parametrize("is_error", [False, True])
def test_a_reply_of_another_tool_is_the_result(*, is_error: bool) -> None:
    blocks = ({"type": "image", "data": "AA==", "mimeType": "image/png"}, {"type": "text", "text": "A picture."})
    assert members(Reply("A picture.", is_error=is_error, content=blocks)) == {
        "content": list(blocks),
        "isError": is_error,
    }
    assert members(ScriptReply("[1]", is_error=is_error, value=[1])) == {
        "content": [{"type": "text", "text": "[1]"}],
        "isError": is_error,
    }


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (None, {}),
        (" null ", {}),
        ("", {}),
        (b'{"a": 1}', {"a": 1}),
        (bytearray(b"{}"), {}),
        ('{"a": "\\ud83d"}', {"a": "\ufffd"}),
        ({"a": "\ud83d", "b": 1}, {"a": "\ufffd", "b": 1}),
        (UserDict(a=Path("/a")), {"a": "/a"}),
    ],
)
def test_arguments_of_a_call_are_a_json_object(arguments: Any, expected: Any) -> None:
    assert json.loads(encode_arguments(arguments)) == expected


STORED = Reply("a notice", path="table-1f0c3a52-0c1e-4a52-8f2b-1d9f6f2f7b10")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"values": STORED}, {"values": STORED.path}),
        ({"count": 3, "of": [{"values": (STORED,)}]}, {"count": 3, "of": [{"values": [STORED.path]}]}),
        ({"values": Reply("[1, 2]")}, {"values": "[1, 2]"}),
    ],
)
def test_a_reply_among_arguments_is_its_path_or_its_text(arguments: Any, expected: object) -> None:
    assert json.loads(encode_arguments(arguments)) == expected


def test_a_failed_reply_among_arguments_is_an_error() -> None:
    with pytest.raises(MirrorError, match=r"the call of a reply in it failed: Only Bonn is measured\."):
        encode_arguments({"values": Reply("Only Bonn is measured.", is_error=True)})


@pytest.mark.parametrize("arguments", ["[1]", '{"a": 1', [1], 5, b"\xff", "[" * 100_000])
def test_arguments_that_are_not_a_json_object_are_an_error(arguments: Any) -> None:
    with pytest.raises(MirrorError, match="The arguments are not a JSON object: "):
        encode_arguments(arguments)


def test_half_of_an_emoji_in_arguments_is_replaced_if_the_rest_is_json() -> None:
    refused = MirrorError("refused")
    assert json.loads(write_cut_texts({"text": ["\ud83d a", "\U0001f600"]}, refused)) == {
        "text": ["\ufffd a", "\U0001f600"]
    }
    for value in (object(), float("nan")):
        with pytest.raises(MirrorError, match="refused"):
            write_cut_texts({"text": "\ud83d", "value": value}, refused)


@pytest.mark.parametrize("key", [(1, 2), frozenset({1}), Size(1, 2)])
def test_the_error_for_a_key_that_json_lacks_names_its_type(key: object) -> None:
    with pytest.raises(MirrorError, match=r"a key is a (tuple|frozenset|list), and JSON's keys are texts"):
        convert_result({"counts": {key: 1}})


@pytest.mark.alone
def test_a_value_that_is_nested_too_deep_is_refused_in_linear_time() -> None:
    value: list[object] = []
    for _ in range(200_000):
        value = [value]
    began = time.process_time()
    with pytest.raises(MirrorError, match="A value of type list cannot be encoded as JSON: it is nested too deep"):
        convert_result(value)
    assert time.process_time() - began < 2


class UnreadableError(Exception):
    def __str__(self) -> str:
        return self.args[5]  # type: ignore[no-any-return]  # the mistake


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (UnreadableError(), "load failed: UnreadableError: (its message cannot be read: IndexError)"),
        (ValueError("no such city"), "load failed: ValueError: no such city"),
        (KeyError(), "load failed: KeyError"),
        (ToolError("Take another city."), "Take another city."),
        (ExceptionGroup("several", [ExceptionGroup("of one", [OSError("gone")])]), "load failed: OSError: gone"),
        (
            ExceptionGroup("two", [OSError("gone"), ExceptionGroup("of one", [ToolError("Take another city.")])]),
            "load failed: ExceptionGroup: two (2 sub-exceptions): OSError: gone; Take another city.",
        ),
        (ValueError("half \ud800"), "load failed: ValueError: half ?"),
    ],
)
def test_an_exception_becomes_an_error_that_names_it(error: BaseException, expected: str) -> None:
    found = {key: json.loads(bytes(raw)) for key, raw in convert_failure("load", error).items()}
    assert found == {"content": [{"type": "text", "text": expected}], "isError": True}
