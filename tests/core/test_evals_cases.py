"""A case's file: what is read from it, and how a mistake in it is told."""

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


def test_a_case_is_read_whole() -> None:
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
    said = [{"user": "Go."}, {"answer": "Gone."}]
    case = read_case("a.md", front(few_shot="../pass.yaml"), {"../pass.yaml": said}.__getitem__)
    assert [part.user or part.answer for part in case.few_shot] == ["Go.", "Gone."]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Prompt", "cases/one.md:1: wanted a line '---'"),
        ("---\ntitle: T\n---\n \n", "cases/one.md: the prompt is missing"),
        ("---\na: [1\n---\nP", "cases/one.md:3: not valid YAML"),
        ("---\na: \0\n---\nP", "cases/one.md:2: not valid YAML"),
        ("---\n- a\n---\nP", "cases/one.md:2: wanted a mapping of keys, got list"),
        ("---\n1: a\n---\nP", "wanted a mapping of keys, got dict"),
        (front(prompt="P"), "cases/one.md: prompt: there is no such key; the prompt is the text below"),
        ("---\ntitle: T\n---\nP", "cases/one.md: servers: this key is missing."),
        (front(call=[]), "cases/one.md: call: there is no such key. Keys at the top are title, servers, calls,"),
        (front(calls=[{"tool": "a", "pointers": 1}]), "cases/one.md: calls.0.pointers: there is no such key.\n"),
        (front(calls=[{"tool": "a", "count": "x" * 99}]), "calls.0.count: input should be a valid integer"),
        (front(earlier=[{"user": "a", "answer": "b"}]), "earlier.0: wanted one of user, tool and answer."),
        (front(title=[1]), "title: input should be a valid string, got [1]."),
    ],
)
def test_a_mistake_is_told_with_file_key_and_what_was_wanted(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as told:
        read(text)
    assert said in f"{told.value}\n"


def test_a_long_wrong_value_is_cut() -> None:
    with pytest.raises(ConfigError, match=r"got '[x]+\.\.\."):
        read(front(limits={"calls": "x" * 500}))


@pytest.mark.parametrize(
    ("keys", "prompt", "said"),
    [
        ({}, "Read ${PATH_1}", "`gateway` must be `required`"),
        ({"gateway": "required"}, "Read ${MANGLED_1}", "path 1 is wanted, and there are 0 calls of `earlier`"),
        (
            {"few_shot": [{"tool": "a", "arguments": {"b": ["${PATH_1}"]}, "stored": 1}]},
            "Read",
            "there are 0 stored results before it",
        ),
    ],
)
def test_a_path_that_is_not_there_is_told(keys: dict[str, Any], prompt: str, said: str) -> None:
    with pytest.raises(ConfigError) as told:
        read(front(**keys).replace("Prompt", prompt))
    assert said in str(told.value)


def test_a_path_that_is_there_is_taken() -> None:
    earlier = [{"tool": "a", "told": False}]
    assert (
        read(front(gateway="required", earlier=earlier).replace("Prompt", "Read ${PATH_1}")).prompt == "Read ${PATH_1}"
    )


def test_yaml_without_a_place_is_told_by_its_first_line() -> None:
    with pytest.raises(ConfigError, match="f:7: not valid YAML"):
        read_mapping("f", "a: \x07", 7)
