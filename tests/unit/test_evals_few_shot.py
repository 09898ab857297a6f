"""Examples are written as a model reads them."""

import json

import pytest

from mcp_mirror.errors import ConfigError
from mcp_mirror.evals.cases import Turn
from mcp_mirror.evals.conversation import Reply, Result, User
from mcp_mirror.evals.few_shot import path_of, with_paths, write_example
from mcp_mirror.paths import find_bases, parse_path

TURNS = (
    Turn(user="Count."),
    Turn(tool="get", arguments={"number": 8}, stored={"guests": [{"name": "Mia"}], "room": 2}),
    Turn(tool="count", arguments={"rows": ["${PATH_1}/guests"], "limit": 5}, result="1"),
    Turn(tool="tell", arguments={"whole": "${PATH_1}", "said": "see ${PATH_1}"}, stored="long"),
    Turn(answer="One."),
)


def twin(name: str) -> str:
    return f"{name}_mirrored"


def test_with_the_gateway_examples_show_notices_and_pass_paths() -> None:
    notices = [f'"{path_of(turn, number)}" stands for it' for number, turn in enumerate((TURNS[1], TURNS[3]))]
    user, _, got, counts, counted, tells, notice, answer = write_example(TURNS, notices, twin)
    assert (user, answer) == (User("Count."), Reply(answer="One."))
    assert isinstance(got, Result)
    (base,) = find_bases(got.text)
    assert parse_path(base)
    assert isinstance(counts, Reply)
    assert (counts.calls[0].name, counts.calls[0].arguments) == (
        "count_mirrored", {"rows": [f"{base}/guests"], "limit": 5}
    )  # fmt: skip
    assert isinstance(counted, Result)
    assert counted.text == "1"
    assert isinstance(tells, Reply)
    assert tells.calls[0].arguments == {"whole": base, "said": f"see {base}"}
    assert isinstance(notice, Result)
    assert find_bases(notice.text) - {base}


def test_without_the_gateway_examples_show_and_pass_values() -> None:
    _, _, got, counts, _, tells, value, _ = write_example(TURNS, None, str)
    assert isinstance(got, Result)
    assert json.loads(got.text) == TURNS[1].stored
    assert isinstance(counts, Reply)
    assert counts.calls[0].arguments == {"rows": [[{"name": "Mia"}]], "limit": 5}
    assert isinstance(tells, Reply)
    assert tells.calls[0].arguments["whole"] == TURNS[1].stored
    assert isinstance(value, Result)
    assert value.text == "long"


@pytest.mark.parametrize(("end", "mangled"), [("ab", "ba"), ("aa", "a0"), ("00", "01")])
def test_a_mangled_path_differs_in_its_last_digits(end: str, mangled: str) -> None:
    path = f"get-00000000-0000-4000-8000-0000000000{end}"
    text = with_paths("at ${MANGLED_1}, not ${PATH_1}/a", [path])
    assert text == f"at {path[:-2]}{mangled}, not {path}/a"
    assert parse_path(path[:-2] + mangled)


def test_a_path_variable_without_a_path_is_an_error() -> None:
    with pytest.raises(ConfigError, match="only 0 results are stored"):
        with_paths("${PATH_1}", [])
