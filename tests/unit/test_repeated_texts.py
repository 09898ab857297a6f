"""Texts beside structured content that only repeat it, in any form, are not shown a second time."""

import json
from typing import Any

import pytest
from computing import least_seconds

from mcp_mirror.core.results.capture import CaptureRules, capture
from mcp_mirror.core.results.captured import Captured
from mcp_mirror.core.results.content_comparison import COMPARED_BYTES
from mcp_mirror.core.results.repeated_texts import OtherTexts, find_other_texts

ROWS = [{"id": number, "name": f"row {number}"} for number in range(20)]
VALUE = {"items": ROWS, "total": 20.0}
PRETTY = json.dumps(VALUE, indent=2)
EACH = [json.dumps(row, indent=2) for row in ROWS]
MORE = json.dumps({**VALUE, "n": [], "m": 1})
LONG = "a text of over a hundred characters " * 3
PARTLY = [
    VALUE | {"n": 1, "items": ROWS[:-1]},
    VALUE | {"n": 1, "items": [*ROWS[1:], {}]},
    VALUE | {"n": 1, "total": []},
]


def literals(*texts: str) -> list[bytes]:
    return [json.dumps(text).encode() for text in texts]


def others_of(value: Any, *texts: str) -> list[str]:
    found = find_other_texts(json.dumps(value).encode(), literals(*texts))
    assert not found.include_value
    return [json.loads(bytes(one)) for one in found.texts]


@pytest.mark.parametrize(
    ("value", "texts", "others"),
    [
        (VALUE, ["Found 20 rows.", PRETTY], ["Found 20 rows."]),
        (VALUE, [f"```json\n{PRETTY}\n```"], []),
        (VALUE, [f"\n```\n{PRETTY}```\n", "Done."], ["Done."]),
        (VALUE, EACH, []),
        (VALUE, ["First.", *EACH, "Last."], ["First.", "Last."]),
        (VALUE, [*EACH, *EACH], EACH),
        (VALUE, ["Rows:", json.dumps(ROWS, indent=1)], ["Rows:"]),
        (VALUE, [f"Found 20 rows:\n{json.dumps(ROWS, indent=2)}\n\nAll of them."], ["Found 20 rows:\nAll of them."]),
        (VALUE, [f"Rows:\n\n```json\n{json.dumps(ROWS)}\n```\n", "Done."], ["Rows:", "Done."]),
        (VALUE, [f"Rows:\n{json.dumps(ROWS[1:])}"], [f"Rows:\n{json.dumps(ROWS[1:])}"]),
        (VALUE, [f"Rows:\n{ROWS}"], [f"Rows:\n{ROWS}"]),  # as Python prints them
        (VALUE, EACH[1:], EACH[1:]),  # a selection
        (VALUE, [EACH[3], "Selected."], [EACH[3], "Selected."]),
        (ROWS, ["Rows:", *EACH], ["Rows:"]),
        ({"outputs": [json.dumps(ROWS), "[done]"], "count": 2}, [json.dumps(ROWS), "[done]"], []),
        ({"output": json.dumps(ROWS), "ok": True}, ["Done.", json.dumps(ROWS)], ["Done."]),
        ({"report": LONG, "id": 1}, [LONG, "Done."], ["Done."]),
        ({"options": ["yes"], "default": "yes", "none": []}, ["yes", "Choose."], ["yes", "Choose."]),
        ({"rows": [{"a": 1}]}, ['{"a": 1}', "One row."], ["One row."]),
        (VALUE, [PRETTY.replace("20.0", "21")], [PRETTY.replace("20.0", "21")]),
        ({"a": [{"b": 1}], "c": None}, [json.dumps({"a": [{"b": 1, "d": None}]})], []),
        ({"a": [{"b": 1}]}, ["Found:", '{"a": [{"b": 1}], "error": null}'], ["Found:"]),
        ({"a": [1, 2]}, ['{"a": [1, null, 2]}'], ['{"a": [1, null, 2]}']),
        (LONG, ["Done."], ["Done."]),
        ({"rows": [[1], [1], [2]], "n": 3}, ["[1]", "[1]", "[1]", "[2]"], ["[1]"]),
        (VALUE, [f"```json\n{json.dumps(ROWS)}"], [f"```json\n{json.dumps(ROWS)}"]),  # without an end
        *((VALUE, [json.dumps(other)], [json.dumps(other)]) for other in PARTLY),
        *((VALUE | {"n": old}, [text], [text]) for old, text in ((None, MORE), ([], MORE.replace("[]", "null")))),
        (VALUE, [json.dumps({"data": VALUE, "more": 1})], [json.dumps({"data": VALUE, "more": 1})]),  # at other paths
        ({"a": 1}, ["```json\n{broken\n```", "1"], ["```json\n{broken\n```", "1"]),
    ],
)
def test_only_texts_that_repeat_the_value_are_left_out(value: Any, texts: list[str], others: list[str]) -> None:
    assert others_of(value, *texts) == others


@pytest.mark.parametrize(
    "text",
    [
        f"Here they are:\n{PRETTY}",
        f"Rows:\n```json\n{PRETTY}\n```\nThat is all.",
        json.dumps({**VALUE, "took_ms": 3}),
        json.dumps({"items": [{**row, "debug": {"line": 1}} for row in ROWS], "total": 20.0}),
    ],
)
def test_a_text_that_contains_the_whole_value_is_found(text: str) -> None:
    assert find_other_texts(json.dumps(VALUE).encode(), literals(text)) == OtherTexts(
        tuple(literals(text)), include_value=True
    )


ISSUES = [{"number": 10 + at, "title": f"Fix the parser {at}", "is_open": True, "closed": None} for at in range(5)]
LIST = "\n".join(f"- **#{one['number']}**: {one['title']} (open: true)" for one in ISSUES)
FIVE = {"issues": ISSUES, "total": 5.0}


@pytest.mark.parametrize(
    ("value", "texts", "are_paraphrase"),
    [
        (FIVE, [f"5 issues\n{LIST}"], True),
        (FIVE, ["5 issues", LIST.upper()], True),
        (FIVE | {"page": "https://example.org/?page=2"}, [LIST], True),  # short: the list of keys has it
        (FIVE | {"page": f"https://example.org/?page=2#{'x' * 20}"}, [LIST], False),
        (
            FIVE | {"page": f"https://example.org/?page=2#{'x' * 20}"},
            [LIST, f"https://example.org/?page=2#{'x' * 20}"],
            True,
        ),
        (FIVE | {f"n{number}": number for number in range(8)}, [LIST], False),  # too many for the list of keys
        (FIVE, [LIST.replace("12", "11")], False),
        (FIVE, [LIST.replace("(open: true)", "")], False),
        (FIVE, [LIST[: LIST.rindex("\n")]], False),
        (FIVE, [LIST, json.dumps({"n": 1})], False),
        (ISSUES, [LIST], False),  # without keys
        ({"stdout": LONG, "exit_code": 0}, [f"Exit code: 0\n{LONG}"], True),
        ({"report": LONG, "id": 1}, [LONG, "Done."], False),  # about as long
        ({"report": LONG, "id": 1}, [f"{LONG}{LONG}"], True),
        ({"rows": [LONG], "same": [LONG], "n": 1}, [LONG], True),
        ({"kind": "list", "text": LONG, "items": LONG.split(), "n": 1}, [LONG], True),
        ({"kind": "list", "items": [*LONG.split(), "more"], "n": 1}, [LONG], False),
        ({"a": "one", "b": "two", "c": LONG[:25] + " " * 60}, [f"one, two: {LONG}"], True),
        ({"a": "one", "b": "two", "c": LONG[:25] + " " * 60}, [f"one: {LONG}"], True),
        ({"a": "one", "b": "two", "c" * 90: LONG[:25]}, [f"one: {LONG}"], False),
    ],
)
def test_texts_with_all_words_of_an_object_are_found(value: Any, texts: list[str], *, are_paraphrase: bool) -> None:
    assert find_other_texts(json.dumps(value).encode(), literals(*texts)).are_paraphrase is are_paraphrase


def test_the_words_of_long_texts_are_not_compared() -> None:
    value, size = json.dumps(FIVE).encode(), len(json.dumps(LIST))
    assert find_other_texts(value, literals(LIST), size).are_paraphrase
    assert not find_other_texts(value, literals(LIST), size - 1).are_paraphrase


def test_texts_of_any_depth_are_compared() -> None:
    deep = '{"a": ' * 800 + "%s" + "}" * 800
    found = find_other_texts((deep % 1).encode(), literals(deep % 2))
    assert found == OtherTexts(tuple(literals(deep % 2)))


def test_results_over_the_limits_keep_their_texts() -> None:
    for value, texts in ((VALUE, [*EACH] * 60), ({"a": "x" * COMPARED_BYTES}, [LONG, LONG])):
        assert others_of(value, *texts) == texts


def shown(*texts: str, budget: int = 2500) -> Captured:
    content = [{"type": "text", "text": text} for text in texts]
    result = {"content": json.dumps(content).encode(), "structuredContent": json.dumps(VALUE).encode()}
    return capture(result, CaptureRules("auto", budget, 2000, is_wrapped=False), lambda text: len(bytes(text)) // 3)


def test_many_texts_are_compared_with_almost_equal_rows_in_linear_time() -> None:
    row = {"numbers": list(range(100))}
    texts = [json.dumps(row)] * 800
    value = {"rows": [row] * 299 + [{}]}
    assert others_of(value, *texts) == texts
    assert least_seconds(lambda: others_of(value, *texts)) < 0.4


def test_the_model_reads_a_repeated_value_once_and_other_texts_beside_it() -> None:
    value = json.dumps(VALUE)
    assert shown("Found 20 rows.", PRETTY).shown == f"Found 20 rows.\n{value}"
    assert shown(f"```json\n{PRETTY}\n```").shown == value
    assert shown(*EACH).shown == value
    assert shown(f"Rows:\n{json.dumps(ROWS)}").shown == f"Rows:\n{value}"
    assert shown(f"Here they are:\n{PRETTY}").shown == f"Here they are:\n{PRETTY}"


def test_texts_that_say_the_same_in_words_are_shown_without_the_value() -> None:
    rows = "\n".join(f"{row['id']}: {row['name']}" for row in ROWS)
    assert shown("20 rows", rows).shown == f"20 rows\n{rows}"
    assert shown("20 rows", rows).is_paraphrased
    assert not shown("20 rows", rows, budget=50).is_paraphrased


def test_all_texts_are_stored_and_a_notice_quotes_those_that_differ() -> None:
    taken = shown("Found 20 rows.", PRETTY, budget=50)
    assert (taken.shown, taken.quoted_texts, taken.is_named) == (None, ('"Found 20 rows."',), True)
    assert taken.companion is not None
    assert [one["text"] for one in json.loads(bytes(taken.companion.blob))] == ["Found 20 rows.", PRETTY]
    repeated = shown(f"```json\n{PRETTY}\n```", budget=50)
    assert (repeated.quoted_texts, repeated.is_named) == ((), False)
    assert repeated.companion is not None
