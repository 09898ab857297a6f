"""A case: what a model is asked, over which servers, and how it is told that it did well.

A case is a Markdown file with YAML front matter; `docs/evaluation/index.md` has its keys. Text in, a frozen case out:
this module must not know how a case is run. A mistake in a file is told with the file, the key and what was wanted.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Final, Literal, TypeVar

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from mcp_mirror.errors import ConfigError

_FRONT: Final = re.compile(r"\A---\n(?P<front>.*?\n)---\n(?P<body>.*)\Z", re.DOTALL)
PLACE: Final = re.compile(r"\$\{(?:PATH|MANGLED)_([1-9][0-9]*)\}")
"""In a text, stands for the path of the n-th stored result, to the letter or mistyped."""
_SHORT: Final = 80
"""Characters of a wrong value that an error shows."""


def _as_tuple(value: object) -> object:
    """One name, or a list of them."""
    return (value,) if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_as_tuple)]


Part = TypeVar("Part", bound=BaseModel)


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ExpectedCall(_Part):
    """A call that has to be made: which tool, how often, with what, and what must come of it."""

    tool: Names = Field(min_length=1)
    """The upstream's own name for it, without the gateway's suffix; where there are several, any of them."""
    count: int = Field(default=1, ge=0)
    allow_multiple: bool = False
    """More calls than `count` are well too."""
    arguments: Mapping[str, Any] = {}
    """Arguments that make it this call; others are free."""
    pointer_input: tuple[str, ...] | Mapping[str, str] = ()
    """Arguments that must be a path given earlier; with a mapping, one that `tool` gave: `tool` or `tool/pointer`."""
    pointer_result: bool | None = None
    """Whether its result must be stored; None: as it comes."""

    @property
    def pointers(self) -> Mapping[str, str]:
        """Each argument that must be a path, and whose; empty text: anyone's."""
        given = self.pointer_input
        return given if isinstance(given, Mapping) else dict.fromkeys(given, "")


class Answer(_Part):
    """What must be true of the final answer. Case and the width of white space do not matter."""

    contains: tuple[Names, ...] = ()
    """Each of these texts; of a list within the list, one."""
    any_of: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    max_tokens: int | None = Field(default=None, gt=0)
    """Estimated tokens."""


class ResultOf(_Part):
    """The value that an upstream answered with, or a part of it."""

    result_of: str
    """The tool, by its own name."""
    arguments: Mapping[str, Any] = {}
    """Those of the call that is meant, where there are several."""
    at: str = ""
    """A JSON Pointer into it (RFC 6901)."""
    replace: Mapping[str, str] = {}
    """Texts of it, each with what must stand in its place."""


class Files(_Part):
    """Files in the run's own folder, in which the servers are started."""

    given: Mapping[str, str] = {}
    expected: Mapping[str, str | ResultOf] = {}
    """What must be in them at the end, byte for byte."""


class Spoken(_Part):
    """A part of a conversation: the user's words, a call with what came of it, or an answer."""

    user: str = ""
    tool: str = ""
    arguments: Mapping[str, Any] = {}
    result: str = ""
    """The text that the tool answered with."""
    stored: Any = None
    """The value that it answered with, which the gateway stored."""
    answer: str = ""
    told: bool = True
    """Whether the model reads of it; of a call that is made and not told it has the path in the prompt alone."""

    @model_validator(mode="after")
    def _says_one_thing(self) -> "Spoken":
        if sum(bool(part) for part in (self.user, self.tool, self.answer)) != 1:
            raise ValueError("wanted one of user, tool and answer")
        return self


class Limits(_Part):
    """Where a run ends that does not end by itself."""

    calls: int = Field(default=12, gt=0)
    tokens: int = Field(default=200_000, gt=0)
    """Read and written in all replies together, as the endpoint counts them."""
    seconds: float = Field(default=600, gt=0)


class Case(_Part):
    """One task with its servers and its checks."""

    title: str
    servers: Mapping[str, Any]
    """A configuration of the gateway: upstreams, and what it does differently."""
    calls: tuple[ExpectedCall, ...] = ()
    order: bool = True
    """The calls must come in this order, others between them."""
    forbid: tuple[str, ...] = ()
    """Globs of tools that must not be called."""
    answer: Answer = Answer()
    files: Files = Files()
    few_shot: tuple[Spoken, ...] = ()
    earlier: tuple[Spoken, ...] = ()
    """The conversation so far; its calls are made, so that their results are real."""
    limits: Limits = Limits()
    gateway: Literal["any", "required"] = "any"
    """`required`: without the gateway there is nothing to be seen."""
    name: str = ""
    file: str = ""
    prompt: str = ""
    digest: str = ""
    """SHA-256 of the text that the case was read from."""

    @model_validator(mode="after")
    def _names_paths_that_are(self) -> "Case":
        told = PLACE.findall(self.prompt)
        if told and self.gateway != "required":
            raise ValueError("the prompt names a path, so `gateway` must be `required`")
        _check_places(told, sum(bool(part.tool) for part in self.earlier), "calls of `earlier`")
        for at, part in enumerate(self.few_shot):
            before = sum(one.stored is not None for one in self.few_shot[:at])
            _check_places(PLACE.findall(str(part.arguments)), before, "stored results before it in `few_shot`")
        return self


def _check_places(numbers: Iterable[str], there: int, of: str) -> None:
    if over := [number for number in numbers if int(number) > there]:
        raise ValueError(f"path {over[0]} is wanted, and there are {there} {of}")


def read_case(file: str, text: str, examples: Callable[[str], Any]) -> Case:
    """The case in a file's text.

    Args:
        file: The file's path; its stem is the case's name.
        text: All of it.
        examples: Gives what a file holds that `few_shot` names.

    Raises:
        ConfigError: It is no case; one line for each problem names file, key and what was wanted.
    """
    match = _FRONT.match(text.replace("\r\n", "\n"))
    if not match:
        raise ConfigError(f"{file}:1: wanted a line '---', YAML, a line '---', and the prompt below it.")
    front = read_mapping(file, match["front"], first_line=2)
    if not (prompt := match["body"].strip()):
        raise ConfigError(f"{file}: the prompt is missing; write it below the second line '---'.")
    own = {"name": _stem(file), "file": file, "prompt": prompt, "digest": hashlib.sha256(text.encode()).hexdigest()}
    if taken := sorted(own.keys() & front.keys()):
        raise ConfigError(f"{file}: {taken[0]}: there is no such key; the prompt is the text below the front matter.")
    if isinstance(named := front.get("few_shot"), str):
        front["few_shot"] = examples(named)
    return checked(file, Case, {**front, **own})


def read_mapping(file: str, text: str, first_line: int = 1) -> dict[str, Any]:
    """A YAML mapping.

    Raises:
        ConfigError: It is none; the message names file and line.
    """
    try:
        found = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + first_line if error.problem_mark else first_line
        raise ConfigError(f"{file}:{line}: not valid YAML: {error.problem}.") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{file}:{first_line}: not valid YAML: {error}.") from None
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise ConfigError(f"{file}:{first_line}: wanted a mapping of keys, got {type(found).__name__}.")
    return found


def checked(file: str, model: type[Part], data: Mapping[str, Any]) -> Part:
    """Data as what it must be.

    Raises:
        ConfigError: It is not; one line for each problem.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise ConfigError("\n".join(_told(file, model, problem) for problem in error.errors())) from None


def _told(file: str, model: type[BaseModel], problem: Any) -> str:
    key = ".".join(str(step) for step in problem["loc"]) or "front matter"
    if problem["type"] == "extra_forbidden":
        there = f" Keys at the top are {', '.join(model.model_fields)}." if len(problem["loc"]) == 1 else ""
        return f"{file}: {key}: there is no such key.{there}"
    if problem["type"] == "missing":
        return f"{file}: {key}: this key is missing."
    said = problem["msg"].removeprefix("Value error, ")
    got = "" if said != problem["msg"] else f", got {_shortened(problem['input'])}"
    return f"{file}: {key}: {said[:1].lower()}{said[1:]}{got}."


def _shortened(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= _SHORT else f"{shown[:_SHORT]}..."


def _stem(file: str) -> str:
    return file.replace("\\", "/").rpartition("/")[2].removesuffix(".md")
