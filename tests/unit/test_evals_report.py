"""The matrix of runs, the keys of runs, and the table."""

import json
from dataclasses import replace
from typing import Any

import pytest

from mcp_mirror.errors import ConfigError
from mcp_mirror.evals.cases import Case, Turn
from mcp_mirror.evals.matrix import Matrix, Model, check_style, merge
from mcp_mirror.evals.report import as_json, as_markdown, as_table, rows_of, skipped_rows, wilson

PLAIN = Case(title="P", servers={"mirror": {"suffix": "_m"}}, name="plain", prompt="P", digest="1")
WITH_EXAMPLE = PLAIN.model_copy(update={"name": "example", "digest": "2", "few_shot": (Turn(user="Go."),)})
BOUND = PLAIN.model_copy(update={"name": "bound", "digest": "3", "gateway": "required"})
MODEL = Model("one", "http://a/v1")


def test_settings_combine_everything_except_impossible_combinations() -> None:
    matrix = Matrix(
        cases=(PLAIN, WITH_EXAMPLE, BOUND),
        models=(MODEL,),
        styles=("compact", "json"),
        variants={"-": {}, "terse": {"server": {"instructions": "Be terse."}}},
        few_shot=(False, True),
        gateway=(True, False),
        repeats=2,
    )
    settings = list(matrix.settings())
    found = [(one.case.name, one.style, one.variant, one.few_shot, one.gateway) for one in settings if one.repeat == 0]
    with_gateway = [
        (case, style, variant, few, True)
        for style in ("compact", "json")
        for variant in ("-", "terse")
        for case, few in (("plain", False), ("example", False), ("bound", False), ("example", True))
    ]
    assert found == [
        *with_gateway,
        *[(case, "-", "-", few, False) for case, few in (("plain", False), ("example", False), ("example", True))],
    ]
    assert [one.seed for one in settings] == sorted(one.seed for one in settings)
    assert len({one.key for one in settings}) == len(settings) == 38


SEEN = PLAIN.model_copy(update={"name": "seen", "digest": "4", "requires": ("vision",)})


def test_cases_that_a_model_cannot_do_are_skipped_and_listed() -> None:
    seeing = Model("two", "http://b/v1", vision=True)
    matrix = Matrix((PLAIN, SEEN), (MODEL, seeing))
    assert [(one.model.name, one.case.name) for one in matrix.settings()] == [
        ("one", "plain"),
        ("two", "plain"),
        ("two", "seen"),
    ]
    rows = skipped_rows(matrix)
    assert [(row.labels["model"], row.labels["case"], row.requires) for row in rows] == [("one", "seen", "vision")]
    table = as_markdown([*rows_of([record()], "case"), *rows])
    assert "| seen | one | skipped, requires vision |  |" in table
    assert "gateway" not in table
    assert json.loads(as_json(rows))[0]["requires"] == "vision"


def test_a_configuration_combines_case_style_and_variant() -> None:
    matrix = Matrix((PLAIN,), (MODEL,), ("json",), {"v": {"mirror": {"suffix": ""}}}, gateway=(True, False))
    ours, direct = matrix.settings()
    assert ours.config == {"store": {"kind": "memory"}, "mirror": {"suffix": "", "notice": "json"}}
    assert direct.config == {"store": {"kind": "memory"}, "mirror": {"suffix": "_m"}}


@pytest.mark.parametrize(
    "change",
    [
        {"case": PLAIN.model_copy(update={"digest": "9"})},
        {"model": replace(MODEL, temperature=0.1)},
        {"model": replace(MODEL, extra={"top_k": 1})},
        {"model": replace(MODEL, harness="another")},
        {"model": replace(MODEL, vision=True)},
        {"model": replace(MODEL, name="of eight bits", base_url="http://b/v1")},
        {"style": "json"},
        {"changes": {"server": {"name": "a"}}},
        {"few_shot": True},
        {"gateway": False},
        {"repeat": 1},
        {"seed": 2},
    ],
)
def test_the_key_depends_on_everything_that_influences_a_run(change: dict[str, Any]) -> None:
    (setting,) = Matrix((PLAIN,), (MODEL,)).settings()
    assert replace(setting, **change).key != setting.key
    assert replace(setting, model=replace(MODEL, base_url="http://b/v1", timeout=1)).key == setting.key


def test_the_error_for_an_unknown_style_lists_the_styles() -> None:
    assert check_style("paper") == "paper"
    with pytest.raises(ConfigError, match=r"unknown style 'loud'\. The styles are compact, paper, json"):
        check_style("loud")


def test_mappings_are_merged_and_other_values_replaced() -> None:
    assert merge({"a": {"b": 1, "c": [1]}, "d": 1}, {"a": {"c": [2]}, "d": {"e": 1}}) == {
        "a": {"b": 1, "c": [2]},
        "d": {"e": 1},
    }


@pytest.mark.parametrize(
    ("good", "runs", "low", "high"), [(0, 0, 0, 1), (0, 10, 0, 0.2775), (20, 20, 0.8389, 1), (15, 20, 0.5313, 0.8881)]
)
def test_the_interval_is_that_of_wilson(good: int, runs: int, low: float, high: float) -> None:
    assert wilson(good, runs) == pytest.approx((low, high), abs=5e-4)


def record(**keys: Any) -> dict[str, Any]:
    return {
        "key": "k", "case": "a", "model": "m", "notice": "compact", "variant": "-", "few_shot": False, "gateway": True,
        "end": "answered", "success": True, "exact": True, "received": None, "prompt_tokens": 1000,
        "cached_tokens": 400, "completion_tokens": 234, "steps": 3,
        "estimated_tokens": {"conversation": 99}, "seconds": 1.5, "calls": 2,
        "failed_calls": 0, **keys,
    }  # fmt: skip


RECORDS = [
    record(),
    record(success=False, exact=False, seconds=2.5),
    record(case="b", exact=None, received=True),
    record(case="b", end="error", success=False, exact=None, estimated_tokens={}),
    record(notice="json", gateway=False, end="error", success=False, exact=None),
]


def test_void_runs_in_every_row_are_shown() -> None:
    failed = record(end="error", success=False, exact=None, estimated_tokens={})
    assert "| void |" in as_markdown(rows_of([failed], "case"))


def test_runs_are_grouped_and_void_runs_are_not_counted() -> None:
    rows = rows_of(RECORDS, "both")
    found = [
        (row.labels["case"], row.labels["notice"], row.success, row.runs, row.void, row.exact, row.received)
        for row in rows
    ]
    assert found == [
        ("a", "compact", 1, 2, 0, (1, 2), (0, 0)),
        ("b", "compact", 1, 1, 1, (0, 0), (1, 1)),
        ("a", "json", 0, 0, 1, (0, 0), (0, 0)),
        ("all", "compact", 2, 3, 1, (1, 2), (1, 1)),
        ("all", "json", 0, 0, 1, (0, 0), (0, 0)),
    ]
    assert rows[0].means == {
        "tokens": 1234,
        "billed": 600 + 0.1 * 400 + 5 * 234,
        "conversation": 99,
        "seconds": 2.0,
        "steps": 3,
        "calls": 2,
        "failed_calls": 0,
    }
    assert [row.labels["case"] for row in rows_of(RECORDS, "setting")] == ["all", "all"]
    assert [row.labels["case"] for row in rows_of(RECORDS, "case")] == ["a", "b", "a"]


def test_the_table_leaves_out_columns_with_one_value() -> None:
    rows = rows_of(RECORDS[:3], "case")
    assert as_markdown(rows).splitlines() == [
        (
            "| case | success | 95 % | copied exactly | received | tokens | billed | conversation | seconds | steps "
            "| calls | failed |"
        ),
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        "| a | 1/2 | 9% to 91% | 1/2 | - | 1,234 | 1,810 | 99 | 2.0 | 3.0 | 2.0 | 0.0 |",
        "| b | 1/1 | 21% to 100% | - | 1/1 | 1,234 | 1,810 | 99 | 1.5 | 3.0 | 2.0 | 0.0 |",
    ]
    table = as_table(rows_of(RECORDS, "both"))
    assert [column.header for column in table.columns][:4] == ["case", "notice", "gateway", "success"]
    assert table.row_count == 5


def test_rows_as_json_have_counts_and_intervals() -> None:
    (row,) = json.loads(as_json(rows_of(RECORDS[:2], "setting")))
    assert (row["case"], row["runs"], row["success"], row["exact"], row["seconds"]) == ("all", 2, 1, [1, 2], 2.0)
    assert row["success_interval"] == [0.0945, 0.9055]
