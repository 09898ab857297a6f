"""What a command line and the profile that it names ask for together, as a matrix; the command line wins."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mcp_mirror.errors import ConfigError
from mcp_mirror.evals.matrix import PLAIN, Matrix, Model, check_style
from mcp_mirror.evals.profiles import MatrixProfile, Profiles, find_cases, load_case, read_profiles


@dataclass(frozen=True, slots=True)
class Asked:
    """The command line, as far as it says something; the rest is the profile's."""

    cases: Sequence[str]
    profile: str | None
    """FILE:NAME."""
    model: Mapping[str, Any]
    """Members of a `Model`."""
    matrix: Mapping[str, Any]
    """Members of a `Matrix`; of variants the names."""


def read_matrix(asked: Asked) -> Matrix:
    """All that is asked for.

    Raises:
        ConfigError: A file, a case or a name in it cannot be used, or something is missing.
    """
    profiles, wanted, folder = _profiled(asked.profile)
    names = asked.matrix.get("variants", wanted.variants) or (PLAIN,)
    files = find_cases(asked.cases) if asked.cases else find_cases(wanted.cases, folder)
    if not files:
        raise ConfigError("Say which cases: files, or a folder of them.")
    return Matrix(
        cases=[load_case(path) for path in files],
        models=_models(asked, profiles, wanted),
        styles=[check_style(name) for name in asked.matrix.get("styles", wanted.notice)],
        variants={name: _variant(profiles, name) for name in names},
        few_shot=asked.matrix.get("few_shot", wanted.few_shot),
        gateway=asked.matrix.get("gateway", wanted.gateway),
        repeats=asked.matrix.get("repeats", wanted.repeats),
        seed=asked.matrix.get("seed", wanted.seed),
    )


def _models(asked: Asked, profiles: Profiles, wanted: MatrixProfile) -> list[Model]:
    models = [replace(profiles.model(name), **asked.model) for name in wanted.models]
    models = models or [Model(**{"name": asked.model.get("model", ""), "base_url": "", **asked.model})]
    if not all(model.base_url and model.name for model in models):
        raise ConfigError("Say which model and where: --model and --base-url, or --profile FILE:NAME.")
    return models


def _profiled(named: str | None) -> tuple[Profiles, MatrixProfile, Path]:
    """A file's profiles, the matrix of that name or of the one model of that name, and the file's folder."""
    if named is None:
        return Profiles(), MatrixProfile(), Path()
    file, _, name = named.rpartition(":")
    if not file or not name:
        raise ConfigError(f"--profile wants FILE:NAME, such as evals/profiles.yaml:small; got {named!r}.")
    path = Path(file)
    profiles = read_profiles(path)
    if name in profiles.matrices:
        return profiles, profiles.matrices[name], path.parent
    if name in profiles.models:
        return profiles, MatrixProfile(models=(name,)), path.parent
    there = ", ".join((*profiles.matrices, *profiles.models)) or "none"
    raise ConfigError(f"{path}: there is no matrix or model {name!r}. There are {there}.")


def _variant(profiles: Profiles, name: str) -> Mapping[str, Any]:
    if name != PLAIN and name not in profiles.variants:
        there = ", ".join(profiles.variants) or "none"
        raise ConfigError(f"--variant: there is no variant {name!r} in the profile's file. There are {there}.")
    return profiles.variants.get(name, {})
