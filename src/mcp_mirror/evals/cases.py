"""A case: a prompt, the servers that the model may use, and the checks of a run.

A case is a Markdown file with YAML front matter; `docs/evaluation/index.md` describes its keys. This module parses the
text of the file. It must not know how a case is run. Errors name the file, the key and the expected value.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from mcp_mirror.errors import ConfigError

_FRONT: Final = re.compile(r"\A---\n(?P<front>.*?\n)---\n(?P<body>.*)\Z", re.DOTALL)
_PATH_VARIABLE: Final = re.compile(r"\$\{(?:PATH|MANGLED)_([1-9][0-9]*)\}")
"""A variable in a text: the path of the n-th stored result, exact or mistyped."""
_SHORT: Final = 90
"""Characters of a wrong value that a message shows."""


def _as_tuple(value: object) -> object:
    """A single name as a tuple; any other value unchanged."""
    return (value,) if isinstance(value, str) else value


Elicitation = Literal["none", "accept", "decline"]

Names = Annotated[tuple[str, ...], BeforeValidator(_as_tuple)]


Part = TypeVar("Part", bound=BaseModel)


class FilePart(BaseModel):
    """A part of a file of the user, which has no unknown keys."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)


class ExpectedCall(FilePart):
    """A required call: the tool, how often, the arguments, and whether its result is stored."""

    tool: Names = Field(min_length=1)
    """The tool's name at the upstream, without the gateway's suffix; of several names, any."""
    count: int = Field(default=1, ge=0)
    allow_multiple: bool = False
    """More calls than `count` are allowed."""
    arguments: Mapping[str, Any] = {}
    """Arguments that identify the call; others are free."""
    pointer_input: tuple[str, ...] | Mapping[str, str] = ()
    """Arguments that must be memory paths; a mapping also names the source of each: `tool` or `tool/pointer`."""
    pointer_result: bool | None = None
    """Whether its result must be stored; None: not checked."""

    @property
    def pointers(self) -> Mapping[str, str]:
        """Each argument that must be a path, with its source; an empty text: any source."""
        given = self.pointer_input
        return given if isinstance(given, Mapping) else dict.fromkeys(given, "")


class Answer(FilePart):
    """The checks of the final answer. Case and the width of white space do not matter."""

    contains: tuple[Names, ...] = ()
    """The answer contains each of these texts; of a list within the list, at least one."""
    any_of: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    max_tokens: int | None = Field(default=None, gt=0)
    """Estimated tokens."""


class ResultOf(FilePart):
    """The result of an upstream's tool, or a part of it."""

    result_of: str
    """The tool's name at the upstream."""
    arguments: Mapping[str, Any] = {}
    """Arguments that identify one of several calls."""
    at: str = ""
    """A JSON Pointer into the result (RFC 6901)."""
    replace: Mapping[str, str] = {}
    """Texts to replace in the result, each with its replacement."""


class Files(FilePart):
    """Files in the folder of a run, in which the servers start."""

    given: Mapping[str, str] = {}
    expected: Mapping[str, str | ResultOf] = {}
    """The content that files must have at the end, byte for byte."""


class Turn(FilePart):
    """A part of a conversation: a message of the user, a call with its result, or an answer."""

    user: str = ""
    tool: str = ""
    arguments: Mapping[str, Any] = {}
    result: str = ""
    """The text that the tool returned."""
    stored: Any = None
    """The value that the tool returned and the gateway stored."""
    answer: str = ""
    told: bool = True
    """Whether the model sees this part. Of a call that it does not see, it gets the path only in the prompt."""

    @model_validator(mode="after")
    def _has_one_kind(self) -> "Turn":
        if sum(bool(part) for part in (self.user, self.tool, self.answer)) != 1:
            raise ValueError("expected exactly one of user, tool and answer")
        return self


class Limits(FilePart):
    """The limits at which a run is ended."""

    calls: int = Field(default=12, gt=0)
    tokens: int = Field(default=200_000, gt=0)
    """Tokens read and written in all requests together, as the endpoint counts them."""
    seconds: float = Field(default=600, gt=0)


class Case(FilePart):
    """One task with its servers and checks."""

    title: str
    servers: Mapping[str, Any]
    """A configuration of the gateway."""
    calls: tuple[ExpectedCall, ...] = ()
    order: bool = True
    """The calls must be made in this order; other calls may come between."""
    forbid: tuple[str, ...] = ()
    """Globs of tools that must not be called."""
    answer: Answer = Answer()
    files: Files = Files()
    few_shot: tuple[Turn, ...] = ()
    earlier: tuple[Turn, ...] = ()
    """The conversation before the prompt. Its calls are really made."""
    limits: Limits = Limits()
    gateway: Literal["any", "required"] = "any"
    """`required`: the case is skipped without the gateway."""
    requires: Annotated[tuple[Literal["vision"], ...], BeforeValidator(_as_tuple)] = ()
    """What the model must be capable of; the case is skipped with other models."""
    elicitation: Elicitation = "none"
    """The user's answer to each elicitation request; `none`: the client accepts no such requests."""
    name: str = ""
    file: str = ""
    prompt: str = ""
    digest: str = ""
    """SHA-256 of the case file."""

    @model_validator(mode="after")
    def _check_path_variables(self) -> "Case":
        variables = _PATH_VARIABLE.findall(self.prompt)
        if variables and self.gateway != "required":
            raise ValueError("the prompt names a path, so `gateway` must be `required`")
        _check_numbers(variables, sum(bool(part.tool) for part in self.earlier), "calls of `earlier`")
        for at, part in enumerate(self.few_shot):
            before = sum(one.stored is not None for one in self.few_shot[:at])
            _check_numbers(
                _PATH_VARIABLE.findall(str(part.arguments)), before, "stored results before it in `few_shot`"
            )
        return self


def _check_numbers(numbers: Iterable[str], count: int, kind: str) -> None:
    if over := [number for number in numbers if int(number) > count]:
        raise ValueError(f"a variable names path {over[0]}, but the case has {count} {kind}")


def read_case(file: str, text: str, examples: Callable[[str], Any]) -> Case:
    """Parse the text of a case file, whose stem names the case; `examples` reads a file that `few_shot` names.

    Raises:
        ConfigError: The case is not valid; one line for each problem names file, key and expected value.
    """
    match = _FRONT.match(text.replace("\r\n", "\n"))
    if not match:
        raise ConfigError(f"{file}:1: expected a line '---', YAML, a line '---', and the prompt.")
    front = read_mapping(file, match["front"], first_line=2)
    if not (prompt := match["body"].strip()):
        raise ConfigError(f"{file}: the prompt is missing; write it below the second line '---'.")
    name = file.replace("\\", "/").rpartition("/")[2].removesuffix(".md")
    own = {"name": name, "file": file, "prompt": prompt, "digest": hashlib.sha256(text.encode()).hexdigest()}
    if taken := sorted(own.keys() & front.keys()):
        raise ConfigError(f"{file}: {taken[0]}: unknown key. The prompt is the text below the front matter.")
    if isinstance(named := front.get("few_shot"), str):
        front["few_shot"] = examples(named)
    return validate(file, Case, {**front, **own})


def read_mapping(file: str, text: str, first_line: int = 1) -> dict[str, Any]:
    """Parse a YAML mapping. A ConfigError for other texts names file and line."""
    try:
        found = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + first_line if error.problem_mark else first_line
        raise ConfigError(f"{file}:{line}: not valid YAML: {error.problem}.") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{file}:{first_line}: not valid YAML: {error}.") from None
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise ConfigError(f"{file}:{first_line}: expected a mapping of keys, got {type(found).__name__}.")
    return found


def validate(file: str, model: type[Part], data: Mapping[str, Any]) -> Part:
    """Convert data to a model. A ConfigError has a line for each problem."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise ConfigError("\n".join(_describe_problem(file, model, problem) for problem in error.errors())) from None


def _describe_problem(file: str, model: type[BaseModel], problem: Any) -> str:
    key = ".".join(str(step) for step in problem["loc"]) or "front matter"
    if problem["type"] == "extra_forbidden":
        keys = f" Top-level keys are {', '.join(model.model_fields)}." if len(problem["loc"]) == 1 else ""
        return f"{file}: {key}: unknown key.{keys}"
    if problem["type"] == "missing":
        return f"{file}: {key}: the key is missing."
    reason = problem["msg"].removeprefix("Value error, ")
    got = "" if reason != problem["msg"] else f", got {shorten(problem['input'])}"
    return f"{file}: {key}: {reason[:1].lower()}{reason[1:]}{got}."


def shorten(value: object) -> str:
    """Return a value for a message."""
    shown = repr(value)
    return shown if len(shown) <= _SHORT else f"{shown[:_SHORT]}..."
