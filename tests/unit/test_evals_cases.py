"""Case files are parsed, and errors in them name file, key and expected value."""

from typing import Any

import pytest
import yaml

from mcp_mirror.errors import ConfigError
from mcp_mirror.evals.cases import Answer, Case, ExpectedCall, ResultOf, read_case, read_mapping

WHOLE = """---
title: A title
servers: {upstreams: {}}
calls:
  - {tool: fetch, pointer_result: true}
  - {tool: [save, store], pointer_input: {text: fetch/body}, allow_multiple: true}
  - {tool: count, pointer_input: [left, right], count: 2}
answer: {contains: [one, [two, "2"]]}
files: {expected: {a.txt: "all of it", b.txt: {result_of: fetch, at: /body}}}
---

Do it.
"""


def no_file(name: str) -> Any:
    raise AssertionError(name)


def read(text: str) -> Case:
    return read_case("cases/one.md", text, no_file)


def front(**keys: Any) -> str:
    return f"---\n{yaml.safe_dump({'title': 'T', 'servers': {}, **keys})}---\nPrompt\n"


def test_all_keys_of_a_case_are_read() -> None:
    case = read(WHOLE.replace("\n", "\r\n"))
    assert (case.name, case.file, case.prompt, case.order) == ("one", "cases/one.md", "Do it.", True)
    assert case.calls[1] == ExpectedCall(
        tool=("save", "store"), pointer_input={"text": "fetch/body"}, allow_multiple=True
    )
    assert [call.pointers for call in case.calls] == [{}, {"text": "fetch/body"}, {"left": "", "right": ""}]
    assert case.answer == Answer(contains=(("one",), ("two", "2")))
    assert case.files.expected == {"a.txt": "all of it", "b.txt": ResultOf(result_of="fetch", at="/body")}
    assert case.digest != read(WHOLE.replace("Do it", "Do that")).digest


def test_examples_may_be_in_a_file() -> None:
    turns = [{"user": "Go."}, {"answer": "Gone."}]
    case = read_case("a.md", front(few_shot="../pass.yaml"), {"../pass.yaml": turns}.__getitem__)
    assert [part.user or part.answer for part in case.few_shot] == ["Go.", "Gone."]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Prompt", "cases/one.md:1: expected a line '---'"),
        ("---\ntitle: T\n---\n \n", "cases/one.md: the prompt is missing"),
        ("---\na: [1\n---\nP", "cases/one.md:3: not valid YAML"),
        ("---\na: \0\n---\nP", "cases/one.md:2: not valid YAML"),
        ("---\n- a\n---\nP", "cases/one.md:2: expected a mapping of keys, got list"),
        ("---\n1: a\n---\nP", "expected a mapping of keys, got dict"),
        (front(prompt="P"), "cases/one.md: prompt: unknown key. The prompt is the text below"),
        ("---\ntitle: T\n---\nP", "cases/one.md: servers: the key is missing."),
        (front(call=[]), "cases/one.md: call: unknown key. Top-level keys are title, servers, calls,"),
        (front(calls=[{"tool": "a", "pointers": 1}]), "cases/one.md: calls.0.pointers: unknown key.\n"),
        (front(calls=[{"tool": "a", "count": "x" * 99}]), "calls.0.count: input should be a valid integer"),
        (front(earlier=[{"user": "a", "answer": "b"}]), "earlier.0: expected exactly one of user, tool and answer."),
        (front(title=[1]), "title: input should be a valid string, got [1]."),
    ],
)
def test_an_error_names_file_key_and_expected_value(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(text)
    assert message in f"{caught.value}\n"


def test_a_long_wrong_value_is_cut() -> None:
    with pytest.raises(ConfigError, match=r"got '[x]+\.\.\."):
        read(front(limits={"calls": "x" * 500}))


@pytest.mark.parametrize(
    ("keys", "prompt", "message"),
    [
        ({}, "Read ${PATH_1}", "`gateway` must be `required`"),
        ({"gateway": "required"}, "Read ${MANGLED_1}", "names path 1, but the case has 0 calls of `earlier`"),
        (
            {"few_shot": [{"tool": "a", "arguments": {"b": ["${PATH_1}"]}, "stored": 1}]},
            "Read",
            "the case has 0 stored results before it",
        ),
    ],
)
def test_a_path_variable_without_a_path_is_an_error(keys: dict[str, Any], prompt: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(front(**keys).replace("Prompt", prompt))
    assert message in str(caught.value)


def test_a_path_variable_with_a_path_is_valid() -> None:
    earlier = [{"tool": "a", "told": False}]
    assert (
        read(front(gateway="required", earlier=earlier).replace("Prompt", "Read ${PATH_1}")).prompt == "Read ${PATH_1}"
    )


def test_a_yaml_error_without_a_position_names_the_first_line() -> None:
    with pytest.raises(ConfigError, match="f:7: not valid YAML"):
        read_mapping("f", "a: \x07", 7)
