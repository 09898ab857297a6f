"""Schemas from signatures, arguments from JSON, and errors for functions that cannot be tools."""

import dataclasses
import functools
import json
import sys
from collections.abc import AsyncIterator, Callable
from datetime import date
from enum import Enum, IntEnum
from typing import Annotated, Any, Literal, NamedTuple

import jsonschema_rs
import pytest
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from mcp_mirror.errors import MirrorError, ToolError
from mcp_mirror.functions.signatures import Function, ToolOptions, read_function, read_policy
from mcp_mirror.settings.upstreams import ToolPolicy


class Order(BaseModel):
    item: str
    count: int = Field(default=1, ge=1, description="how many")


@dataclasses.dataclass
class Place:
    row: int
    labels: list[str]


class Wish(TypedDict, total=False):
    size: int


MADE_ANEW: Any = Field(default_factory=list)


class Strange:
    """No type of JSON."""


class Peak(NamedTuple):
    name: str
    height: int = 0


def climb(peak: Peak) -> None:
    del peak


class Letter(BaseModel):
    seal: bytes | None = None


class SealedLetter(Letter):
    model_config = ConfigDict(val_json_bytes="base64")


def read(function: Callable[..., Any], name: str | None = None, description: str | None = None) -> Function:
    return read_function(function, name, description, ToolPolicy())


def plain(city: str, days: int = 7) -> None:
    """The weather.

    In days to come.
    """


def described(city: Annotated[str, Field(description="such as Bonn")], limit: float = Field(default=1.5, gt=0)) -> None:
    del city, limit


def chosen(unit: Literal["C", "F"] = "C", top: int | None = None) -> None:
    del unit, top


def structured(order: Order, place: Place, wish: Wish) -> None:
    del order, place, wish


def named_as_models_are(schema: str, json: str, model_config: str, *, copy: bool) -> None:
    del schema, json, model_config, copy


def untyped(anything, more=5):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    return anything, more


def of_bytes(data: bytes, day: date, more: bytes = b"\xff") -> None:
    del data, day, more


def odd_default(values: list[int] = MADE_ANEW, what: Any = Strange) -> None:
    del values, what


class Shop:
    def sell(self, count: int) -> int:
        return count


TEXT, WHOLE = {"type": "string"}, {"type": "integer"}
NUMBERS = {"type": "array", "items": WHOLE}


def schema(required: list[str], **properties: Any) -> dict[str, Any]:
    needed = {"required": required} if required else {}
    return {"type": "object", "additionalProperties": False, "properties": properties, **needed}


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (plain, schema(["city"], city=TEXT, days={**WHOLE, "default": 7})),
        (
            described,
            schema(
                ["city"],
                city={**TEXT, "description": "such as Bonn"},
                limit={"type": "number", "default": 1.5, "exclusiveMinimum": 0},
            ),
        ),
        (
            chosen,
            schema(
                [],
                unit={**TEXT, "enum": ["C", "F"], "default": "C"},
                top={"anyOf": [WHOLE, {"type": "null"}], "default": None},
            ),
        ),
        (
            named_as_models_are,
            schema(
                ["schema", "json", "model_config", "copy"],
                schema=TEXT, json=TEXT, model_config=TEXT, copy={"type": "boolean"},
            ),
        ),
        (untyped, schema(["anything"], anything={}, more={"default": 5})),
        (
            of_bytes,
            schema(
                ["data", "day"],
                data={**TEXT, "contentEncoding": "base64"},
                day={**TEXT, "format": "date"},
                more={**TEXT, "contentEncoding": "base64", "default": "_w=="},
            ),
        ),
        (odd_default, schema([], values=NUMBERS, what={})),
        (Shop().sell, schema(["count"], count=WHOLE)),
        (lambda: None, schema([])),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)  # fmt: skip
def test_a_schema_matches_the_signature(function: Callable[..., Any], expected: dict[str, Any]) -> None:
    assert read(function, "tool").schema == expected


def test_models_dataclasses_and_typed_dicts_have_no_field_titles() -> None:
    found = read(structured).schema
    assert found["properties"] == {name: {"$ref": f"#/$defs/{name.title()}"} for name in ("order", "place", "wish")}
    assert found["$defs"]["Order"]["properties"] == {
        "item": TEXT,
        "count": {**WHOLE, "default": 1, "minimum": 1, "description": "how many"},
    }
    assert found["$defs"]["Place"]["required"] == ["row", "labels"]
    assert "required" not in found["$defs"]["Wish"]


@pytest.mark.parametrize(
    ("function", "given", "expected"),
    [
        (plain, {"city": "Bonn"}, {"city": "Bonn", "days": 7}),
        (
            structured,
            {"order": {"item": "pen"}, "place": {"row": 1, "labels": []}, "wish": {"size": 2}},
            {"order": Order(item="pen"), "place": Place(1, []), "wish": {"size": 2}},
        ),
        (
            of_bytes,
            {"data": "//79+w==", "day": "2026-01-02"},
            {"data": b"\xff\xfe\xfd\xfb", "day": date(2026, 1, 2), "more": b"\xff"},
        ),
        (of_bytes, {"data": "__79-w", "day": "2026-01-02", "more": ""}, {"data": b"\xff\xfe\xfd\xfb"}),
        (untyped, {"anything": [1, {"a": None}]}, {"anything": [1, {"a": None}], "more": 5}),
        (Shop().sell, {"count": 1 << 70}, {"count": 1 << 70}),
    ],
)
def test_arguments_are_python_values(function: Callable[..., Any], given: Any, expected: Any) -> None:
    found = read(function).read_arguments(json.dumps(given).encode())
    assert dict(found) | expected == dict(found)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"city": 3}, "city: Input should be a valid string"),
        ({}, "city: Missing required argument"),
        ({"city": "Bonn", "day": 1}, "day: Unexpected keyword argument"),
        ({"city": "Bonn", "days": "x" * 500}, "days: Input should be a valid integer"),
    ],
)
def test_argument_errors_do_not_contain_the_values(given: Any, expected: str) -> None:
    with pytest.raises(ToolError) as caught:
        read(plain).read_arguments(json.dumps(given).encode())
    assert expected in str(caught.value)
    assert "xxx" not in str(caught.value)
    assert str(caught.value).startswith("The arguments do not fit tool 'plain': ")
    assert "http" not in str(caught.value)


def test_an_argument_error_has_one_full_stop() -> None:
    def measure(data: bytes) -> int:
        return len(data)

    with pytest.raises(ToolError, match=r"data: .*base64.*[^.]\. Correct them and call again\.$"):
        read(measure).read_arguments(b'{"data": "no base64!"}')


def test_only_the_first_of_many_errors_are_listed() -> None:
    with pytest.raises(ToolError) as caught:
        read(plain).read_arguments(json.dumps(dict.fromkeys(map(str, range(50)), 1)).encode())
    assert str(caught.value).count(";") == 2
    with pytest.raises(ToolError, match=r"'plain': Invalid JSON"):
        read(plain).read_arguments(b"{")


def test_name_and_description_are_the_functions_own_or_given() -> None:
    assert (read(plain).name, read(plain).description) == ("plain", "The weather.\n\nIn days to come.")
    renamed = read(chosen, "choose.it", "")
    assert (renamed.name, renamed.description) == ("choose.it", "")
    assert read(chosen).description == ""


async def one_by_one(count: int) -> AsyncIterator[int]:
    for value in range(count):
        yield value


def opaque() -> list[Strange]:
    return [Strange()]


def test_generator_functions_are_tools() -> None:
    assert read(one_by_one).schema == schema(["count"], count=WHOLE)


class Weather:
    """The weather of a station."""

    def __init__(self, unit: str) -> None:
        self.unit = unit

    def __call__(self, city: str, days: int = 7) -> str:
        return f"{city} {days} {self.unit}"


class Forecast:
    def __call__(self, city: str, secret: str) -> str:
        """The forecast."""
        return f"{city} {secret}"


async def fetch(url: str, key: "Nowhere", limit: int = 3) -> "Nowhere":  # type: ignore[name-defined]  # noqa: F821
    """A page."""
    return url, key, limit


@pytest.mark.parametrize(
    ("function", "name", "described", "expected"),
    [
        (functools.partial(plain, "Bonn"), None, "The weather.", schema([], days={**WHOLE, "default": 7})),
        (functools.partial(plain, days=2), None, "The weather.", schema(["city"], city=TEXT)),
        (functools.partial(fetch, key="k"), None, "A page.", schema(["url"], url=TEXT, limit={**WHOLE, "default": 3})),
        (Weather("C"), "weather", "The weather of", schema(["city"], city=TEXT, days={**WHOLE, "default": 7})),
        (functools.partial(Forecast(), secret="k"), "forecast", "The forecast.", schema(["city"], city=TEXT)),
        (functools.cache(plain), None, "The weather.", schema(["city"], city=TEXT, days={**WHOLE, "default": 7})),
    ],
)
def test_partial_functions_and_callable_objects_are_tools(
    function: Callable[..., Any], name: str | None, described: str, expected: dict[str, Any]
) -> None:
    found = read(function, name)
    assert found.schema == expected
    assert found.name in (name, "plain", "fetch")
    assert found.description.startswith(described)


def test_a_partial_function_gets_the_given_and_the_bound_arguments() -> None:
    for tool, given in (
        (read(functools.partial(Weather("C"), days=2), "weather"), {"city": "Bonn"}),
        (read(Weather("C"), "weather"), {"city": "Bonn", "days": 2}),
    ):
        assert tool.call(**tool.read_arguments(json.dumps(given).encode())) == "Bonn 2 C"
    with pytest.raises(ToolError, match="days: Unexpected keyword argument"):
        read(functools.partial(plain, days=2)).read_arguments(b'{"city": "Bonn", "days": 3}')


def test_a_return_annotation_that_cannot_be_evaluated_is_accepted() -> None:
    def find(number: int) -> "Nowhere":  # type: ignore[name-defined]  # noqa: F821
        return number

    assert read(find).schema == schema(["number"], number=WHOLE)


class Station:
    def name_of(self, city: str) -> str:
        return city


def by_position(value: int, /) -> None:
    del value


def rest(*values: int) -> None:
    del values


def keywords(**values: int) -> None:
    del values


def strange(value: Strange) -> None:
    del value


def callback(value: Callable[[], int]) -> None:
    del value


def open_letter(letter: Letter) -> None:
    del letter


def open_sealed(letter: SealedLetter) -> None:
    del letter


def unknown(value: "Nowhere") -> None:  # type: ignore[name-defined]  # noqa: F821
    del value


def unknown_member(value: "json.Nowhere") -> None:  # type: ignore[name-defined]
    del value


def no_expression(value: "list[") -> None:  # type: ignore[valid-type]  # noqa: F722
    del value


@pytest.mark.skipif(sys.version_info < (3, 14), reason="earlier versions evaluate annotations in definitions")
@pytest.mark.parametrize(
    ("definition", "expected"),
    [
        ("def find(value: Nowhere) -> None: ...", "annotation of 'value' cannot be evaluated: name 'Nowhere' is not "),
        ("def find(count: int, value: list[Nowhere]) -> None: ...", "annotation of 'value' cannot be evaluated: name"),
        ("def find(value: json.Nowhere) -> None: ...", "annotation of 'value' cannot be evaluated: module 'json' has"),
    ],
)
def test_annotations_that_python_did_not_evaluate_yet(definition: str, expected: str) -> None:
    names: dict[str, Any] = {"json": json, "__name__": __name__}
    exec(definition, names)  # noqa: S102  # the names are unknown to type checkers too
    with pytest.raises(MirrorError, match=expected):
        read(names["find"])
    exec("def count(number: int) -> Nowhere: ...", names)  # noqa: S102
    assert read(names["count"]).schema == schema(["number"], number=WHOLE)


def second_is_strange(first: int, second: list[Strange], third: int) -> None:
    del first, second, third


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (by_position, "it takes value, which is positional-only. Give its parameters names."),
        (rest, "it takes *values. Give its parameters names."),
        (rest, "If a decorator made the function, write `@functools.wraps` in the decorator."),
        (keywords, "it takes **values. Give its parameters names."),
        (strange, "the annotation of 'value' cannot be read from JSON: Unable to generate"),
        (callback, "the annotation of 'value' cannot be read from JSON: Cannot generate"),
        (open_letter, "of a pydantic model is base64 only with `ConfigDict(val_json_bytes='base64')`."),
        (
            unknown,
            "the annotation of 'value' cannot be evaluated: name 'Nowhere' is not defined. Define or import it at ",
        ),
        (unknown_member, "the annotation of 'value' cannot be evaluated: module 'json' has no attribute 'Nowhere'. "),
        (no_expression, "the annotation of 'value' cannot be evaluated: Forward reference must be an expression"),
        (second_is_strange, "the annotation of 'second' cannot be read from JSON: Unable to generate"),
        (lambda value: value, "'<lambda>' is not a valid tool name"),
        (Weather("C"), "An object of class Weather has no name. Give one: @mirror.tool(name=...)."),
        (functools.partial(rest, 1), "it takes *values. Give its parameters names."),
        (
            opaque,
            f"it returns {__name__}.Strange, which cannot be encoded as JSON. Return JSON's own types, ",
        ),
        (Station.name_of, "it is an unbound method. Bind it: mirror.tool(it.name_of)."),
        ("plain", "Only a function can be a tool: write @mirror.tool, or @mirror.tool(name=...)"),
        (type("iterator", (), {"__call__": None, "__name__": "iterator"})(), "it has no signature"),
    ],
)
def test_errors_for_invalid_functions_have_two_sentences_at_most(function: Any, expected: str) -> None:
    with pytest.raises(MirrorError) as caught:
        read(function)
    assert expected in str(caught.value)
    assert len(str(caught.value)) < 320
    assert "pydantic.dev" not in str(caught.value)


class Season(Enum):
    DRY = "dry"
    WET = "wet"


class Pair(Enum):
    FIRST = (1, 2)


class Pace(Enum):
    QUICK = int


class Size(Enum):
    TINY = (1, 2)
    ODD = object
    LARGE = "large"


@pytest.mark.parametrize(
    ("hint", "reason"),
    [
        (type[int], "a value of JSON cannot be the class int"),
        (dict[tuple[int, int], str], "the keys of a JSON object are texts"),
        (list[dict[frozenset[int], str]], "the keys of a JSON object are texts"),
        (Literal[b"x"], "no value of JSON equals b'x'"),
        (Literal[Season.DRY, Season.WET], "no value of JSON equals <Season.DRY: 'dry'>, <Season.WET: 'wet'>"),
        (list[Pair], r"no value of JSON equals <Pair.FIRST: \(1, 2\)>"),
        (Enum("Empty", {"length": property()}), "an enum without members has no values"),
        (Pace, "no value of JSON equals <Pace.QUICK: <class 'int'>>"),
    ],
)
def test_types_that_no_call_can_satisfy_are_refused(hint: Any, reason: str) -> None:
    def find(value: Any) -> None:
        del value

    find.__annotations__["value"] = hint
    with pytest.raises(MirrorError, match=f"the annotation of 'value' cannot be read from JSON: {reason}"):
        read(find)


def test_the_schema_has_only_the_members_of_an_enum_that_json_can_name() -> None:
    def resize(size: Size, other: Literal["x", Season.DRY]) -> None: ...

    function = read(resize)
    properties = dict(function.schema)["properties"]
    assert (function.schema["$defs"]["Size"]["enum"], properties["other"]["const"]) == (["large"], "x")
    assert function.read_arguments(b'{"size": "large", "other": "x"}') == {"size": Size.LARGE, "other": "x"}


def test_a_model_class_is_a_tool_that_builds_it() -> None:
    function = read(Order)
    arguments = function.read_arguments(b'{"item": "tent"}')
    assert (arguments["item"], function.call(**arguments)) == ("tent", Order(item="tent"))


@pytest.mark.parametrize(
    ("given", "height"), [('["a", 7]', 7), ('{"name": "a", "height": 7}', 7), ('{"name": "a"}', 0)]
)
def test_a_named_tuple_is_an_array_or_an_object(given: str, height: int) -> None:
    function = read(climb)
    jsonschema_rs.validate(dict(function.schema), {"peak": json.loads(given)})
    peak = function.read_arguments(b'{"peak": %b}' % given.encode())["peak"]
    assert (peak.name, peak.height) == ("a", height)


class Level(IntEnum):
    LOW = 1
    HIGH = 2


def count_levels(counts: dict[Level, int], peaks: dict[Level, float] | None = None) -> None: ...


def test_keys_of_an_enum_of_numbers_are_texts_in_the_schema() -> None:
    function = read(count_levels)
    given = b'{"counts": {"1": 5}, "peaks": {"2": 7}}'
    jsonschema_rs.validate(dict(function.schema), json.loads(given))
    assert function.read_arguments(given) == {"counts": {Level.LOW: 5}, "peaks": {Level.HIGH: 7}}
    with pytest.raises(jsonschema_rs.ValidationError):
        jsonschema_rs.validate(dict(function.schema), {"counts": {"3": 5}})


def count_names(counts: dict[str, int], kinds: dict[Literal["hut", "lake"], int]) -> None: ...


def test_keys_that_are_texts_are_described_by_their_texts() -> None:
    properties = dict(read(count_names).schema)["properties"]
    assert "propertyNames" not in properties["counts"]
    assert properties["kinds"]["propertyNames"] == {"enum": ["hut", "lake"]}


def test_bytes_of_a_model_are_decoded_as_the_schema_says() -> None:
    function = read(open_sealed)
    assert "contentEncoding" in json.dumps(function.schema)
    assert function.read_arguments(b'{"letter": {"seal": "/w=="}}') == {"letter": SealedLetter(seal=b"\xff")}


def measure(picture: bytes) -> None: ...


def test_bytes_that_are_not_base64_name_the_path_of_one_picture() -> None:
    with pytest.raises(ToolError) as raised:
        read(measure).read_arguments(b'{"picture": "[\\"Here it is\\"]"}')
    assert str(raised.value) == (
        "The arguments do not fit tool 'measure': picture: expected base64, or the path of one image, recording or "
        "file; in a result with several items that is a path below it, such as path/1. Correct them and call again."
    )


def test_options_are_a_policy() -> None:
    assert read_policy({}) == ToolPolicy()
    options: ToolOptions = {"capture": "always", "inline_budget": 5, "timeout": 2.5, "name": "other"}
    assert read_policy(options) == ToolPolicy(capture="always", inline_budget=5, timeout=2.5)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"capture": "sometimes"}, "`capture` of a tool must be one of auto, large, always, never, not 'sometimes'."),
        ({"timeout": 0}, "`timeout` of a tool must be a number of seconds above 0"),
        ({"timeout": float("nan")}, "`timeout` of a tool must be a number of seconds above 0"),
        ({"timeout": "5"}, "`timeout` of a tool must be a number of seconds above 0"),
        ({"inline_budget": "5"}, "`inline_budget` of a tool must be a number of tokens, 0 or more."),
        ({"inline_budget": -1}, "`inline_budget` of a tool must be a number of tokens, 0 or more."),
        (
            {"cature": "never"},
            "A tool has no option 'cature'. The options are name, description, capture, inline_budget, ",
        ),
    ],
)
def test_options_that_there_cannot_be_are_refused(options: Any, expected: str) -> None:
    with pytest.raises(MirrorError) as caught:
        read_policy(options)
    assert expected in str(caught.value)
