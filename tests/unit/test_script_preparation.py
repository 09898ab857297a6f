"""What a script gets before it runs: its tools by name, their types, the mistakes that are reported; and its policy."""

import asyncio
import json
import sys
import time
from base64 import b64encode
from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from computing import least_seconds
from tests.load import measure_pause, slowness

from mcp_mirror.errors import ToolError
from mcp_mirror.memory.code.failures import explain_unknown_names
from mcp_mirror.memory.code.mistakes import find_mistakes, find_unawaited
from mcp_mirror.memory.code.returned import encode_returned
from mcp_mirror.memory.code.sandbox import Failure
from mcp_mirror.memory.code.scripts import ScriptTool
from mcp_mirror.memory.code.stubs import find_names, name_tools, select_tools, write_prelude, write_stubs
from mcp_mirror.settings.policies import CodePolicy


def tool(name: str, own: str | None = None, **schema: Any) -> ScriptTool:
    return ScriptTool(name, own or name.removesuffix("_mirrored"), schema, is_read_only=True)


def test_a_tool_has_its_twins_name_and_its_own_if_that_is_unique() -> None:
    named = name_tools([tool("a-b_mirrored"), tool("x_say_mirrored", "say"), tool("y_say_mirrored", "say")])
    assert set(named) == {"a_b_mirrored", "a_b", "x_say_mirrored", "y_say_mirrored"}
    assert set(name_tools([tool("3d"), tool("class")])) == {"_3d", "_class"}


def test_very_many_tools_are_named_in_linear_time() -> None:
    tools = [tool(f"upstream_{number}_mirrored", f"tool_{number}") for number in range(20_000)]
    began = time.process_time()
    assert len(name_tools(tools)) == 2 * len(tools)
    assert time.process_time() - began < 2


def test_a_tool_with_very_many_arguments_is_declared_in_linear_time() -> None:
    names = [f"argument_{number}" for number in range(50_000)]
    began = time.process_time()
    declared = write_stubs({"f": tool("f", properties={name: {} for name in names}, required=names)}, [])
    assert f"{names[-1]}: Any)" in declared
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    ("code", "selected"),
    [
        ("await tools.a(x=1)", ["a"]),
        ("tools . b", ["b"]),
        ("tools.nothing()", []),
        ("getattr(tools, 'a')", ["a", "b"]),
        ("tools.a; f = tools", ["a", "b"]),
    ],
)
def test_a_script_gets_the_tools_that_it_can_use(code: str, selected: list[str]) -> None:
    assert list(select_tools(code, {"a": tool("a"), "b": tool("b")})) == selected


@pytest.mark.parametrize(
    ("code", "is_mentioned"),
    [
        ("len(log)", True),
        ("open('/memory/log')", False),
        ("open('/memory/log').read() + log", True),
        ("open('/memory//memory/log')", False),
        ("math.login", False),
        ("x = {'log': 1}", True),
    ],
)
def test_an_input_is_loaded_if_the_script_may_use_it(code: str, is_mentioned: bool) -> None:  # noqa: FBT001  # a table
    assert ("log" in find_names(code)) is is_mentioned


@pytest.mark.parametrize(
    "code", ["x = 1\n" * 17_000, "a " * 50_000, "a" * 100_000, "/memory/ab " * 9_000, "x" + "\n" * 99_000]
)
def test_the_names_in_a_long_script_are_found_fast(code: str) -> None:
    assert least_seconds(lambda: find_names(code)) < 0.05


def test_very_many_texts_of_calls_that_are_not_awaited_are_searched_fast() -> None:
    value = json.dumps([f"<coroutine object f{number}>" for number in range(10_000)]).encode()
    code = "x = 1\n" * 17_000
    assert least_seconds(lambda: find_unawaited(value, code)) < 0.2
    assert find_unawaited(value, f"{code}tools.f9999 (x=1)") == "f9999"
    assert find_unawaited(value, f"{code}f9999, f10000(), xf1()") is None


def test_the_advice_on_very_many_names_in_a_long_script_is_found_fast() -> None:
    tools = {f"f{number}": tool(f"f{number}") for number in range(1_000)}
    named = " ".join(f"`{name}`" for name in tools)
    failure, code = Failure(f"NameError: {named} is not defined", "NameError"), "x = 1\n" * 17_000
    assert least_seconds(lambda: explain_unknown_names(failure, tools, code)) < 0.2
    assert "await tools.f7(" in explain_unknown_names(failure, tools, f"{code}x.f6(1); f7 (1)").message


@pytest.mark.parametrize(
    ("schema", "parameters"),
    [
        ({}, "_tools, **arguments: Any"),
        ({"properties": {"a": {"type": "string"}}, "required": ["a"]}, "_tools, *, a: str"),
        ({"properties": {"a": {"type": "integer"}}}, "_tools, *, a: int = ..."),
        ({"properties": {"a": {"type": ["number", "null"]}}}, "_tools, *, a: float | None = ..."),
        ({"properties": {"a": {"enum": ["x", "y'"]}}}, "_tools, *, a: Literal['x', \"y'\"] = ..."),
        ({"properties": {"a": {"enum": [1]}}}, "_tools, *, a: Any = ..."),
        ({"properties": {"a": {"enum": []}}}, "_tools, *, a: Any = ..."),
        ({"properties": {"a": {"$ref": "#"}, "b": True}}, "_tools, *, a: Any = ..., b: Any = ..."),
        ({"properties": {"a-b": {"type": "string"}}}, "_tools, **arguments: Any"),
        ({"properties": {"self": {"type": "string"}}, "required": None}, "_tools, *, self: str = ..."),
        ({"properties": {"_tools": {"type": "string"}, "a": True}}, "_tools, *, a: Any = ..., **arguments: Any"),
        ({"properties": {"a": {"type": "array"}}, "additionalProperties": True},
         "_tools, *, a: list[Any] | tuple[Any, ...] = ..., **arguments: Any"),
    ],
)  # fmt: skip
def test_the_types_of_a_tool_are_those_of_its_schema(schema: dict[str, Any], parameters: str) -> None:
    assert f"    async def a({parameters}) -> Any: ..." in write_stubs({"a": tool("a", **schema)}, ("x",))


def test_a_tool_cannot_put_code_into_the_stubs_or_the_prelude() -> None:
    evil = tool("a", "b): ...\nimport os\ndef c(", properties={"x: int): ...\nimport os": {"enum": ["'\n\"]"]}})
    named = name_tools([evil])
    assert "\nimport os" not in write_stubs(named, ())
    assert "\nimport os" not in write_prelude(named, ("x",), has_tools=True)


def diagnostic(code: str, message: str, row: int = 1, column: int = 1) -> dict[str, Any]:
    return {"code": code, "message": message, "location": {"row": row, "column": column}}


@pytest.mark.parametrize(
    ("found", "is_mistake"),
    [
        (diagnostic("missing-argument", "No argument for bound method `Tools.a`"), True),
        (diagnostic("missing-argument", "No argument for `f`"), False),
        (diagnostic("invalid-argument-type", "Argument to bound method `Tools.a`", 2, 3), False),
        (diagnostic("unresolved-reference", "Name `nothing` used when not defined"), True),
        (diagnostic("unresolved-reference", "Name `getattr` used when not defined"), False),
        (diagnostic("unsupported-operator", "Operator `+` on `CoroutineType[Any]`"), True),
        (diagnostic("invalid-syntax", "Expected an expression", 9), True),
        (diagnostic("invalid-syntax", "`return` statement outside of a function"), False),
        (diagnostic("unresolved-attribute", "Attribute `group` is not defined on `None`"), False),
    ],
)
def test_only_certain_mistakes_are_reported(found: dict[str, Any], is_mistake: bool) -> None:  # noqa: FBT001  # a table
    mistakes = find_mistakes(json.dumps([found, found]), "tools.a()\nf(**x)")
    assert len(mistakes) == is_mistake
    assert all(one.startswith(f"line {found['location']['row']}: ") for one in mistakes)


@pytest.mark.parametrize(
    ("policy", "is_read_only", "is_admitted"),
    [
        (CodePolicy(), True, True),
        (CodePolicy(), False, False),
        (CodePolicy(tools="listed", allow=("read_*",)), False, True),
        (CodePolicy(tools="listed", allow=("write_*",)), True, False),
        (CodePolicy(tools="all"), False, True),
        (CodePolicy(tools="none"), True, False),
    ],
)
def test_the_policy_admits_tools(policy: CodePolicy, is_read_only: bool, is_admitted: bool) -> None:  # noqa: FBT001  # a table
    assert policy.admits("read_rows", is_read_only=is_read_only) is is_admitted


@pytest.fixture
def limited_digits() -> Iterator[None]:
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(4300)
    yield
    sys.set_int_max_str_digits(before)


@pytest.mark.usefixtures("limited_digits")
def test_an_integer_that_python_does_not_write_is_a_mistake_of_the_script() -> None:
    huge = 10**5000
    for value in (huge, [{"a": -huge}], {huge: 1}, {(huge, 1): 1}):
        with pytest.raises(ToolError, match="more than 4,300 digits"):
            encode_returned(value, 1 << 20)


def test_a_returned_value_is_bounded_before_it_is_written() -> None:
    assert encode_returned({"a": [1, "x"]}, 1000) == b'{"a":[1,"x"]}'
    row: list[object] = [0] * 1000
    for _ in range(10):
        row = [row] * 1000
    for large in (row, ["x" * 2000], [0] * 100, {n: n for n in range(100)}):
        with pytest.raises(ToolError, match=r"`code\.values`"):
            encode_returned(large, 1000)


def test_the_form_of_a_value_does_not_depend_on_the_keys_beside_it() -> None:
    value = [datetime(2026, 1, 2, 3, 4), timedelta(days=1), Decimal("1.50"), b"ab", float("nan"), {3}]  # noqa: DTZ001
    form = encode_returned(value, 1000)
    assert form == b'["2026-01-02T03:04:00","P1D","1.50","YWI=",null,[3]]'
    assert encode_returned({(1, "a"): value}, 1000) == b'{"[1, \\"a\\"]":%b}' % form
    assert encode_returned({"\ud800": value}, 1000) == b'{"?":%b}' % form


@pytest.mark.slow
def test_a_large_returned_value_has_the_same_form_as_a_small_one() -> None:
    text, most = '€"\n', 1 << 28
    escaped = encode_returned(text, most)[1:-1]
    many = b'"%b"' % (escaped * 500_000)
    assert encode_returned(text * 500_000, most) == many
    written = b'{%b:[],"[1, 2]":[%b]}' % (many, many)
    assert encode_returned({text * 500_000: [], (1, 2): [text * 500_000]}, most) == written
    assert encode_returned(b"ab" * 500_001, most) == b'"%b"' % b64encode(b"ab" * 500_001)
    rows = [(number, {number}, {"a": float("nan"), "b": True}) for number in range(50_000)]
    written = b"[%b]" % b",".join(encode_returned(row, most) for row in rows)
    assert encode_returned(rows, most) == encode_returned(tuple(rows), most) == written
    members = dict(enumerate(rows))
    written = b"{%b}" % b",".join(encode_returned({number: row}, most)[1:-1] for number, row in members.items())
    assert encode_returned(members, most) == written
    assert encode_returned([members, 10**30], most) == b"[%b,1%b]" % (written, b"0" * 30)
    assert encode_returned([[[members]], [], {}], most) == b"[[[%b]],[],{}]" % written


@pytest.mark.alone
@pytest.mark.parametrize("value", [b"a" * 100_000_000, [1 / 3] * 2_000_000 + [10**30]], ids=["bytes", "numbers"])
async def test_the_encoding_of_a_large_value_does_not_stall_others(value: object) -> None:
    encoding = asyncio.to_thread(encode_returned, value, 1 << 28)
    assert await measure_pause(encoding) < 0.05 * slowness()  # before: 0.14 and 0.09
