"""Outlines of values, and JMESPath expressions."""

import json
import re
import time
from typing import Any

import jmespath
import msgspec
import pytest
from computing import least_seconds

from mcp_mirror.core.texts.embedded_json import find_embedded_json, find_quoted_text, read_json_container
from mcp_mirror.errors import ToolError
from mcp_mirror.query.missing_keys import explain_nothing
from mcp_mirror.query.select import Select, explain_text, select
from mcp_mirror.query.shape import Shape
from mcp_mirror.query.windows import Budget
from mcp_mirror.tokens import estimate_tokens


def never() -> bool:
    return False


def shape(value: Any, characters: int = 10_000) -> str:
    blob = value if isinstance(value, bytes) else json.dumps(value).encode()
    return Shape(Budget(1_000_000, characters, estimate_tokens))(blob, never)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("hello\nworld", 'text, 11 characters, 2 lines, begins "hello"'),
        ("", 'text, 0 characters, 0 lines, begins ""'),
        ("a\n", 'text, 2 characters, 1 line, begins "a"'),
        (b"1.50", "number 1.50"),
        (None, "null null"),
        ({}, "object, 0 keys"),
        ({"a/b": 1, "c": "x" * 100}, 'object, 2 keys\n"/a~1b": 1\n"/c": text 100 B'),
        ([], "array, 0 items"),
        ([1, "x", 2], "array, 3 items; all of them: number (2), text (1)"),
        (
            [{"a": 1}, {"a": None, "b": "x"}, {"a": 2}],
            'array, 3 items; all of them: object (3)\n"/a": number or null\n"/b": text, in 1 of 3',
        ),
        ([{"a": 1}] * 101, 'array, 101 items; the first 100 of them: object (100)\n"/a": number'),
    ],
)
def test_a_value_is_outlined(value: Any, expected: str) -> None:
    assert shape(value) == expected


def test_few_items_of_an_array_of_large_items_are_examined() -> None:
    assert "the first 3 of them" in shape(["x" * 2_000_000] * 5)


def test_an_outline_stays_in_its_budget() -> None:
    shown = shape({f"key {number}": number for number in range(1000)}, 400)
    assert len(shown) <= 400
    assert shown.splitlines()[-1].endswith("more keys")


def test_an_outline_stops_at_its_time_limit() -> None:
    with pytest.raises(ToolError, match="timeout"):
        Shape(Budget(1000, 1000, estimate_tokens))(b"[1]", lambda: True)


ROWS = b'{"rows": [{"n": 1.0, "k": "b"}, {"n": 12345678901234567890.5, "k": "a"}, {"n": 1e400, "k": "b"}], "t": true}'


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ("rows[?k == 'b'].n", "[1.0,1e400]"),
        ("rows[0]", '{"n":1.0,"k":"b"}'),
        ("rows[1].n", "12345678901234567890.5"),
        ("sort_by(rows, &k)[0].n", "12345678901234567890.5"),
        ("length(rows)", "3"),
        ("rows[?n > `1.5`].k", '["a","b"]'),
        ("max_by(rows, &n).k", '"b"'),
        ("sum(rows[:1].n)", "1.0"),
        ("t", "true"),
    ],
)
def test_selected_numbers_keep_their_digits(expression: str, found: str) -> None:
    assert select(ROWS, expression) == found.encode()


@pytest.mark.parametrize(
    ("expression", "advice"),
    [
        ('length(rows[?k == "b"])', "'b'"),
        ("rows[?k == b].n", "'b'"),
        ('rows[?k == ""].n', "''"),
        ('rows[?k != "b" && n > `1`]', "'b'"),
        ('rows[?contains(k, "L\'Aquila")]', r"'L\\'Aquila'"),
        ("rows.0.n", r"\[0\]"),
        ("rows[?k = 'b' in n]", "Write `==` in place of `=`"),
        ("rows t", "jmespath.org"),
        ("contains(t)", "jmespath.org"),
        ("rows.map(r => r.n)", "JMESPath has no `=>`: write "),
        ('.rows[] | select(.k == "b") | .n', r"JMESPath has no select\(\): write "),
    ],
)
def test_a_literal_that_jmespath_takes_for_a_key_is_an_error(expression: str, advice: str) -> None:
    with pytest.raises(ToolError, match=f"{advice}"):
        select(ROWS, expression)


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ("length(rows[?k == n])", "0"),
        ('rows[].{a: k, b: k}[?a == "b"] | length(@)', "3"),
        ("length(rows[?nothing == null])", "3"),
        ("rows[?k == 'c']", "[]"),
        ('rows[?contains(`["a"]`, k)].k', '["a"]'),
        ("*[?n > `99`].k | []", '["a","b"]'),
        ("*[?k == 'c']", "[[]]"),
        ("*.*[0]", "[]"),
        ("*[9]", "[]"),
        ("rows[?k == 'c'][0].n", "[]"),
        ("rows[*].[k, n][?@ == 'c']", "[]"),
        ("[[`1`], [`2`]][?@ == `3`]", "[]"),
        ("not_null(t, nothing)", "true"),
    ],
)
def test_an_expression_compares_with_keys_of_the_value(expression: str, found: str) -> None:
    assert select(ROWS, expression) == found.encode()


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ("rows[?n > 10].k", '["a","b"]'),
        ("rows[?n<=1.0].k | [0]", '"b"'),
        ("rows[?n == 1e0].n", "[1.0]"),
        ("rows[?n > -1 && k == 'a'].k", '["a"]'),
        ("rows[?k='b'].n", "[1.0,1e400]"),
        ("rows[?k === 'b' && n !== 1].n", "[1e400]"),
        ("rows[?k <> 'b'].k", '["a"]'),
        ("rows[?k == 'b' and n == `1`].n", "[1.0]"),
        ("rows[?k == 'b' OR k == 'a'] | length(@)", "3"),
        ("rows[?t == true] | length(@)", "0"),
        ("[@][?t == true].t", "[true]"),
        ("[@][?t != False].t", "[true]"),
        ("rows[?k == 'x = 5 and y'].n || k = 5", "false"),
    ],
)
def test_operators_and_literals_of_other_languages_are_read_as_meant(expression: str, found: str) -> None:
    assert select(ROWS, expression) == found.encode()


def test_a_key_that_is_called_true_is_compared() -> None:
    assert select(b'[{"a": 1, "true": 1}, {"a": 2, "true": 1}]', "[?a == true].a") == b"[1]"


PRICES = [{"id": 1, "price": "9.50"}, {"id": 2, "price": "10.20"}, {"id": 3, "price": "2.75"}]


@pytest.mark.parametrize(
    "expression",
    [
        "max([].price)",
        "min([:2].price)",
        "sort([].price)",
        "sort_by(@, &price)[].id",
        "max_by(@, &price).id",
        "[?price > '10'].id",
        "[?price >= '10'] | length(@)",
    ],
)
def test_numbers_in_texts_are_not_ordered_letter_by_letter(expression: str) -> None:
    with pytest.raises(ToolError, match=r"letter by letter, not as numbers\. Convert them: \[\]\.to_number\(KEY\)"):
        select(json.dumps(PRICES).encode(), expression)


@pytest.mark.parametrize(
    ("expression", "advice"),
    [
        ("sum([].price)", "Convert numbers in texts: [].to_number(KEY)."),
        ("abs([0].price)", "Convert numbers in texts: [].to_number(KEY)."),
        ("join(', ', [].id)", "Convert numbers: [].to_string(KEY)."),
        ("keys([0].id)", "Correct it, see jmespath.org."),
    ],
)
def test_a_function_of_numbers_or_texts_says_how_to_convert_the_others(expression: str, advice: str) -> None:
    with pytest.raises(ToolError) as raised:
        select(json.dumps(PRICES).encode(), expression)
    assert str(raised.value).endswith(advice)


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ("max([].to_number(price))", "10.2"),
        ("sort_by(@, &to_number(price))[].id", "[3,1,2]"),
        ("max([?id != `2`].price)", '"9.50"'),
        ("min_by([?id != `2`], &price).id", "3"),
        ("[?price == '9.50'].id", "[1]"),
        ("sort(['b', '10', '9'])", '["10","9","b"]'),
        ("max(['2026-11-02', '2026-11-10'])", '"2026-11-10"'),
    ],
)
def test_texts_whose_order_is_that_of_numbers_have_an_order(expression: str, found: str) -> None:
    assert select(json.dumps(PRICES).encode(), expression) == found.encode()


@pytest.mark.parametrize(
    "texts",
    [
        ["9 Nov 2025", "16 Dec 2025", "2 May 2026"],
        ["Sun, 9 Nov 2025 10:00:00 GMT", "Sun, 9 Nov 2025 10:00:00 -0500", "Fri, 02 Jan 2026 08:00:00 +0100"],
        ["09/Nov/2025:10:00:00 +0100", "16/Dec/2025:09:00:00 +0100", "02/Jan/2026:08:00:00 +0100"],
        ["December 31, 2025 at 12:05 AM", "December 31, 2025 at 1:05 AM", "December 31, 2025 at 12:30 PM"],
        ["Nov  9 23:59:59", "Nov 10 00:00:00", "Dec  1 07:00:00"],
        ["9 Feb", "29 Feb", "1 Mar"],
        ["30-Nov-2024", "02-Jan-2025", "01-Feb-2025"],
        ["Dec 2025", " Feb 2026", "Apr 2026\n"],
        ["28.12.2025", "3.1.2026", "02.02.2026"],
        ["03.01.2026 9:05", "03.01.2026 10:00", "01.02.2026 08:00"],
        ["2026-02-10T00:20:00+09:00", "2026-02-09T16:20:00Z", "2026-02-09T15:20:00.5-02"],
        ["-3 °C", "9 °C", "27 °C"],
        ["\u221210 %", "\u22129 %", "12 %"],
        ["$999.00", "$1,234.50", "$21,000"],
        ["-$5.00", "$3.00", "$10.00"],
        ["\u2212\u20ac 20", "\u20ac -9", "+\u20ac 10"],
        ["-3%", "+5%", "+10%"],
        ["-3", "+5", "+10"],
        ["5,5 kg", "10,2 kg", "1.200,0 kg"],
        ["9,5", "10,25", "1.000.000"],
        ["999 kr", "9 000 kr", "10 000,50 kr"],
        ["9'500 CHF", "10'500 CHF", "1'000'000 CHF"],
        ["999", "1,234", "21,000"],
        ["v1.9", "v1.9.1", "v1.10"],
        ["9.0.10.1", "10.0.0.9", "10.0.0.10"],
        ["12/31/2025", "1/2/2026", "02/13/2026"],
        ["31/12/2025 10:00", "1/2/2026 9:05", "1/2/2026 10:00"],
        ["12/31/2025, 12:05:00 AM", "12/31/2025, 1:05:00 AM", "12/31/2025, 12:30:00 PM"],
        ["01/02/2025", "01/03/2025", "02/04/2025"],
        ["0", "900K", "1.2M"],
        ["850MB", "1.2GB", "1.25GB"],
        ["0 B", "900 kB", "1,000 kB"],
        ["1000MiB", "1Gi", "1.1 GB"],
        ["9 ms", "0.95s", "1.2 sec"],
        ["950 \u00b5s", "1.2ms", "1 s"],
        ["90 seconds", "1m31s", "1.6 min"],
        ["9h 5m", "1 day", "1d 2h"],
        ["3:45", "12:10", "1:02:03"],
        ["9:05", "10:30", "10:30.5"],
        ["2 hours ago", "10 days ago", "3 weeks ago"],
        ["8 weeks", "2 months", "1 year"],
        ["$850M", "$1.2B", "$2.3 trillion"],
        ["\u20ac950k", "\u20ac1.2m", "\u20ac12M"],
        ["0", "12 (5m ago)", "103 (2d ago)"],
        ["1st", "2nd", "10th"],
        ["9 of 10", "10 of 10", "~99.5"],
        ["1.9.0", "1.10.0-rc1", "1.10.0"],
        ["1.10", "9.0.1+ds", "2026.5.20.post1"],
    ],
)
@pytest.mark.parametrize("shuffle", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_dates_with_names_of_months_and_amounts_have_their_order(texts: list[str], shuffle: tuple[int, ...]) -> None:
    table = [{"id": at, "x": texts[at]} for at in shuffle]
    blob = json.dumps(table).encode()
    assert json.loads(select(blob, "sort_by(@, &x)[].id")) == [0, 1, 2]
    assert json.loads(select(blob, "sort([].x)")) == texts
    assert json.loads(select(blob, "[max_by(@, &x).id, min_by(@, &x).id]")) == [2, 0]
    assert json.loads(select(blob, "[max([].x), min([].x)]")) == [texts[2], texts[0]]
    literal = texts[1].replace("'", r"\'")
    assert sorted(json.loads(select(blob, f"[?x >= '{literal}'].id"))) == [1, 2]


@pytest.mark.parametrize(
    "texts",
    [
        ["web-9", "web-10"],
        ["(9.50)", "(10.50)"],
        ["-$-9", "-$-10"],
        ["9 mm, 1 cm", "10 mm, 2 cm"],
        ["2026-02-10T00:20:00.123456789Z", "2026-02-10T00:20:00.123456788Z"],
        ["2026-02-30T00:20:00Z", "2026-02-10T00:20:00+01:00"],
        ["850M", "1.2B"],
        ["9 mm", "1 cm"],
        ["9 ms", "10:00"],
        ["9:5", "10:5"],
        ["9 kB", "1 MB", "1 m"],
        ["1.2.3K", "900B"],
        ["13/13/2026", "1/1/2026"],
        ["30/2/2026", "1/1/2026"],
        ["30/1/2026 5", "2/1/2026 5"],
        ["30/1/2026 5%", "2/1/2026 5%"],
        ["30/1/2026", "2/1/2026 or so, but this text has far more characters than such a date could ever have"],
        ["May", "Nov"],
        ["31 Feb 2026", "4 Mar 2026"],
        ["4 Mar 2026", "soon"],
        ["4 Mar 2026 4 Mar", "3 Mar 2026 3 Mar"],
        ["4 Mar 12345", "3 Mar 12345"],
        ["x" * 90 + "4 Mar 2026", "4 Mar 2026"],
        ["1.9-rc1", "1.10"],
        ["$9", "10 kg"],
        ["(9)", "(10)"],
    ],
)
def test_other_texts_have_the_order_of_their_letters(texts: list[str]) -> None:
    assert json.loads(select(json.dumps(texts).encode(), "sort(@)")) == sorted(texts)


@pytest.mark.parametrize("expression", ["sort(@)", "max(@)", "[?@ > '03/04/2026']"])
def test_dates_that_can_be_read_in_two_ways_have_no_order(expression: str) -> None:
    with pytest.raises(ToolError, match=r"day or the month.* SQL converts them: strptime\(KEY, '%d/%m/%Y'\)"):
        select(b'["03/04/2026", "04/01/2026"]', expression)


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ("[0]['price']", '"9.50"'),
        ('[0][ "price" ]', '"9.50"'),
        ("[?price == '[0][\"a\"]' || id == `1`] | [0]['id']", "1"),
    ],
)
def test_keys_in_brackets_are_read(expression: str, found: str) -> None:
    assert select(json.dumps(PRICES).encode(), expression) == found.encode()


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ("by.*.of.n", "[1,2]"),
        ("by.*.of.more.n | max(@)", "20"),
        ("max(by.*.of.n)", "2"),
        ("by.*.of.[n]", "[[1],[2]]"),
        ("by.*.of.more.{m: n}", '[{"m":10},{"m":20}]'),
        ("by.*.of.length(@)", "2"),
        ("[by.*.of.n][0]", "[1,2]"),
        ("by.*.of.more | [].n", "[10,20]"),
    ],
)
def test_keys_after_a_star_are_those_of_each_value(expression: str, found: str) -> None:
    value = {"by": {"a": {"of": {"n": 1, "more": {"n": 10}}}, "b": {"of": {"n": 2, "more": {"n": 20}}}}}
    assert select(json.dumps(value).encode(), expression) == found.encode()


@pytest.mark.parametrize("expression", ["sum([].id) / length(@)", "[0].id + `1`", "[?id % `2` == `0`]"])
def test_arithmetic_is_an_error_that_names_functions(expression: str) -> None:
    with pytest.raises(ToolError, match="JMESPath has no arithmetic, only functions of arrays such as sum"):
        select(json.dumps(PRICES).encode(), expression)


def test_a_wrong_expression_is_quoted_as_it_is() -> None:
    with pytest.raises(ToolError, match=re.escape("for expression: \"[0]['id'] in a")):
        select(b"[]", "[0]['id'] in a")
    with pytest.raises(ToolError, match="does not work"):
        select(b"[]", "[0]['id'] " + "'\\" * 50_000)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("nothing", 'null: the expression finds nothing. No object of the value has the key "nothing".'),
        ("rows[].price", '[]: the expression finds nothing. No object of the value has the key "price".'),
        ("sum(rows[].price)", '0: the expression finds nothing. No object of the value has the key "price".'),
        ("length(rows[?price > `1`])", '0: the expression finds nothing. No object of the value has the key "price".'),
        ('"a~1b"', 'null: the expression finds nothing. No object of the value has the key "a~1b".'),
    ],
)
def test_an_expression_that_finds_nothing_names_the_missing_key(expression: str, message: str) -> None:
    with pytest.raises(ToolError, match=f"{re.escape(message)}$"):
        select(ROWS, expression)


MATCHES = [{"line": number} for number in range(7)]


@pytest.mark.parametrize("expression", ["length(@)", "@ | length(@)", "$.length(@)"])
@pytest.mark.parametrize(
    ("value", "keys", "rows"),
    [
        ({"matches": MATCHES, "total": 7}, 2, "length(matches) is 7"),
        ({"tags": [{"a": 1}, {"a": 2}], "all matches": MATCHES, "n": 1, "m": 2}, 4, 'length("all matches") is 7'),
        ({"ok": True, "data": {"matches": MATCHES}}, 2, "length(data.matches) is 7"),
        ({"files": ["a", "b", "c"], "count": 3}, 2, "length(files) is 3"),
    ],
)
def test_the_length_of_an_object_with_rows_is_not_their_number(
    value: object, keys: int, rows: str, expression: str
) -> None:
    with pytest.raises(ToolError, match=f"^{re.escape(f'length(@) is {keys}, the number of keys: {rows}.')}$"):
        select(json.dumps(value).encode(), expression)


@pytest.mark.parametrize(
    ("value", "expression", "found"),
    [
        ({"a": 1, "b": 2}, "length(@)", "2"),
        ({"rows": [{"a": 1}], "b": 2}, "length(@)", "2"),
        ({"box": [1, 2, 3], "a": 1, "b": 2}, "length(@)", "3"),
        ({"rows": MATCHES}, "keys(@) | length(@)", "1"),
        ({"rows": MATCHES}, "length(rows)", "7"),
        ({"rows": MATCHES}, "rows[0] | length(@)", "1"),
        ({"rows": MATCHES}, "length(keys(@))", "1"),
        ({"k" * 300: MATCHES}, "length(@)", "1"),
        ({"ok": 1, "k": {"k" * 300: MATCHES}}, "length(@)", "2"),
        (MATCHES, "length(@)", "7"),
        ("words", "length(@)", "5"),
    ],
)
def test_other_lengths_are_answered(value: object, expression: str, found: str) -> None:
    assert select(json.dumps(value).encode(), expression) == found.encode()


@pytest.mark.parametrize(
    ("value", "expression", "message"),
    [
        (MATCHES * 50, "keys(@)", "keys() takes object, not array. Take one item first: [0] | keys(@)."),
        ({"m": MATCHES * 50}, "values(m)", "values() takes object, not array. Take one item first: [0] | values(@)."),
        ({"a": "x" * 900}, "sum(@)", "sum() takes array-number, not object. Correct it, see jmespath.org."),
        ("x" * 900, "abs(@)", f'abs() takes number, not string: "{"x" * 77}...". Correct it, see jmespath.org.'),
        ([1.5], "[0] | reverse(@)", "reverse() takes array or string, not number: 1.5. Correct it, see jmespath.org."),
        (
            ["1.5", "2"],
            "sum(@)",
            'sum() takes array-number, not string: "1.5". Convert numbers in texts: [].to_number(KEY).',
        ),
        ({"a": 1}, "length(&a)", "length() takes string or array or object, not expref. Correct it, see jmespath.org."),
        ([True], "sum(@)", "sum() takes array-number, not boolean: true. Correct it, see jmespath.org."),
    ],
)
def test_a_function_of_another_type_names_both_types(value: object, expression: str, message: str) -> None:
    with pytest.raises(ToolError, match=f"^{re.escape(f'`expression` does not work: {message}')}$"):
        select(json.dumps(value).encode(), expression)


WRAPPED = {"data": {"all orders": {"edges": [{"node": {"id": 1}}], "none": None}}, "ok": True}
DAYS = {f"2025-01-0{day}": {"open": day, "close": 9} for day in range(1, 9)}
BY_DAY = {"prices": {"daily": DAYS, "more": {"rows": [{"a": 1}]}}}
EACH = "[0] selects from each item before it, and no item is an array: write | [0] for all items."
LEVELS = {"rows": [{"id": 1, "level": "high"}, {"id": 2, "level": "low"}], "counts": {"high": 1, "low": 1, "mid": 0}}
ADA = {"name": "Ada", "age": 36}
BY_NAME = {"ada": {"age": 36}, "bo": {"age": 4}}


@pytest.mark.parametrize(
    ("value", "expression", "advice"),
    [
        (WRAPPED, "edges[0].node.id", 'The key "edges" is within other values: begin with data."all orders".edges.'),
        (WRAPPED, "node.id", 'begin with data."all orders".edges[].node.'),
        (
            WRAPPED,
            "length(edges)",
            'length() gets null. The key "edges" is within other values: begin with data."all orders".edges.',
        ),
        ({"total": 2, "items": [{"carrier": "GLS"}]}, "items[].carier", 'key "carier". Similar keys: "carrier".'),
        ({"total": 2, "items": [{"carrier": "GLS"}]}, "item[].carrier", 'key "item". Similar keys: "items".'),
        ({"items": [1, 2]}, "items | length", "It is a function: write | length(@) in place of the key."),
        ({"items": [1, 2]}, "items.length", "It is a function: write | length(@) in place of the key."),
        (WRAPPED, "sort_by(edges, &xyz)", 'sort_by() gets null. No object of the value has the key "xyz".'),
        (
            WRAPPED,
            "[?id == `1`]",
            'The value is an object, not an array: begin with data."all orders".edges.',
        ),
        (WRAPPED["data"], "[0]", 'begin with "all orders".edges.'),
        ({"ok": True, "data": {"rows": [{"id": 1}], "count": 1}}, "length([?id])", "begin with data.rows."),
        ({"ok": True, "data": {"ids": [1, 2]}}, "[0]", "begin with values(@)."),
        ({"none": [], "data": {"rows": [{"id": 1}]}}, "[].id", "begin with data.rows."),
        ({"ok": True, "data": {"id": 1}}, "ok && id", "is within other values: begin with data.id."),
        ({"a": {"rows": [{"b": 1}]}, "b": {"rows": [{"b": 1}]}}, "[].b", "begin with values(@)."),
        ({"a": {"r" * 81: [{"b": 1}]}}, "[].b", "begin with values(@)."),
        ({"a" * 70: {"b" * 70: {"c" * 70: [{"b": 1}]}}}, "[].b", "begin with values(@)."),
        ({"total": 1, "all rows": [{"a": 1}]}, "[].a", 'begin with "all rows".'),
        (BY_NAME, "[?age > `5`]", "begin with values(@)."),
        (BY_DAY, "open", "begin with prices.daily.*.open."),
        (BY_DAY, "prices.open", "begin with prices.daily.*.open."),
        (
            BY_DAY,
            "prices.daily[?open > `9`]",
            "prices.daily is an object, not an array: begin with values(prices.daily).",
        ),
        (BY_DAY, "length(prices.daily[].open)", "begin with values(prices.daily)."),
        (BY_DAY, "length(prices.daily.*[?open > `3`])", EACH.replace("[0]", "[?...]")),
        (BY_DAY, "prices.daily.*[0].open", EACH),
        (BY_DAY, "prices.daily.*[?open > `3`][0].open | [0]", EACH.replace("[0]", "[?...]")),
        (BY_NAME, "*[*].age", EACH.replace("[0]", "[...]")),
        ([ADA], "[?name == 'Ada'][0].age", EACH),
        ([ADA], "[].name[0]", EACH),
        (WRAPPED, 'data."all orders".edges[*].node.id[0]', EACH),
        (LEVELS, 'rows[?level == "high"].id', '"high" is a text of "level", not only a key: write \'high\'.'),
        (LEVELS, "length(rows[?level == high])", "write 'high'."),
        ([{"stra\u00dfe": "l'\u00fc", "l'\u00fc": 1}], '[?"stra\u00dfe" == "l\'\u00fc"]', "write 'l\\'\u00fc'."),
        ({"rows": [ADA, ADA]}, "rows[*][-1]", EACH.replace("[0]", "[-1]")),
        ({"rows": [ADA, ADA]}, "length(rows[][?age > `5`])", EACH.replace("[0]", "[?...]")),
        ({"rows": [{"of": [ADA]}, {"of": [ADA]}]}, "rows[].of[][0].age", EACH),
        ({"rows": [{"of": [ADA]}, {"of": [ADA]}]}, "rows[].of[?age > `5`].name[0]", "for those of each array."),
        (
            {"by": {"a": {"of": [ADA]}, "b": {"of": []}}},
            "by.*.of[?age > `5`]",
            "The items before [?...] are arrays: write [] | [?...] in its place.",
        ),
        (BY_DAY, "prices.more[0]", "prices.more is an object, not an array: begin with prices.more.rows."),
        (
            BY_DAY,
            "prices.more.rows.a",
            (
                "prices.more.rows is an array: begin with prices.more.rows[] for all of its items, as in "
                "prices.more.rows[].a."
            ),
        ),
        (WRAPPED, "@.data.none", 'The key "none" is within other values: begin with data."all orders".none.'),
        (WRAPPED, "data.edges[0].node", 'begin with data."all orders".edges.'),
        ([{"a": 1}], "a", "The value is an array: begin with [] for all of its items, as in [].a."),
        ([{"a b": 1}], '"a b" | [0]', 'as in []."a b".'),
        ({"out": '{"a": "rows"}'}, "out.rows", 'No object of the value has the key "rows".'),
        (
            {"columns": [{"name": "day"}, {"name": "shop"}], "rows": [[1, "A"], [2, "B"]]},
            "rows[?shop == 'C']",
            'No object of the value has the key "shop". The rows are arrays: the cells of this column are rows[*][1].',
        ),
        ({"names": ["n", "m"], "the rows": [[1, 2]]}, "[].n", 'the cells of this column are "the rows"[*][0].'),
        ({"columns": ["n", "m"], "rows": [[1, 2]]}, "rows[].x", 'No object of the value has the key "x".'),
        ({"note": "no id", "one": {"id": 1}}, "id", "is within other values: begin with one.id."),
        ({"/src/a": {"b": 1}}, '"~1src~1a".b', 'It is escaped as in a path: write "/src/a".'),
        (
            {"ok": 1, "out": {"a/b": '{"rows": [1]}'}},
            "out.rows[0]",
            'The text at "/out/a~1b" contains JSON with this key: add "/out/a~1b" to `memory_path`.',
        ),
        ({"out": "[1, 2]"}, "out[0]", 'The text at "/out" contains JSON: add "/out" to `memory_path`.'),
        ({"data": {"a/b": "[]"}}, 'length(data."a/b"[])', 'contains JSON: add "/data/a~1b" to `memory_path`.'),
        (
            {"out": '[{"id": 1}]', "id": 2},
            "out[?id == `1`].id",
            'The text at "/out" contains JSON: add "/out" to `memory_path`.',
        ),
        ({"title": "Ada"}, "title[0]", 'The value at "/title" is text, not an array.'),
    ],
)
def test_an_expression_that_finds_nothing_gets_the_place_of_its_key(value: Any, expression: str, advice: str) -> None:
    with pytest.raises(ToolError, match=f"{re.escape(advice)}$"):
        select(json.dumps(value).encode(), expression)


def test_an_error_has_only_the_beginning_of_a_very_long_key() -> None:
    with pytest.raises(ToolError, match=r"the cells of this column are .*k{70}.*\[\*\]\[0\]\.$") as caught:
        select(json.dumps({"k" * 50_000: [[1]], "names": ["n"]}).encode(), "[].n")
    assert len(str(caught.value)) < 300


def test_a_text_at_a_very_long_place_is_not_explained() -> None:
    assert select(json.dumps({"k" * 300: "text"}).encode(), f"{'k' * 300}[0]") == b"null"


def test_items_that_a_function_does_not_accept_are_not_explained() -> None:
    parsed = jmespath.compile("[?length(k) > `5`][0].k").parsed
    assert explain_nothing(parsed, b'[{"k": null}]', [{"k": None}]) is None


@pytest.mark.timeout(20)
def test_rows_are_not_searched_at_the_end_of_a_deep_object() -> None:
    value: dict[str, Any] = {"rows": [{"id": 1}]}
    for _ in range(200_000):  # from Python 3.14 on, the parser reads tens of thousands of levels
        value = {"a": value}
    reason = explain_nothing(jmespath.compile("[?id]").parsed, b'{"id":1}', value)
    assert reason == "The value is an object, not an array: begin with values(@)."


TYPED = [{"id": 7, "big": "9007199254740993", "price": "1.10", "on": "True", "off": False, "end": "null", "n": None}]


@pytest.mark.parametrize(
    ("expression", "advice"),
    [
        ("[?id == '7']", "[]: the expression finds nothing. The value is a number there, not text: write `7`."),
        ("length([?'7' == id])", "0: the expression finds nothing. The value is a number there, not text: write `7`."),
        ("[?big == `9007199254740993`] | [0].id", "text there, not a number: write '9007199254740993'."),
        ("sum([?price == `1.1`].price)", "text there, not a number: write '1.10'."),
        ("[?on == `true`]", "text there, not a boolean: write 'True'."),
        ("[?off == 'False' && id == '7'].id", "a boolean there, not text: write `false`."),
        ("[?end == null]", "The value is text there, not null: write 'null'."),
        ("[?id > `6` && id == '7']", "a number there, not text: write `7`."),
        ("[?n == 'null']", "null there, not text: write `null`."),
        ("[?big == '9007199254740993' && id == '7']", "a number there, not text: write `7`."),
        ("[?big == id || id == to_string(id)]", "It compares a text with a number: convert one of them"),
    ],
)
def test_a_comparison_with_another_type_names_the_right_one(expression: str, advice: str) -> None:
    with pytest.raises(ToolError, match=re.escape(advice)):
        select(json.dumps(TYPED).encode(), expression)


@pytest.mark.parametrize(
    "expression",
    ["[?id == '8']", "[?big == `9007199254740992`]", "[?id == '7' && on == 'x']", "[?n == `true`]", "[?id == `[7]`]"],
)
def test_a_comparison_with_another_value_finds_nothing(expression: str) -> None:
    assert select(json.dumps(TYPED).encode(), expression) == b"[]"


def test_nested_comparisons_that_find_nothing_take_linear_time() -> None:
    began = time.process_time()
    assert select(b'[{"a": 1}]', f"[?{'(' * 30}a{') == `0`' * 30}]") == b"[]"
    assert time.process_time() - began < 2


def test_a_comparison_with_a_very_long_number_finds_nothing() -> None:
    assert select(b'[{"a": ' + b"9" * 4000 + b"}]", "[?a == '" + "9" * 39 + "']") == b"[]"


@pytest.mark.parametrize(
    ("value", "expression", "found"),
    [
        (WRAPPED, 'data."all orders".none', "null"),
        (WRAPPED, "data.*.edges[] | [?node.id == `2`]", "[]"),
        (WRAPPED, "[data][1]", "null"),
        ({"a": {}, "z": {"b": 1}}, "a.b", "null"),
        ({"a": {"b": 1}, "c": 2}, "a.b.c", "null"),
        (BY_DAY, "prices.daily.*.open | [99]", "null"),
        (WRAPPED, '@.data."all orders".none', "null"),
        ([], "a", "null"),
        ({"rows": [{"a": 1}] * 3 + [{"b": 1}]}, "b", "null"),  # not in the first row
        ({"x" * 300: {"b": 1}}, "b", "null"),
        ([1], "[?@ > `1`]", "[]"),
        (LEVELS, "rows[?level == mid]", "[]"),
        (LEVELS, "rows[?level == 'mid']", "[]"),
    ],
)
def test_an_expression_may_find_nothing(value: Any, expression: str, found: str) -> None:
    assert select(json.dumps(value).encode(), expression) == found.encode()


@pytest.mark.parametrize("name", ['"\\ud800"', "k" * 50_000])
def test_a_missing_key_with_an_odd_name_is_an_error_of_one_line(name: str) -> None:
    for expression in (f"rows[?k == {name}]", f"rows[].{name}"):
        with pytest.raises(ToolError) as caught:
            select(ROWS, expression)
        assert len(str(caught.value).encode()) < 400


def test_nothing_is_found_in_an_empty_value() -> None:
    assert select(b"[]", "[].name") == b"[]"


def test_a_compared_key_is_found_in_any_notation() -> None:
    assert select(b'[{"k": 1, "\\u00e9" : 1}]', '[?k == "\u00e9"].k') == b"[1]"
    assert select('[{"k": 1, "\u00e9": 1}]'.encode(), '[?k == "\u00e9"].k') == b"[1]"


def test_numbers_in_any_notation_keep_their_digits() -> None:
    numbers = b"[-0,0,-0.0,1.50,0.1,1e5,1E+2,1e+16,0.00001,100000000000000000000.0,12345678901234567890,-1.5]"
    assert select(numbers, "[]") == numbers
    assert select(b'["-0x",-1]', "[1]") == b"-1"


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        *(("$", '{"a":[1]}'), ("$.a", "[1]"), ("$.a[0]", "1"), (".a[0]", "1"), (".", '{"a":[1]}'), (" $.*", "[[1]]")),
        *(('$."a"', "[1]"), ("$.a | [0]", "1")),
        *(("$['a']", None), ('.["a"]', None), ("$..a", None), ("a.$", None), ("..a", None)),
    ],
)
def test_the_root_of_jsonpath_and_jq_is_the_value(expression: str, found: str | None) -> None:
    if found is None:
        with pytest.raises(ToolError, match="does not work"):
            select(b'{"a":[1]}', expression)
    else:
        assert select(b'{"a":[1]}', expression) == found.encode()
    assert select(b'[{"id":1}]', "$[?id == `1`].id") == b"[1]"


def test_an_integer_of_any_length_keeps_its_digits() -> None:
    assert select(b"[" + b"9" * 4000 + b"]", "[0]") == b"9" * 4000


@pytest.mark.parametrize(
    ("blob", "expression", "expected"),
    [
        (ROWS, "rows[", "`expression` does not work"),
        (ROWS, "", "`expression` does not work"),
        (ROWS, "len(rows)", r"Unknown function: len\(\)\. Use abs, avg, ceil, .*, length, map, .* or values\."),
        (ROWS, "sort_by(rows, &nothing)", "does not work"),
        (ROWS, "[&a]", "is not a JSON value"),
        (
            b'[{"a": 1}, {"a": null}]',
            "sort_by(@, &a)[0]",
            r"Select the items that have a value first: \[\?KEY != null\]",
        ),
        (
            b'[{"a": "x"}, {"a": null}]',
            "[?contains(a, 'x')]",
            r"Select the items that have a value first: \[\?KEY != null",
        ),
        (
            b'[{"a": null}, {"b": 1}]',
            "[?starts_with(a, 'x')]",
            r"not null\. Select the items that have a value",
        ),
        (b'[{"a": "x"}, {"a": null}]', "[?length(a) > `3`]", "Select the items that have a value first"),
        (b'[{"a": 1}, {"a": "x"}]', "max_by(@, &a)", "compares values of different types"),
        (b'[{"a": 1}, {"a": "x"}]', "sort_by(@, &a)", "Correct it, see"),
        (b'"\\ud800"', "@", "cannot process a number"),
    ],
)
def test_a_failed_expression_names_the_reason(blob: bytes, expression: str, expected: str) -> None:
    with pytest.raises(ToolError, match=expected):
        select(blob, expression)


@pytest.mark.parametrize(
    ("blob", "expected"),
    [
        (b'"[1, 2.50]"', b"[1, 2.50]"),
        (b'" {\\"a\\": 1e400}\\n"', b'{"a": 1e400}'),
        (b'"\\ufeff[1, 2.50]"', b"[1, 2.50]"),
        (b'"\\ufeff{\\"a\\": 1}\\n{\\"a\\": 2}"', None),
        (b'"7"', None),
        (b'"[1, 2"', None),
        (b'"' + b"[" * 5000 + b'"', None),
        (b"[1]", None),
        (
            b'"Query executed.\\nReturned 2 rows:\\n\\n[\\n  {\\"a\\": 1},\\n  {\\"a\\": 2}\\n]\\n"',
            b'[\n  {"a": 1},\n  {"a": 2}\n]',
        ),
        (b'"[INFO] found:\\n {\\"a\\": []}"', b'{"a": []}'),
        (b'"{\\"a\\": 1}\\n{\\"a\\": 2}\\n"', None),
        (b'"head\\n{\\"a\\": 1}\\n{\\"a\\": 2}"', None),
        (b'"Rows: [1, 2]"', None),
        (b'"[1]\\n[2]\\nthe end"', None),
        (b'"head\\n[1]\\nthe end"', None),
        (b'"' + b"word " * 1000 + b'\\n[1]"', None),
        (b'"\\ud800\\n[\\"\\ud800\\"]"', None),
        (b"\"[{'id': 1, 'name': None}]\"", b'[{"id": 1, "name": null}]'),
        (b"\"Rows:\\n[('a', 1.50)]\\n\"", b'[["a", 1.50]]'),
        (b"\"['a'] and more\"", None),
        (b'"Returned:\\n```json\\n[{\\"id\\": 1.50}, {\\"id\\": 2}]\\n```\\n"', b'[{"id": 1.50}, {"id": 2}]'),
        (b'"## Result\\n[\\n  {\\n  },\\n  {\\n  }\\n]\\n## Code\\n"', b"[\n  {\n  },\n  {\n  }\n]"),
        (b'"Rows\\r\\n {\\r\\n  \\"a\\": []\\r\\n }\\r\\nend"', b'{\r\n  "a": []\r\n }'),
        (b"\"[{'id': 1, 'name': 'a'}]\\n\\n1 row\"", b'[{"id": 1, "name": "a"}]'),
        (b'"[1, 2, 3, 4, 5]\\nand\\n[6]"', None),
        (b'"[\\n1\\n]\\nmore words follow\\n"', None),
        (b'"[\\n1,\\n]\\nend"', None),
        (
            json.dumps(json.dumps('[{"a": "\u00fc \\\\ \\" x", "b": 1.50}]')).encode(),
            b'[{"a": "\xc3\xbc \\\\ \\" x", "b": 1.50}]',
        ),
        (
            json.dumps("Result:\n" + json.dumps('{"a": 1e400, "b": 2}') + "\n\nOutput:\n").encode(),
            b'{"a": 1e400, "b": 2}',
        ),
        (
            json.dumps("Returned\n```json\n  " + json.dumps("[1, 2, 3, 4, 5, 6]") + "\n```").encode(),
            b"[1, 2, 3, 4, 5, 6]",
        ),
        (json.dumps(json.dumps("[1, 2")).encode(), None),
        (json.dumps('"[1]","b"\n"[2]","x"').encode(), None),
        (json.dumps('"[1]\n').encode(), None),
        (b'"\\"[\\ud800]\\""', None),
    ],
)
def test_json_in_text_is_an_object_or_an_array(blob: bytes, expected: bytes | None) -> None:
    assert find_embedded_json(blob) == expected


@pytest.mark.parametrize(
    ("text", "is_quoted"),
    [
        (json.dumps("id,n\n1,a\n"), True),
        (json.dumps("id,n\n1,a\n") + "\n", True),
        (json.dumps("One line."), False),
        ('"id","n"\n"1","a\\n"', False),
        ('"id\n"', False),
        ('"id\\n', False),
        ("id\n", False),
    ],
)
def test_a_text_of_several_lines_in_a_json_string_is_found(text: str, *, is_quoted: bool) -> None:
    assert find_quoted_text(msgspec.json.encode(text)) == (text.strip().encode() if is_quoted else None)


def test_a_text_in_half_of_a_surrogate_pair_is_not_a_json_string() -> None:
    assert find_quoted_text(b'"\\"\\ud800\\\\n\\""') is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": 1.50}\n{"a": NaN}\r\n\n{"a": "\u2028"}\n', b'[{"a": 1.50},{"a": null},{"a": "\xe2\x80\xa8"}]'),
        ("[1]\n[2]", b"[[1],[2]]"),
        ('{\n  "a": [\n    {}\n  ]\n}\n{\n  "a": 2.0\n}\n', b'[{\n  "a": [\n    {}\n  ]\n},{\n  "a": 2.0\n}]'),
        ("{'a': None}\n\n{'a': 'b'}\n", b'[{"a": null},{"a": "b"}]'),
        ("[(1, 'a')]\n['b', 2]", b'[[[1, "a"]],["b", 2]]'),
        ("{'a': 1}\n{'a': 2}\nend", None),
        ("{'a': 1}\n{'a': {2, 3}}", None),
        ('{"a": 1}\n{"a": 2}\nend', None),
        ('{"a": 1}\n{"a": 2} {"a": 3}', None),
        ('{"a": 1}\n{"a": 2}\n5', None),
        ('head\n{"a": 1}\n{"a": 2}', None),
        ('Query\nRows:\n{"a": 1}\n{"a": 2}', b'[{"a": 1},{"a": 2}]'),
        ("2 rows\n\n{'a': 1}\n{'a': 2}\n", b'[{"a": 1},{"a": 2}]'),
        ('```jsonl\n{"a": 1}\n{"a": 2}\n```\n', b'[{"a": 1},{"a": 2}]'),
        ('{"a": 1}\n{"a": 2}\n\n(2 rows)\n', b'[{"a": 1},{"a": 2}]'),
        ('{"a": 1}\n{"a": 2}\n\n{"a": ', None),
        ('Rows:\n{"a": 1}\n[INFO] got\n{"a": 2}', None),
        ('[{"a": 1}\n{"b": 2}]', None),
        ('{"a": 1}', b'{"a": 1}'),
    ],
)
def test_several_objects_are_the_array_of_their_values(text: str, expected: bytes | None) -> None:
    assert find_embedded_json(msgspec.json.encode(text), include_lines=True) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (' \n{"a": 1e400}\t', b'{"a": 1e400}'),
        ("[1, 2.50]", b"[1, 2.50]"),
        ("[1, 2", None),
        ('["\ud800"]', None),
        ("[" * 5000, None),
        ("7", None),
        ("words", None),
        ("", None),
    ],
)
def test_a_whole_text_is_read_as_json_only_if_it_is_a_container(text: str, expected: bytes | None) -> None:
    assert read_json_container(text) == expected


@pytest.mark.parametrize(
    ("value", "kind"),
    [("@@ -1,2 +1,2 @@\n-a\n+b\n c\n", "text (diff)"), ("plain words", "text")],
)
def test_an_expression_on_text_returns_the_format_of_the_text(value: str, kind: str) -> None:
    shown = explain_text(json.dumps(value).encode(), "Read it.", "Use SQL.")
    assert shown == (f"The value is {kind}, not JSON: JMESPath has no keys or items to select. Read it.", False)


def test_only_text_is_explained_as_text() -> None:
    assert explain_text(b'{"a": 1}', "", "") == ("", False)
    assert explain_text(b'["a,b", "1,2"]', "", "") == ("", False)


@pytest.mark.parametrize(
    ("value", "expression", "found"),
    [
        ({"a": [1, 2]}, "a[1]", b"2"),
        ('{"a": [1, 2]}', "a[1]", b"2"),
        ('{"a": 1}\n{"a": 2}\n', "[].a", b"[1,2]"),
        ({"type": "resource", "resource": {"uri": "a:b", "text": '{"a": 1}'}}, "a", b"1"),
        ("spec:\n  ports: [80, 443]\n", "spec.ports[1]", b"443"),
        ("plain words", "length(@)", b"11"),
    ],
)
def test_a_query_reads_json_in_texts(value: object, expression: str, found: bytes) -> None:
    assert Select(expression, 100, "Read it.", "Use SQL.")(json.dumps(value).encode(), never) == found


@pytest.mark.parametrize(
    ("value", "expression", "message"),
    [
        ("a,b\n1,2\n3,4\n", "length(@)", r"The value is text \(CSV, 2 columns\), not JSON: .* Use SQL\."),
        ("plain words", "[0]", r"null: the expression finds nothing\. The value is text, not JSON: .* Read it\."),
        ("plain words", "sum(@)", r"`expression` does not work: .* The value is text, not JSON: .* Read it\."),
        ({"a": 1}, "sum(@)", r"^`expression` does not work: (?:(?!not JSON: ).)*$"),
        ("x" * 200, "@", r"The result has 202 B, more than the limit of 100 B .* Select less\."),
    ],
)
def test_a_query_that_cannot_be_answered_says_why(value: object, expression: str, message: str) -> None:
    with pytest.raises(ToolError, match=message):
        Select(expression, 100, "Read it.", "Use SQL.")(json.dumps(value).encode(), never)


@pytest.mark.parametrize("expression", ["group_by(@, &a)", "[].a | unique(@)", "count(@)", "@.groupBy(a)", "sum_by(a)"])
def test_a_function_that_groups_is_refused_with_what_groups(expression: str) -> None:
    with pytest.raises(ToolError, match=r"`expression` does not work: .* Use SQL\.$"):
        Select(expression, 100, "", "", "Use SQL.")(b'[{"a": 1}]', never)
    with pytest.raises(ToolError, match=r"`expression` does not work: (?:(?!SQL).)*$"):
        Select(expression, 100, "", "")(b'[{"a": 1}]', never)
    with pytest.raises(ToolError, match=r"`expression` does not work: (?:(?!SQL).)*$"):
        Select("nope(@)", 100, "", "", "Use SQL.")(b'[{"a": 1}]', never)


@pytest.mark.parametrize(
    ("value", "is_broken"),
    [
        (' [{"a": 1},', True),
        ('{ "a": [', True),
        ("[INFO] started", False),
        ("{a: 1}", False),
        ("", False),
        ({"a": 1}, False),
        ([{"a": 1}], False),
    ],
)
def test_a_text_that_begins_as_json_is_explained(value: object, *, is_broken: bool) -> None:
    explained = explain_text(json.dumps(value).encode(), "Read it.", "Use SQL.")
    expected = "The value is text that begins as JSON and is not valid JSON; it may be cut. Read it."
    assert (explained == (expected, True)) == explained[1] == is_broken


def test_the_outline_of_an_embedded_file_is_that_of_its_text() -> None:
    block = {"type": "resource", "resource": {"uri": "a:b", "text": "one\ntwo"}}
    assert (
        Shape(Budget(1000, 1000, estimate_tokens))(json.dumps(block).encode(), never)
        == 'text, 7 characters, 2 lines, begins "one"'
    )


def test_rows_in_a_text_are_explained_with_the_advice() -> None:
    assert explain_text(json.dumps("a,b\n" + "1,2\n" * 4000).encode(), "Read it.", "Use SQL.") == (
        "The value is text (CSV, 2 columns), not JSON: JMESPath has no keys or items to select. Use SQL.",
        True,
    )
    shown, is_mistake = explain_text(json.dumps('{"a":1,"b":2}\n' * 9).encode(), "Read it.", "Use SQL.")
    assert is_mistake
    assert shown == (
        "The value is text (JSON lines, with a line that is not JSON), not JSON: JMESPath has no keys or items to "
        "select. Use SQL."
    )


def test_why_a_path_of_many_keys_finds_nothing_is_found_in_linear_time() -> None:
    def select_keys(count: int) -> bytes:
        return select(b'{"a":{"a":1}}', ".".join(["a"] * count))

    assert select_keys(4000) == b"null"
    assert least_seconds(lambda: select_keys(4000)) < 10 * least_seconds(lambda: select_keys(1000))
