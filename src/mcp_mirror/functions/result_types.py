"""Which types of results can be written as JSON or as content blocks, told by annotations and classes alone."""

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

from mcp_mirror.functions.dataframes import form_of, is_scalar

BLOCKS: Final = get_args(types.ContentBlock)
"""The content blocks of the protocol."""
CONTENT: Final = (*BLOCKS, Image, Audio)
"""They, and the SDK's shorthands for them."""

_OTHERS: Final = (
    *(types.CallToolResult, Image, Audio, BytesIO),
    *(Mapping, Sequence, AbstractSet, Iterator),
    *(bytes, bytearray, memoryview, array, mmap),
    msgspec.Struct,
)
"""Classes that pydantic does not write, or has no schema of, and `results` does."""
_CONFIG: Final = ConfigDict(arbitrary_types_allowed=True)
_ITEM_AT: Final[Mapping[Any, int]] = {
    Iterator: 0,
    AsyncIterator: 0,
    AsyncIterable: 0,
    AsyncGenerator: 0,
    Awaitable: 0,
    Coroutine: 2,
}
"""Which argument of a generic type is the type of the items, or of what is awaited."""


def is_picture(kind: type) -> bool:
    """Whether a class is an image of Pillow."""
    return any((base.__module__, base.__name__) == ("PIL.Image", "Image") for base in kind.__mro__)


def unwritable_result(function: Callable[..., Any]) -> str | None:
    """The name of the type in a function's return annotation that cannot be written; None where all can be.

    An annotation that cannot be evaluated, or that says nothing, is not refused: results are checked at each call.
    """
    try:
        return _unwritable(get_type_hints(function, include_extras=True).get("return", Any))
    except (NameError, TypeError, AttributeError, PydanticUserError):
        return None


def _unwritable(annotation: Any) -> str | None:
    if annotation in (Never, NoReturn):
        return None
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin in _ITEM_AT:
        return _unwritable(parts[_ITEM_AT[origin]])
    if origin is Annotated and get_origin(parts[0]) in _ITEM_AT:
        return _unwritable(parts[0])
    try:
        TypeAdapter(list[annotation], config=_CONFIG).json_schema(schema_generator=_Refusing, mode="serialization")
    except _UnwritableError as error:
        return str(error)
    except (PydanticSchemaGenerationError, PydanticInvalidForJsonSchema):
        return inspect.formatannotation(annotation)
    return None


class _UnwritableError(Exception):
    """Names the class."""


class _Refusing(GenerateJsonSchema):
    """Meets every class that pydantic knows nothing of."""

    ignored_warning_kinds = frozenset({"skipped-choice", "non-serializable-default"})  # type: ignore[assignment]

    def is_instance_schema(self, schema: core_schema.IsInstanceSchema) -> JsonSchemaValue:
        if not _is_writable(schema["cls"]):
            raise _UnwritableError(schema.get("cls_repr") or inspect.formatannotation(schema["cls"]))
        return {}

    def is_subclass_schema(self, schema: core_schema.IsSubclassSchema) -> JsonSchemaValue:
        raise _UnwritableError(f"type[{schema['cls'].__name__}]")


def _is_writable(kind: type) -> bool:
    """Whether a class that pydantic knows nothing of can be written. What an abstract one stands for is not known."""
    if issubclass(kind, (AsyncIterable, Awaitable)):
        return False
    if form_of(kind) or is_scalar(kind) or is_picture(kind) or issubclass(kind, _OTHERS) or inspect.isabstract(kind):
        return True
    return hasattr(kind, "__buffer__") or hasattr(kind, "__attrs_attrs__")
