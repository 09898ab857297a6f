"""Derives a tool from a Python function: name, description and schema from its signature, arguments from JSON.

pydantic reads the signature as for `validate_call`. This module does not call the function.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, Final, TypedDict, get_args

import msgspec
from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError
from pydantic.json_schema import GenerateJsonSchema, JsonRef, JsonSchemaValue
from pydantic_core import PydanticSerializationError, SchemaValidator, core_schema, to_json, to_jsonable_python

from mcp_mirror.errors import ArgumentsError, MirrorError
from mcp_mirror.functions.result_types import find_unencodable_result
from mcp_mirror.settings.upstreams import CaptureMode, ToolPolicy
from mcp_mirror.system.patterns import lazy_pattern

if sys.version_info >= (3, 14):
    # Python evaluates annotations when they are first read. Names that only type checkers know stay forward references.
    from annotationlib import Format, get_annotations

    _get_annotations = functools.partial(get_annotations, format=Format.FORWARDREF)
    _get_signature = functools.partial(inspect.signature, annotation_format=Format.FORWARDREF)
else:
    _get_annotations = inspect.get_annotations
    _get_signature = inspect.signature

_NAME: Final = lazy_pattern(r"[A-Za-z0-9_.-]{1,128}")
"""Tool names that the protocol allows."""
_CONFIG: Final = ConfigDict(val_json_bytes="base64", ser_json_bytes="base64")
_MAX_ERRORS: Final = 3
"""Errors of one call's arguments in a message."""
_MAX_ERROR_LENGTH: Final = 200
"""Characters of each error."""
_REASONS: Final = {
    "bytes_invalid_encoding": "expected base64, or the path of one image, recording or file; in a result with several "
    "items that is a path below it, such as path/1"
}
"""The reasons of pydantic's errors that a model does not understand."""
_UNNAMED_PARAMETERS: Final[Mapping[Any, str]] = {
    inspect.Parameter.POSITIONAL_ONLY: "{}, which is positional-only",
    inspect.Parameter.VAR_POSITIONAL: "*{}",
    inspect.Parameter.VAR_KEYWORD: "**{}",
}
"""Parameters that a model cannot fill, as named in error messages."""


class ToolOptions(TypedDict, total=False):
    """Options of a tool; missing options use the configuration's defaults."""

    name: str
    """The tool's name, by default the function's; the twin's name adds the suffix."""
    description: str
    """The tool's description, by default the docstring."""
    capture: CaptureMode
    """Which results are stored; see `mirror.capture`."""
    inline_budget: int
    """Tokens up to which a result is shown."""
    timeout: float
    """Timeout of a call in seconds; 60 by default."""
    listed: bool
    """True: models see the tool even if they search for the others; see `mirror.listing`."""


class Function(msgspec.Struct, frozen=True):
    """A function as a tool."""

    name: str
    description: str
    schema: dict[str, Any]
    """The JSON Schema of its arguments, an object."""
    call: Callable[..., Any]
    adapter: TypeAdapter[Mapping[str, Any]]
    policy: ToolPolicy = msgspec.field(default_factory=ToolPolicy)

    def read_arguments(self, raw: bytes) -> Mapping[str, Any]:
        """Decode and validate the arguments of a call in one pass; `bytes` are base64 in the JSON object.

        Raises:
            ArgumentsError: The arguments do not fit the signature.
        """
        try:
            return self.adapter.validate_json(raw)
        except ValidationError as error:
            errors = [
                _describe_error(found["loc"], _REASONS.get(found["type"], found["msg"]))
                for found in error.errors(include_url=False)[:_MAX_ERRORS]
            ]
            raise ArgumentsError(
                f"The arguments do not fit tool {self.name!r}: {'; '.join(errors)}. Correct them and call again."
            ) from None


def read_function(
    function: Callable[..., Any], name: str | None, description: str | None, policy: ToolPolicy
) -> Function:
    """Derive a tool from a function or method whose type hints pydantic can read from JSON.

    Without `name` or `description`, the tool has that of the function. `policy` has capture, inline budget and timeout.

    Raises:
        MirrorError: The function cannot be a tool; the message names the reason and the next step.
    """
    if not callable(function):
        raise MirrorError("Only a function can be a tool: write @mirror.tool, or @mirror.tool(name=...) with options.")
    unbound = _unbind(function)
    call: Any = getattr(unbound, "__call__", None)  # noqa: B004  # the method itself is needed
    source = call if inspect.ismethod(call) else unbound
    named = str(_find_name(function) if name is None else name)
    if not _NAME.fullmatch(named):
        raise MirrorError(
            f"{named!r} is not a valid tool name: a name has 1 to 128 of A-Z, a-z, 0-9, _, - and dots. "
            "Give one: @mirror.tool(name=...)."
        )
    signature = _read_signature(function, named)
    adapter = _build_adapter(source, signature, named)
    if (type_name := find_unencodable_result(source)) is not None:
        raise MirrorError(
            f"Function {named!r} cannot be a tool: it returns {type_name}, which cannot be encoded as JSON. "
            "Return JSON's own types, dataclasses, pydantic models, tables, arrays or bytes."
        )
    if description is None:  # of an object with `__call__`, that of the method, else that of the class
        description = inspect.getdoc(source if source.__doc__ else unbound) or ""
    return Function(named, description, adapter.json_schema(schema_generator=_Schema), function, adapter, policy)


def _unbind(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of a partial function; any other function unchanged."""
    return function.func if isinstance(function, functools.partial) else function


def _find_name(function: Callable[..., Any]) -> str:
    name = getattr(function, "__name__", None) or getattr(_unbind(function), "__name__", None)
    if name is None:
        kind = type(_unbind(function)).__name__
        raise MirrorError(f"An object of class {kind} has no name. Give one: @mirror.tool(name=...).")
    return str(name)


def _read_signature(function: Callable[..., Any], name: str) -> inspect.Signature:
    """The parameters that a model fills: without those that a partial function binds."""
    try:
        signature = _get_signature(function)
    except (TypeError, ValueError):
        raise MirrorError(f"{name!r} cannot be a tool: it has no signature. Wrap it in a function.") from None
    bound = function.keywords if isinstance(function, functools.partial) else {}
    parameters = [one for key, one in signature.parameters.items() if key not in bound]
    if inspect.isfunction(function) and next((one.name for one in parameters), "") == "self":
        raise MirrorError(
            f"Function {name!r} cannot be a tool: it is an unbound method. Bind it: mirror.tool(it.{name})."
        )
    for parameter in parameters:
        if unnamed := _UNNAMED_PARAMETERS.get(parameter.kind):
            is_single = parameter.kind is parameter.POSITIONAL_ONLY
            raise MirrorError(
                f"Function {name!r} cannot be a tool: models pass arguments by name, but it takes "
                f"{unnamed.format(parameter.name)}. Give its parameters names."
                + ("" if is_single else " If a decorator made the function, write `@functools.wraps` in the decorator.")
            )
    return signature.replace(parameters=parameters)


def _build_adapter(
    source: Callable[..., Any], signature: inspect.Signature, name: str
) -> TypeAdapter[Mapping[str, Any]]:
    """A type adapter that validates the arguments of a function and returns their schema."""
    annotations = _get_annotations(source)
    hints = {one: annotations[one] for one in signature.parameters if one in annotations}
    try:
        return _adapt(source, signature, hints)
    except _UNREADABLE as error:
        whole = error
    failures = dict[str, Exception]()
    for parameter, hint in hints.items():
        try:
            _adapt(source, signature, {parameter: hint})
        except _UNREADABLE as error:
            failures[f"the annotation of {parameter!r}"] = error
    where, failed = next(iter(failures.items()), ("an annotation", whole))
    reason = str(failed).partition("\n")[0].partition(". ")[0].rstrip(".")
    if isinstance(failed, _UNEVALUATED):
        raise MirrorError(
            f"Function {name!r} cannot be a tool, because {where} cannot be evaluated: {reason}. Define or import "
            "it at the top level of its module, and not only under `if TYPE_CHECKING`."
        ) from None
    raise MirrorError(
        f"Function {name!r} cannot be a tool, because {where} cannot be read from JSON: {reason}. "
        "Use JSON's own types, dataclasses, TypedDicts or pydantic models."
    ) from None


_UNEVALUATED: Final = (NameError, AttributeError, SyntaxError)
_UNREADABLE: Final = (*_UNEVALUATED, PydanticUserError, TypeError)
"""What pydantic raises for annotations that it cannot evaluate, or that have no JSON form."""


def _adapt(
    source: Callable[..., Any], signature: inspect.Signature, hints: Mapping[str, Any]
) -> TypeAdapter[Mapping[str, Any]]:
    """Return a type adapter for a signature in which only some parameters have type hints; the schema is tried."""

    @functools.wraps(source, updated=())  # the module, in which pydantic evaluates annotations
    def bind(**arguments: Any) -> Mapping[str, Any]:
        return arguments

    parameters = [one.replace(annotation=hints.get(key, one.empty)) for key, one in signature.parameters.items()]
    bind.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # `inspect` reads it
    bind.__annotations__ = dict(hints)
    adapter = TypeAdapter[Mapping[str, Any]](bind, config=_CONFIG)  # type: ignore[arg-type]  # TypeAdapter accepts functions
    adapter.json_schema(schema_generator=_Schema)
    return adapter


class _Schema(GenerateJsonSchema):
    """pydantic's schema of a signature without titles, which only repeat names."""

    ignored_warning_kinds = frozenset({"skipped-choice", "non-serializable-default"})  # type: ignore[assignment]

    def field_title_should_be_set(self, schema: Any) -> bool:
        del schema
        return False

    def bytes_schema(self, schema: core_schema.BytesSchema) -> JsonSchemaValue:
        """Return the schema of base64; raise TypeError within a model that does not decode base64."""
        del schema
        if self._config.val_json_bytes != "base64":
            raise TypeError("`bytes` of a pydantic model is base64 only with `ConfigDict(val_json_bytes='base64')`")
        return {"type": "string", "contentEncoding": "base64"}

    def is_subclass_schema(self, schema: core_schema.IsSubclassSchema) -> JsonSchemaValue:
        """Raise TypeError: no JSON value is a class."""
        raise TypeError(f"a value of JSON cannot be the class {schema['cls'].__name__}")

    def literal_schema(self, schema: core_schema.LiteralSchema) -> JsonSchemaValue:
        """Return the schema of the values that JSON has; raise TypeError if it has none of them."""
        return super().literal_schema({**schema, "expected": _select_readable(schema, schema["expected"])})

    def enum_schema(self, schema: core_schema.EnumSchema) -> JsonSchemaValue:
        """Return the schema of the members that JSON can name; raise TypeError if it can name none of them."""
        return super().enum_schema({**schema, "members": _select_readable(schema, schema["members"])})

    def dict_schema(self, schema: core_schema.DictSchema) -> JsonSchemaValue:
        """Return the schema of a dict; keys of an enum with numbers are named by their texts, as JSON writes keys.

        TypeError for keys that are not texts or numbers.
        """
        if schema.get("keys_schema", {}).get("type") in ("tuple", "frozenset"):
            raise TypeError("the keys of a JSON object are texts")
        described = super().dict_schema(schema)
        names = described.get("propertyNames", {})
        if "$ref" in names:
            names = self.get_schema_from_definitions(JsonRef(names["$ref"])) or names
        if not all(isinstance(one, str) for one in names.get("enum", ())):
            described["propertyNames"] = {
                "enum": [to_jsonable_python({one: None}).popitem()[0] for one in names["enum"]]
            }
        return described

    def named_tuple_schema(self, schema: Any) -> JsonSchemaValue:
        """Return the schema of a named tuple: an object, as in results, or pydantic's array."""
        as_array = super().named_tuple_schema(schema)
        names = [str(one["name"]) for one in schema["fields"]]
        as_object = {
            "type": "object",
            "properties": dict(zip(names, deepcopy(as_array.get("prefixItems", [])), strict=True)),
            "required": names[: as_array.get("minItems", 0)],
            "additionalProperties": False,
        }
        return {"anyOf": [as_object, as_array]}


def _select_readable(schema: core_schema.LiteralSchema | core_schema.EnumSchema, values: list[Any]) -> list[Any]:
    """The values of a literal or an enum that pydantic reads from their JSON: not tuples, bytes, classes and so on.

    Raises:
        TypeError: There are none, so no call could have this argument.
    """
    if not values:
        raise TypeError("an enum without members has no values")
    validator = SchemaValidator(schema)

    def is_readable(value: Any) -> bool:
        try:
            validator.validate_json(to_json(value))
        except (ValidationError, PydanticSerializationError):
            return False
        return True

    if not (readable := [one for one in values if is_readable(one)]):
        raise TypeError(f"no value of JSON equals {', '.join(map(repr, values[:_MAX_ERRORS]))}")
    return readable


def _describe_error(at: tuple[int | str, ...], reason: str) -> str:
    where = ".".join(map(str, at))
    text = f"{where}: {reason}" if where else reason
    return text[:_MAX_ERROR_LENGTH].rstrip(".")  # pydantic ends some reasons with a full stop


def read_policy(options: ToolOptions) -> ToolPolicy:
    """Validate the options of a tool.

    Raises:
        MirrorError: An option is unknown or has an invalid value.
    """
    if unknown := options.keys() - ToolOptions.__annotations__.keys():
        named = ", ".join(ToolOptions.__annotations__)
        raise MirrorError(f"A tool has no option {min(unknown)!r}. The options are {named}.")
    policy = ToolPolicy(
        capture=options.get("capture"),
        inline_budget=options.get("inline_budget"),
        timeout=options.get("timeout"),
        listed=options.get("listed"),
    )
    if policy.capture not in (None, *get_args(CaptureMode)):
        raise MirrorError(
            f"`capture` of a tool must be one of {', '.join(get_args(CaptureMode))}, not {policy.capture!r}."
        )
    budget: Any = policy.inline_budget
    timeout: Any = policy.timeout
    if budget is not None and not (isinstance(budget, int) and budget >= 0):
        raise MirrorError("`inline_budget` of a tool must be a number of tokens, 0 or more.")
    if timeout is not None and not (isinstance(timeout, int | float) and timeout > 0):
        raise MirrorError("`timeout` of a tool must be a number of seconds above 0.")
    return policy
