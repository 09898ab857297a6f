"""Reads profiles (models and matrices by name, in a YAML file) and case files, and combines them to a matrix.

Only this module of the evaluations reads files of the user. `docs/evaluation/index.md` describes the keys.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

import yaml
from pydantic import BeforeValidator, Field

from mcp_mirror.errors import ConfigError
from mcp_mirror.evals.cases import Case, FilePart, read_case, read_mapping, validate
from mcp_mirror.evals.matrix import PLAIN, Matrix, Model, check_style

_NOT_IN_FILES: Final = frozenset({"name", "harness"})
"""Members of a model that no profile has as a key."""


class MatrixProfile(FilePart):
    """The settings of a matrix; see `matrix.Matrix`."""

    cases: tuple[str, ...] = ()
    """Files, folders or globs, relative to the folder of the profile file."""
    models: tuple[str, ...] = ()
    notice: tuple[str, ...] = ("compact",)
    variants: tuple[str, ...] = ()
    """Names of `variants`; empty: only the unchanged configuration."""
    few_shot: tuple[bool, ...] = (False,)
    gateway: tuple[bool, ...] = (True,)
    repeats: int = Field(default=1, gt=0)
    seed: int = 1


def _add_names(models: Any) -> Any:
    """Add the name of each model, which is its key."""
    if not isinstance(models, dict):
        return models
    for name, one in models.items():
        if isinstance(one, dict) and (taken := _NOT_IN_FILES & one.keys()):
            raise ValueError(f"{name}: unknown key {min(taken)!r}")
    return {name: {**one, "name": name} if isinstance(one, dict) else one for name, one in models.items()}


class Profiles(FilePart):
    """The content of a profile file."""

    models: Annotated[Mapping[str, Model], BeforeValidator(_add_names)] = {}
    matrices: Mapping[str, MatrixProfile] = {}
    variants: Mapping[str, Mapping[str, Any]] = {}
    """Configurations that are merged into the configuration of a case."""


def read_matrix(
    cases: Sequence[str], profile: str | None, model: Mapping[str, Any], changes: Mapping[str, Any]
) -> Matrix:
    """Combine the options of a command line with a profile; the options override the profile.

    `cases` are files, folders or globs, by default those of the profile, which is FILE:NAME. `model` has members of a
    `Model`, and `changes` has members of a `MatrixProfile`.

    Raises:
        ConfigError: A file, a case or a name in it cannot be used, or an option is missing.
    """
    profiles, chosen, folder = _read_profile(profile)
    chosen = chosen.model_copy(update=dict(changes))
    files = find_cases(cases) if cases else find_cases(chosen.cases, folder)
    if not files:
        raise ConfigError("No cases are given. Name case files or a folder.")
    return Matrix(
        cases=[load_case(path) for path in files],
        models=_find_models(profiles, chosen.models, model),
        styles=[check_style(name) for name in chosen.notice],
        variants={name: _find_variant(profiles, name) for name in chosen.variants or (PLAIN,)},
        few_shot=chosen.few_shot,
        gateway=chosen.gateway,
        repeats=chosen.repeats,
        seed=chosen.seed,
    )


def _find_models(profiles: Profiles, names: Iterable[str], changes: Mapping[str, Any]) -> list[Model]:
    models = [replace(profiles.models.get(name, Model(name)), **changes) for name in names]
    models = models or [Model(**{"name": changes.get("model", ""), **changes})]
    if not all(model.base_url and model.name for model in models):
        raise ConfigError("The model or its endpoint is missing. Give --model and --base-url, or --profile FILE:NAME.")
    return models


def _read_profile(option: str | None) -> tuple[Profiles, MatrixProfile, Path]:
    """Return the profiles of a file, the matrix (or a matrix of the one model) with the name, and the file's folder."""
    if option is None:
        return Profiles(), MatrixProfile(), Path()
    file, _, name = option.rpartition(":")
    if not file or not name:
        raise ConfigError(f"--profile must be FILE:NAME, such as evals/profiles.yaml:small; got {option!r}.")
    path = Path(file)
    profiles = read_profiles(path)
    if name in profiles.matrices:
        return profiles, profiles.matrices[name], path.parent
    if name in profiles.models:
        return profiles, MatrixProfile(models=(name,)), path.parent
    names = ", ".join((*profiles.matrices, *profiles.models)) or "none"
    raise ConfigError(f"{path}: unknown matrix or model {name!r}. The file has: {names}.")


def _find_variant(profiles: Profiles, name: str) -> Mapping[str, Any]:
    if name != PLAIN and name not in profiles.variants:
        names = ", ".join(profiles.variants) or "none"
        raise ConfigError(f"--variant: unknown variant {name!r}. The profile file has: {names}.")
    return profiles.variants.get(name, {})


def read_profiles(path: Path) -> Profiles:
    """Read a profile file. A ConfigError names file, key and expected value."""
    return validate(str(path), Profiles, read_mapping(str(path), _text_of(path)))


def find_cases(names: Sequence[str], folder: Path = Path()) -> list[Path]:
    """Find case files. Each name is a file, a folder with case files, or a glob; ConfigError if it matches none."""
    found: dict[Path, None] = {}
    for name in names:
        path = folder / name
        files = [path] if path.is_file() else []
        if path.is_dir():
            files = sorted(path.glob("*.md"))
        elif not files and not Path(name).is_absolute():
            files = sorted(folder.glob(name))
        if not files:
            raise ConfigError(
                f"{path}: no case file was found. Name files that end with .md, or a folder with such files."
            )
        found |= dict.fromkeys(files)
    return list(found)


def load_case(path: Path) -> Case:
    """Read a case file, and the file of examples that its `few_shot` may name; ConfigError if they are not valid."""

    def read_examples(name: str) -> Any:
        file = path.parent / name
        try:
            return yaml.safe_load(_text_of(file))
        except yaml.YAMLError as error:
            raise ConfigError(f"{file}: not valid YAML: {error}") from None

    return read_case(str(path), _text_of(path), read_examples)


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not valid UTF-8"
        raise ConfigError(f"{path}: cannot be read: {reason}.") from None
