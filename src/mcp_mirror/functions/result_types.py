"""Decides from annotations and classes which results can be encoded as JSON or as content blocks."""

import inspect
from array import array
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
    ValuesView,
)
from collections.abc import Set as AbstractSet
from io import BytesIO
from mmap import mmap
from typing import Annotated, Any, Final, Never, NoReturn, get_args, get_origin, get_type_hints

import mcp_types as types
import msgspec
from mcp.server.mcpserver import Audio, Image
from pydantic import ConfigDict, PydanticSchemaGenerationError, PydanticUserError, TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from mcp_mirror.functions.dataframes import find_form, is_scalar

BLOCKS: Final = get_args(types.ContentBlock)
CONTENT: Final = (*BLOCKS, Image, Audio)
"""The content blocks and the SDK's helper classes for them."""

_ENCODED_BY_RESULTS: Final = (
    *(types.CallToolResult, Image, Audio, BytesIO),
    *(Mapping, Sequence, AbstractSet, ValuesView, Iterator),
    *(bytes, bytearray, memoryview, array, mmap),
    msgspec.Struct,
)
"""Classes that pydantic cannot encode or describe, but `results` can."""
_CONFIG: Final = ConfigDict(arbitrary_types_allowed=True)
_ITEM_ARGUMENT: Final[Mapping[Any, int]] = {
    Iterator: 0,
    AsyncIterator: 0,
    AsyncIterable: 0,
    AsyncGenerator: 0,
    Awaitable: 0,
    Coroutine: 2,
}
"""The index of the type argument of a generic type for its items or its awaited value."""


def is_pillow_image(kind: type) -> bool:
    """Whether a class is a Pillow image."""
    return any((base.__module__, base.__name__) == ("PIL.Image", "Image") for base in kind.__mro__)


def find_unencodable_result(function: Callable[..., Any]) -> str | None:
    """The name of a type in a function's return annotation that cannot be encoded; None if all can be.

    An annotation that cannot be evaluated or is too general is accepted: results are checked at each call.
    """
    try:
        return _find_unencodable(get_type_hints(function, include_extras=True).get("return", Any))
    except (NameError, TypeError, AttributeError, PydanticUserError):
        return None


def _find_unencodable(annotation: Any) -> str | None:
    if annotation in (Never, NoReturn):
        return None
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin in _ITEM_ARGUMENT:
        return _find_unencodable(parts[_ITEM_ARGUMENT[origin]])
    if origin is Annotated and get_origin(parts[0]) in _ITEM_ARGUMENT:
        return _find_unencodable(parts[0])
    try:
        TypeAdapter(list[annotation], config=_CONFIG).json_schema(
            schema_generator=_EncodabilityChecker, mode="serialization"
        )
    except _UnencodableError as error:
        return str(error)
    except (PydanticSchemaGenerationError, PydanticInvalidForJsonSchema):
        return inspect.formatannotation(annotation)
    return None


class _UnencodableError(Exception):
    """A class that cannot be encoded."""


class _EncodabilityChecker(GenerateJsonSchema):
    """Visits all classes that pydantic does not know, and raises an error for one that cannot be encoded."""

    ignored_warning_kinds = frozenset({"skipped-choice", "non-serializable-default"})  # type: ignore[assignment]

    def is_instance_schema(self, schema: core_schema.IsInstanceSchema) -> JsonSchemaValue:
        if not _is_encodable(schema["cls"]):
            raise _UnencodableError(schema.get("cls_repr") or inspect.formatannotation(schema["cls"]))
        return {}

    def is_subclass_schema(self, schema: core_schema.IsSubclassSchema) -> JsonSchemaValue:
        raise _UnencodableError(f"type[{schema['cls'].__name__}]")


def _is_encodable(kind: type) -> bool:
    """Whether `results` can encode a class that pydantic does not know; abstract classes are accepted."""
    if issubclass(kind, (AsyncIterable, Awaitable)):
        return False
    if (
        find_form(kind)
        or is_scalar(kind)
        or is_pillow_image(kind)
        or issubclass(kind, _ENCODED_BY_RESULTS)
        or inspect.isabstract(kind)
    ):
        return True
    return hasattr(kind, "__buffer__") or hasattr(kind, "__attrs_attrs__")
