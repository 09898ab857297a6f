"""The cases, examples and profiles of the repository can all be used."""

from pathlib import Path

import pytest

from beeai import in_beeai
from mcp_mirror.config import NoticeStyle
from mcp_mirror.errors import ConfigError
from mcp_mirror.evals.example_notices import write_notices
from mcp_mirror.evals.few_shot import write_example
from mcp_mirror.evals.log import Log
from mcp_mirror.evals.matrix import STYLES, Matrix, Model
from mcp_mirror.evals.profiles import find_cases, load_case, read_matrix, read_profiles
from mcp_mirror.evals.runs import check_matrix
from mcp_mirror.paths import find_bases, slug_of

EVALS = Path(__file__).parents[2] / "evals"
WORDS: dict[NoticeStyle, str] = {
    "compact": "This path stands for", "paper": "was stored in memory", "json": '"use": ', "opaque": "",
}  # fmt: skip
"""Words of the notices of each style."""
CASES = [load_case(path) for path in find_cases([str(EVALS / "cases")])]


def test_every_case_has_a_valid_configuration_in_every_style() -> None:
    matrix = Matrix(
        CASES, (Model("m", "http://a/v1", vision=True),), STYLES, few_shot=(False, True), gateway=(True, False)
    )
    settings = check_matrix(matrix)
    assert {setting.case.name for setting in settings} == {case.name for case in CASES}
    assert len(CASES) >= 16


def test_runs_in_beeai_have_keys_of_their_own() -> None:
    matrix = Matrix(CASES, (Model("m", "http://a/v1", vision=True),))
    ours, theirs = ({setting.key for setting in one.settings()} for one in (matrix, in_beeai(matrix)))
    assert len(theirs) == len(CASES)
    assert not ours & theirs


async def test_every_example_can_be_written_in_every_style() -> None:
    examples = [
        write_example(case.few_shot, style and await write_notices(case.few_shot, style), str)
        for case in CASES
        for style in (*STYLES, None)
        if case.few_shot
    ]
    assert all(examples)
    assert len(examples) >= len(CASES)


@pytest.mark.parametrize("style", STYLES)
async def test_examples_show_the_notices_of_the_gateway(style: NoticeStyle) -> None:
    case = next(case for case in CASES if case.name == "pass_on")
    notices = await write_notices(case.few_shot, style)
    stored = [turn for turn in case.few_shot if turn.stored is not None]
    assert len(notices) == len(stored) > 0
    for turn, notice in zip(stored, notices, strict=True):
        [base] = find_bases(notice)
        assert slug_of(base) == turn.tool
        assert WORDS[style] in notice


def test_every_matrix_and_model_of_the_profiles_can_be_used() -> None:
    path = EVALS / "profiles.yaml"
    profiles = read_profiles(path)
    for name in profiles.matrices:
        assert check_matrix(read_matrix((), f"{path}:{name}", {}, {}))
    for name in profiles.models:
        variants = tuple(profiles.variants)
        matrix = read_matrix((str(EVALS / "cases"),), f"{path}:{name}", {}, {"variants": variants})
        assert set(matrix.variants) == set(variants)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("models: {a: {tools: magic}}", "models.a.tools: input should be 'native', 'json_schema' or 'json_text'"),
        ("matrices: {a: {repeats: 0}}", "matrices.a.repeats: input should be greater than 0, got 0"),
        ("models: {a: {harness: b}}", "models: a: unknown key 'harness'"),
        ("model: {}", "model: unknown key. Top-level keys are models, matrices, variants."),
        ("a: [", "not valid YAML"),
    ],
)
def test_an_error_in_a_profile_names_the_key(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "profiles.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_profiles(file)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("servers", "message"),
    [
        ("{upstreams: {a: {command: x, cmd: y}}}", "one.md: servers:"),
        ("{upstream: {}}", "one.md: servers:"),
    ],
)
def test_configurations_are_checked_before_the_first_run(tmp_path: Path, servers: str, message: str) -> None:
    file = tmp_path / "one.md"
    file.write_text(f"---\ntitle: T\nservers: {servers}\n---\nGo.\n")
    with pytest.raises(ConfigError) as caught:
        check_matrix(Matrix([load_case(file)], (Model("m", "http://a/v1"),)))
    assert message in str(caught.value)


def test_examples_must_be_valid_yaml(tmp_path: Path) -> None:
    (tmp_path / "examples.yaml").write_text("- [")
    file = tmp_path / "one.md"
    file.write_text("---\ntitle: T\nservers: {}\nfew_shot: examples.yaml\n---\nGo.\n")
    with pytest.raises(ConfigError, match=r"examples\.yaml: not valid YAML"):
        load_case(file)


@pytest.mark.parametrize("text", ["dear diary\nand so on\n", "dear diary", "[1]\n", '{"key": 1}\n'])
def test_a_file_that_is_not_a_log_is_not_changed(tmp_path: Path, text: str) -> None:
    file = tmp_path / "notes.txt"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"notes\.txt:1: this line is not a run"):
        Log(file)
    assert file.read_text() == text
    with pytest.raises(ConfigError, match="the log cannot be used"):
        Log(tmp_path)
