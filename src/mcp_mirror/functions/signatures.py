"""A Python function as a tool: name, description and schema from its signature, its arguments from JSON.

pydantic reads the signature as it does for `validate_call`. The function is not called here.
"""

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypedDict, get_args

from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from mcp_mirror.errors import MirrorError, ToolError
from mcp_mirror.functions.result_types import unwritable_result
from mcp_mirror.settings.policies import CaptureMode, ToolPolicy

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")
"""What the protocol takes as a tool's name."""
_CONFIG: Final = ConfigDict(val_json_bytes="base64", ser_json_bytes="base64")
_TOLD: Final = 3
"""Mistakes in one call's arguments that are told."""
_MAX_TOLD: Final = 200
"""Characters of each."""
_NAMELESS: Final[Mapping[Any, str]] = {
    inspect.Parameter.POSITIONAL_ONLY: "{}, which is taken by position alone",
    inspect.Parameter.VAR_POSITIONAL: "*{}",
    inspect.Parameter.VAR_KEYWORD: "**{}",
}
"""Kinds of parameters that a model could not fill, as they are told."""


class ToolOptions(TypedDict, total=False):
    """What a function may be made a tool with; what is left out is as the configuration says."""

    name: str
    """The tool's, to which its twin's adds the suffix; by default the function's."""
    description: str
    """By default the docstring."""
    capture: CaptureMode
    """What of its results is stored; see `mirror.capture`."""
    inline_budget: int
    """Tokens up to which a result is shown."""
    timeout: float
    """Seconds that a call may take; by default 60."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function that is a tool."""

    name: str
    description: str
    schema: dict[str, Any]
    """Of its arguments: JSON Schema, an object."""
    call: Callable[..., Any] = field(repr=False)
    adapter: TypeAdapter[Mapping[str, Any]] = field(repr=False)
    policy: ToolPolicy = field(default_factory=ToolPolicy)

    def read_arguments(self, raw: bytes) -> Mapping[str, Any]:
        """The arguments of a call, decoded and validated in one pass: models become models.

        Args:
            raw: A JSON object; `bytes` arguments are base64 in it.

        Raises:
            ToolError: They do not fit the signature.
        """
        try:
            return self.adapter.validate_json(raw)
        except ValidationError as error:
            mistakes = [_mistake(found["loc"], found["msg"]) for found in error.errors(include_url=False)[:_TOLD]]
            raise ToolError(
                f"The arguments do not fit tool {self.name!r}: {'; '.join(mistakes)}. Correct them and call again."
            ) from None


def read_function(
    function: Callable[..., Any], name: str | None, description: str | None, policy: ToolPolicy
) -> Function:
    """What a function is as a tool.

    Args:
        function: Any function or method, of type hints that pydantic can read from JSON.
        name: None for its own.
        description: None for its docstring.
        policy: How its results are treated and how long it may take.

    Raises:
        MirrorError: It cannot be a tool; the message says why and what to do.
    """
    if not callable(function):
        raise MirrorError("Only a function can be a tool: write @mirror.tool, or @mirror.tool(name=...) with options.")
    named = name if name is not None else str(getattr(function, "__name__", ""))
    if not _NAME.fullmatch(named):
        raise MirrorError(
            f"{named!r} is no name for a tool, which has 1 to 128 of A-Z, a-z, 0-9, _, - and dots. "
            "Give one: @mirror.tool(name=...)."
        )
    _check_parameters(function, named)
    adapter = _adapter_of(function, named)
    _check_result_type(function, named)
    said = description if description is not None else inspect.getdoc(function) or ""
    return Function(named, said, adapter.json_schema(schema_generator=_Schema), function, adapter, policy)


def _check_parameters(function: Callable[..., Any], name: str) -> None:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        raise MirrorError(f"{name!r} cannot be a tool: it has no signature. Wrap it in a function.") from None
    if inspect.isfunction(function) and next((one.name for one in parameters), "") == "self":
        raise MirrorError(
            f"Function {name!r} cannot be a tool: it is the method of no object. Give one: mirror.tool(it.{name})."
        )
    for parameter in parameters:
        if nameless := _NAMELESS.get(parameter.kind):
            raise MirrorError(
                f"Function {name!r} cannot be a tool: a model gives arguments by name, and it takes "
                f"{nameless.format(parameter.name)}. Give it parameters with names."
            )


def _adapter_of(function: Callable[..., Any], name: str) -> TypeAdapter[Mapping[str, Any]]:
    """Reads the function's arguments, and can tell their schema."""

    @functools.wraps(function)  # pydantic reads the signature of what is wrapped
    def bind(**arguments: Any) -> Mapping[str, Any]:
        return arguments

    try:
        adapter = TypeAdapter[Mapping[str, Any]](bind, config=_CONFIG)  # type: ignore[arg-type]  # it takes functions
        adapter.json_schema(schema_generator=_Schema)
    except KeyError:
        raise MirrorError(f"{name!r} cannot be a tool: it is no function or method. Wrap it in a function.") from None
    except (PydanticUserError, NameError, TypeError) as error:
        said = str(error).partition("\n")[0].partition(". ")[0].rstrip(".")
        raise MirrorError(
            f"Function {name!r} cannot be a tool, for an annotation cannot be read from JSON: {said}. "
            "Use JSON's own types, dataclasses, TypedDicts or pydantic models."
        ) from None
    return adapter


def _check_result_type(function: Callable[..., Any], name: str) -> None:
    if (refused := unwritable_result(function)) is not None:
        raise MirrorError(
            f"Function {name!r} cannot be a tool: it returns {refused}, which cannot be written as JSON. "
            "Return JSON's own types, dataclasses, pydantic models, tables, arrays or bytes."
        )


class _Schema(GenerateJsonSchema):
    """What pydantic says of a signature, without titles, which only repeat names."""

    ignored_warning_kinds = frozenset({"skipped-choice", "non-serializable-default"})  # type: ignore[assignment]

    def field_title_should_be_set(self, schema: Any) -> bool:
        del schema
        return False

    def bytes_schema(self, schema: core_schema.BytesSchema) -> JsonSchemaValue:
        del schema
        return {"type": "string", "contentEncoding": "base64"}


def _mistake(at: tuple[int | str, ...], said: str) -> str:
    where = ".".join(map(str, at))
    return f"{where}: {said}"[:_MAX_TOLD] if where else said[:_MAX_TOLD]


def read_policy(options: ToolOptions) -> ToolPolicy:
    """How a function's results are treated and how long it may take.

    Raises:
        MirrorError: An option is none that there can be.
    """
    if unknown := options.keys() - ToolOptions.__annotations__.keys():
        named = ", ".join(ToolOptions.__annotations__)
        raise MirrorError(f"A tool has no option {min(unknown)!r}. There are {named}.")
    policy = ToolPolicy(options.get("capture"), options.get("inline_budget"), options.get("timeout"))
    if policy.capture not in (None, *get_args(CaptureMode)):
        raise MirrorError(f"`capture` of a tool is one of {', '.join(get_args(CaptureMode))}, not {policy.capture!r}.")
    if policy.inline_budget is not None and policy.inline_budget < 0:
        raise MirrorError("`inline_budget` of a tool is tokens, 0 or more.")
    if policy.timeout is not None and not policy.timeout > 0:
        raise MirrorError("`timeout` of a tool is seconds above 0: no call is without an end.")
    return policy
