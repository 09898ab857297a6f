"""Options of the command line and of a profile, combined to a matrix; the command line overrides the profile."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mcp_mirror.errors import ConfigError
from mcp_mirror.evals.matrix import PLAIN, Matrix, Model, check_style
from mcp_mirror.evals.profiles import MatrixProfile, Profiles, find_cases, load_case, read_profiles


@dataclass(frozen=True, slots=True)
class Options:
    """The given options of the command line; the profile has the rest."""

    cases: Sequence[str]
    profile: str | None
    """FILE:NAME."""
    model: Mapping[str, Any]
    """Members of a `Model`."""
    matrix: Mapping[str, Any]
    """Members of a `Matrix`; `variants` are names."""


def read_matrix(options: Options) -> Matrix:
    """Combine the options with the profile.

    Raises:
        ConfigError: A file, a case or a name in it cannot be used, or an option is missing.
    """
    profiles, profile, folder = _read_profile(options.profile)
    names = options.matrix.get("variants", profile.variants) or (PLAIN,)
    files = find_cases(options.cases) if options.cases else find_cases(profile.cases, folder)
    if not files:
        raise ConfigError("No cases are given. Name case files or a folder.")
    return Matrix(
        cases=[load_case(path) for path in files],
        models=_models(options, profiles, profile),
        styles=[check_style(name) for name in options.matrix.get("styles", profile.notice)],
        variants={name: _variant(profiles, name) for name in names},
        few_shot=options.matrix.get("few_shot", profile.few_shot),
        gateway=options.matrix.get("gateway", profile.gateway),
        repeats=options.matrix.get("repeats", profile.repeats),
        seed=options.matrix.get("seed", profile.seed),
    )


def _models(options: Options, profiles: Profiles, profile: MatrixProfile) -> list[Model]:
    models = [replace(profiles.models.get(name, Model(name)), **options.model) for name in profile.models]
    models = models or [Model(**{"name": options.model.get("model", ""), **options.model})]
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


def _variant(profiles: Profiles, name: str) -> Mapping[str, Any]:
    if name != PLAIN and name not in profiles.variants:
        names = ", ".join(profiles.variants) or "none"
        raise ConfigError(f"--variant: unknown variant {name!r}. The profile file has: {names}.")
    return profiles.variants.get(name, {})
