"""The included library of small molecules: names, SMILES, synonyms, and the descriptors of their density grids."""

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np

from mcp_mirror.demo.atoms import Floats

DESCRIPTORS = "data/descriptors.npy"


@dataclass(frozen=True)
class Sample:
    """One molecule of the library."""

    name: str
    smiles: str
    synonyms: tuple[str, ...]


@cache
def read_samples() -> tuple[Sample, ...]:
    """Return the samples in the order of the file."""
    text = files("mcp_mirror.demo").joinpath("data/library.csv").read_text(encoding="utf-8")
    return tuple(
        Sample(row["name"], row["smiles"], tuple(filter(None, row["synonyms"].split(";"))))
        for row in csv.DictReader(text.splitlines())
    )


@cache
def read_descriptors() -> Floats:
    """Return the descriptors, one row per sample in the same order, as `packaging/demo/build_library.py` wrote them."""
    with files("mcp_mirror.demo").joinpath(DESCRIPTORS).open("rb") as file:
        return np.asarray(np.load(file, allow_pickle=False), dtype=np.float64)


def find_smiles(description: str) -> str:
    """Return the SMILES of the sample with that name or synonym, in any case; any other description unchanged."""
    wanted = description.strip().casefold()
    for sample in read_samples():
        if wanted in {name.casefold() for name in (sample.name, *sample.synonyms)}:
            return sample.smiles
    return description
