"""Examples as a model would have read them."""

import json

import pytest

from mcp_mirror.errors import ConfigError
from mcp_mirror.evals.cases import Spoken
from mcp_mirror.evals.conversation import Reply, Result, User
from mcp_mirror.evals.matrix import STYLES
from mcp_mirror.evals.samples import tell_example, with_paths
from mcp_mirror.paths import find_bases, parse_path
from mcp_mirror.settings.policies import NoticeStyle

SPOKEN = (
    Spoken(user="Count."),
    Spoken(tool="get", arguments={"number": 8}, stored={"guests": [{"name": "Mia"}], "room": 2}),
    Spoken(tool="count", arguments={"rows": ["${PATH_1}/guests"], "limit": 5}, result="1"),
    Spoken(tool="tell", arguments={"whole": "${PATH_1}", "said": "see ${PATH_1}"}, stored="long"),
    Spoken(answer="One."),
)


def twin(name: str) -> str:
    return f"{name}_mirrored"


@pytest.mark.parametrize("style", STYLES)
def test_with_the_gateway_a_stored_result_is_a_notice_and_its_path_is_passed_on(style: NoticeStyle) -> None:
    user, _, got, counts, counted, tells, told, answer = tell_example(SPOKEN, style, twin)
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
    assert isinstance(told, Result)
    assert find_bases(told.text) - {base}


def test_without_it_a_result_is_the_value_and_the_value_is_passed_on() -> None:
    _, _, got, counts, _, tells, told, _ = tell_example(SPOKEN, None, str)
    assert isinstance(got, Result)
    assert json.loads(got.text) == SPOKEN[1].stored
    assert isinstance(counts, Reply)
    assert counts.calls[0].arguments == {"rows": [[{"name": "Mia"}]], "limit": 5}
    assert isinstance(tells, Reply)
    assert tells.calls[0].arguments["whole"] == SPOKEN[1].stored
    assert isinstance(told, Result)
    assert told.text == "long"


@pytest.mark.parametrize(("end", "mangled"), [("ab", "ba"), ("aa", "a0"), ("00", "01")])
def test_a_mangled_path_is_near_and_another(end: str, mangled: str) -> None:
    path = f"get-00000000-0000-4000-8000-0000000000{end}"
    told = with_paths("at ${MANGLED_1}, not ${PATH_1}/a", [path])
    assert told == f"at {path[:-2]}{mangled}, not {path}/a"
    assert parse_path(path[:-2] + mangled)


def test_a_path_that_is_not_there_is_told() -> None:
    with pytest.raises(ConfigError, match="only 0 results are stored"):
        with_paths("${PATH_1}", [])
