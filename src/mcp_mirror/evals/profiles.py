"""Profiles: models and matrices by name, in a YAML file; and case files, read with what they name.

The only part of the evaluations that reads files of a user. `docs/evaluation/index.md` describes the keys.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field

from mcp_mirror.errors import ConfigError
from mcp_mirror.evals.cases import Case, checked, read_case, read_mapping
from mcp_mirror.evals.matrix import Model


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelProfile(_Part):
    """A model; see `matrix.Model`."""

    base_url: str = ""
    model: str = ""
    tools: Literal["native", "json_schema", "json_text"] = "native"
    temperature: float | None = Field(default=None, ge=0)
    max_tokens: int | None = Field(default=None, gt=0)
    system: str = ""
    extra: Mapping[str, Any] = {}
    api_key_env: str = ""
    timeout: float = Field(default=600.0, gt=0)


class MatrixProfile(_Part):
    """A matrix; see `matrix.Matrix`."""

    cases: tuple[str, ...] = ()
    """Files, folders or globs, relative to the file's folder."""
    models: tuple[str, ...] = ()
    notice: tuple[str, ...] = ("compact",)
    variants: tuple[str, ...] = ()
    """Names of `variants`; none: nothing is changed."""
    few_shot: tuple[bool, ...] = (False,)
    gateway: tuple[bool, ...] = (True,)
    repeats: int = Field(default=1, gt=0)
    seed: int = 1


class Profiles(_Part):
    """A file of profiles."""

    models: Mapping[str, ModelProfile] = {}
    matrices: Mapping[str, MatrixProfile] = {}
    variants: Mapping[str, Mapping[str, Any]] = {}
    """Configurations that are merged into a case's."""

    def model(self, name: str) -> Model:
        """A model by name; one that is not there is known by its name alone."""
        profile = self.models.get(name, ModelProfile())
        return Model(name=name, **profile.model_dump())


def read_profiles(path: Path) -> Profiles:
    """The profiles in a file.

    Raises:
        ConfigError: There are none; the message names file, key and what was wanted.
    """
    return checked(str(path), Profiles, read_mapping(str(path), _text_of(path)))


def find_cases(names: Sequence[str], folder: Path = Path()) -> list[Path]:
    """Case files: each name is a file, a folder of them, or a glob.

    Raises:
        ConfigError: A name finds none.
    """
    found: dict[Path, None] = {}
    for name in names:
        path = folder / name
        if path.is_dir():
            files = sorted(path.glob("*.md"))
        else:
            files = [path] if path.is_file() else sorted(folder.glob(name)) if not Path(name).is_absolute() else []
        if not files:
            raise ConfigError(f"{path}: there is no case. Give files that end with .md, or a folder of them.")
        found |= dict.fromkeys(files)
    return list(found)


def load_case(path: Path) -> Case:
    """The case in a file; where `few_shot` names a file, that holds the examples.

    Raises:
        ConfigError: It is no case.
    """
    return read_case(str(path), _text_of(path), lambda name: _examples(path.parent / name))


def _examples(path: Path) -> Any:
    try:
        return yaml.safe_load(_text_of(path))
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from None


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise ConfigError(f"{path}: cannot be read: {reason}.") from None
