"""Return annotations that can be encoded as JSON or content, and others."""

import collections
import dataclasses
import decimal
import re
from abc import ABC, abstractmethod
from array import array
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Hashable,
    Iterator,
    KeysView,
    ValuesView,
)
from datetime import date, timedelta
from enum import Enum
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Annotated, Any, Literal, NamedTuple, Never, TypedDict, TypeVar
from uuid import UUID

import mcp_types as types
import msgspec
import numpy as np
import pytest
import typing_extensions
from mcp.server.mcpserver import Audio, Image
from numpy.typing import NDArray
from PIL import Image as Pillow
from pydantic import BaseModel, ConfigDict

from mcp_mirror.functions.result_types import find_unencodable_result

T = TypeVar("T")


class Strange:
    """A class that says nothing of how it is written."""


class Base(ABC):
    @abstractmethod
    def name(self) -> str: ...


class Node(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    values: np.ndarray[Any, Any]
    nodes: "list[Node]"


class Odd(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    strange: Strange


@dataclasses.dataclass
class Grid:
    values: np.ndarray[Any, Any]


@dataclasses.dataclass
class Box:
    content: Strange


class Pair(NamedTuple):
    first: int
    second: NDArray[np.float64]


class OddPair(NamedTuple):
    first: int
    second: Strange


class Wish(typing_extensions.TypedDict):
    values: np.ndarray[Any, Any]


class OddWish(typing_extensions.TypedDict):
    strange: Strange


class OldWish(TypedDict):
    size: int


class Row(msgspec.Struct):
    number: int


class Unit(Enum):
    CELSIUS = "C"


def returning(annotation: Any) -> Callable[[], Any]:
    def function() -> Any:
        raise NotImplementedError

    function.__annotations__["return"] = annotation
    return function


@pytest.mark.parametrize(
    "annotation",
    [
        *(
            Any,
            None,
            object,
            T,
            Never,
            int,
            str | None,
            list[float],
            dict[str, Any],
            Literal["a"],
            Annotated[int, "of"],
        ),
        *(date, timedelta, decimal.Decimal, UUID, Path, Unit, set[int], collections.deque[int], complex),
        *(Node, Grid, Pair, Wish, OldWish, Row, Base, Hashable),
        *(np.ndarray, NDArray[np.float64], np.float64, dict[str, NDArray[np.float64]], tuple[Grid, ...]),
        *(
            bytes,
            bytearray,
            memoryview,
            array,
            range,
            KeysView[str],
            ValuesView[int],
            MappingProxyType,
            collections.ChainMap[str, int],
        ),
        *(Iterator[int], AsyncIterator[Grid], Generator[int, None, None], Awaitable[int], Coroutine[Any, Any, int]),
        *(Image, Audio, Pillow.Image, types.TextContent, list[types.ContentBlock], types.CallToolResult),
        *("Nowhere", list["Nowhere"], Annotated[Iterator[int], "of"]),  # type: ignore[name-defined]  # noqa: F821
    ],
    ids=str,
)
def test_a_type_that_can_be_written_is_accepted(annotation: Any) -> None:
    assert find_unencodable_result(returning(annotation)) is None


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (Strange, "Strange"),
        (list[Strange | None], "Strange"),
        (dict[str, tuple[int, Strange]], "Strange"),
        (Box, "Strange"),
        (Odd, "Strange"),
        (OddPair, "Strange"),
        (OddWish, "Strange"),
        (Iterator[Strange], "Strange"),
        (AsyncIterator[Box], "Strange"),
        (Coroutine[Any, Any, Strange], "Strange"),
        (Annotated[Iterator[Strange], "of"], "Strange"),
        (Callable[[], int], "collections.abc.Callable[[], int]"),
        (type[int], "type[int]"),
        (list[AsyncIterator[int]], "collections.abc.AsyncIterator"),
        (ModuleType, "module"),
        (re.Match[str], "re.Match"),
        (BaseException, "BaseException"),
    ],
)
def test_a_type_that_cannot_be_written_is_named(annotation: Any, expected: str) -> None:
    assert (find_unencodable_result(returning(annotation)) or "").rpartition(f"{__name__}.")[2].startswith(expected)


def test_a_function_without_a_return_annotation_is_accepted() -> None:
    assert find_unencodable_result(lambda: None) is None
