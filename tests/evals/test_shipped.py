"""What comes with the product: cases, examples and profiles can all be used."""

from pathlib import Path

import pytest

from beeai import in_beeai
from mcp_mirror.errors import ConfigError
from mcp_mirror.evals.asking import Asked, read_matrix
from mcp_mirror.evals.campaign import check_matrix
from mcp_mirror.evals.log import Log
from mcp_mirror.evals.matrix import STYLES, Matrix, Model
from mcp_mirror.evals.profiles import find_cases, load_case, read_profiles
from mcp_mirror.evals.samples import tell_example

EVALS = Path(__file__).parents[2] / "evals"
CASES = [load_case(path) for path in find_cases([str(EVALS / "cases")])]


def test_every_case_can_be_run_in_every_style_with_and_without_the_gateway() -> None:
    matrix = Matrix(CASES, (Model("m", "http://a/v1"),), STYLES, few_shot=(False, True), gateway=(True, False))
    settings = check_matrix(matrix)
    assert {setting.case.name for setting in settings} == {case.name for case in CASES}
    assert len(CASES) >= 16


def test_what_beeai_lets_a_model_do_is_not_taken_for_what_our_loop_did() -> None:
    matrix = Matrix(CASES, (Model("m", "http://a/v1"),))
    ours, theirs = ({setting.key for setting in one.settings()} for one in (matrix, in_beeai(matrix)))
    assert len(theirs) == len(CASES)
    assert not ours & theirs


def test_every_example_can_be_told_in_every_style() -> None:
    told = [tell_example(case.few_shot, style, str) for case in CASES for style in (*STYLES, None) if case.few_shot]
    assert all(told)
    assert len(told) >= len(CASES)


def test_every_matrix_and_model_of_the_profiles_can_be_used() -> None:
    path = EVALS / "profiles.yaml"
    profiles = read_profiles(path)
    for name in profiles.matrices:
        assert check_matrix(read_matrix(Asked((), f"{path}:{name}", {}, {})))
    for name in profiles.models:
        variants = tuple(profiles.variants)
        asked = Asked((str(EVALS / "cases"),), f"{path}:{name}", {}, {"variants": variants})
        assert set(read_matrix(asked).variants) == set(variants)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("models: {a: {tools: magic}}", "models.a.tools: input should be 'native', 'json_schema' or 'json_text'"),
        ("matrices: {a: {repeats: 0}}", "matrices.a.repeats: input should be greater than 0, got 0"),
        ("model: {}", "model: there is no such key. Keys at the top are models, matrices, variants."),
        ("a: [", "not valid YAML"),
    ],
)
def test_a_mistake_in_a_profile_is_told(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "profiles.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as told:
        read_profiles(file)
    assert said in str(told.value)


@pytest.mark.parametrize(
    ("servers", "said"),
    [
        ("{upstreams: {a: {command: x, cmd: y}}}", "one.md: servers:"),
        ("{upstream: {}}", "one.md: servers:"),
    ],
)
def test_a_configuration_that_cannot_be_used_is_told_before_anything_runs(
    tmp_path: Path, servers: str, said: str
) -> None:
    file = tmp_path / "one.md"
    file.write_text(f"---\ntitle: T\nservers: {servers}\n---\nGo.\n")
    with pytest.raises(ConfigError) as told:
        check_matrix(Matrix([load_case(file)], (Model("m", "http://a/v1"),)))
    assert said in str(told.value)


def test_examples_that_are_no_yaml_are_told(tmp_path: Path) -> None:
    (tmp_path / "examples.yaml").write_text("- [")
    file = tmp_path / "one.md"
    file.write_text("---\ntitle: T\nservers: {}\nfew_shot: examples.yaml\n---\nGo.\n")
    with pytest.raises(ConfigError, match=r"examples\.yaml: not valid YAML"):
        load_case(file)


@pytest.mark.parametrize("text", ["dear diary\nand so on\n", "dear diary", "[1]\n", '{"key": 1}\n'])
def test_a_log_that_is_something_else_is_left_alone(tmp_path: Path, text: str) -> None:
    file = tmp_path / "notes.txt"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"notes\.txt:1: this line is no run"):
        Log(file)
    assert file.read_text() == text
    with pytest.raises(ConfigError, match="the log cannot be used"):
        Log(tmp_path)
