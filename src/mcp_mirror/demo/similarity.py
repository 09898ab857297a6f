"""The library of small molecules, and a ranking of them by their likeness to a density grid.

The ranking compares descriptors of grids, which do not depend on the position and rotation of a molecule.

The descriptor is the spherically averaged power spectrum of the density,

    I(k) = < |F(k)|^2 > over the directions of k,   F(k) = integral of rho(r) exp(-i k.r) dr,

which only the distances between the electrons determine (P. Debye, Ann. Phys. 351, 809 (1915),
doi:10.1002/andp.19153510606): the curve that a powder or a solution of the molecule scatters. So a molecule and its
mirror image have one descriptor, and two conformers have two. Each value is an average over a spherical shell with a
Gaussian profile, because a cubic grid samples few directions of short k. It is divided by the number of electrons and
weighted by k, so that structure counts beside size: the descriptor is k I(k) / F(0).

The similarity of two descriptors a and b is 1 - |a - b| / sqrt(|a|^2 + |b|^2). Its square term is the index of E. E.
Hodgkin and W. G. Richards, Int. J. Quantum Chem. 32 (S14), 105 (1987), doi:10.1002/qua.560320814.
"""

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

from mcp_mirror.demo.density import POINTS, VOXEL, Floats, count_electrons

DESCRIPTORS = "data/descriptors.npy"

SHELL_RADII: Floats = np.arange(0.5, 32.0, 0.5, dtype=np.float64)
"""Radii of the shells in steps of the discrete transform: one step is 2 pi / 25.6 per angstrom."""

SHELL_WIDTH = 1.0
"""Standard deviation of a shell's profile, in the same steps."""

SMALLEST = 8


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


class GridError(ValueError):
    """A grid has no descriptor; the message has the cause."""


def to_grid(raw_grid: object) -> Floats:
    """Return nested lists of numbers as an array, shape (n, n, n) with 8 <= n <= 128; GridError for other values."""
    wanted = (
        f"raw_grid must be the {POINTS}x{POINTS}x{POINTS} nested list of numbers that generate_molecule_grid returns"
    )
    try:
        grid = np.asarray(raw_grid, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise GridError(f"{wanted}; this is uneven or contains something that is not a number.") from error
    if grid.ndim != 3 or len(set(grid.shape)) > 1 or not SMALLEST <= grid.shape[0] <= POINTS:  # noqa: PLR2004 - a cube has 3 axes
        raise GridError(f"{wanted}; this has the shape {list(grid.shape)}.")
    if not np.isfinite(grid).all() or grid.sum() <= 0.0:
        raise GridError(f"{wanted}; this contains a value that is not finite, or its sum is not positive.")
    return grid


@cache
def _lattice() -> tuple[NDArray[np.bool_], NDArray[np.int64], Floats, Floats]:
    """Return the constants of all grids.

    They are the points of the half-space transform that count, their squared radii and multiplicities, and the weight
    of each squared radius in each shell.
    """
    whole, half = np.fft.fftfreq(POINTS, 1.0 / POINTS), np.arange(POINTS // 2 + 1)
    squared = (whole[:, None, None] ** 2 + whole[None, :, None] ** 2 + half**2).astype(np.int64)
    limit = int((SHELL_RADII[-1] + 3.0 * SHELL_WIDTH) ** 2)
    mask = squared <= limit
    multiplicity = np.broadcast_to(np.where(half == 0, 1.0, 2.0), squared.shape)[mask]
    counts = np.bincount(squared[mask], weights=multiplicity, minlength=limit + 1)
    distances = (np.sqrt(np.arange(limit + 1)) - SHELL_RADII[:, None]) / SHELL_WIDTH
    weights = np.exp(-0.5 * distances**2)
    return mask, squared[mask], multiplicity, weights / (weights @ counts)[:, None]


def describe_grid(grid: Floats) -> Floats:
    """Return the descriptor of a grid of 0.2 angstrom voxels, one value per shell; a smaller cube is padded."""
    mask, squared, multiplicity, weights = _lattice()
    transform = np.fft.rfftn(grid, s=(POINTS,) * 3, axes=(0, 1, 2))[mask] * VOXEL**3
    power = (transform.real**2 + transform.imag**2) * multiplicity
    sums = np.bincount(squared, weights=power, minlength=weights.shape[1])
    descriptor: Floats = (weights @ sums) * SHELL_RADII / count_electrons(grid)
    return descriptor


def score_samples(descriptor: Floats, library: Floats) -> Floats:
    """Return the similarity of a descriptor to each row of the library: 1 for equal curves, 0 for disjoint ones."""
    distance = np.linalg.norm(library - descriptor, axis=1)
    norm = np.sqrt(np.sum(library**2, axis=1) + np.sum(descriptor**2))
    scores: Floats = 1.0 - distance / norm
    return scores


def rank_samples(descriptor: Floats, library: Floats, k: int) -> list[tuple[int, float]]:
    """Return index and similarity of the k most similar rows, best first; equal ones in the order of the library."""
    scores = score_samples(descriptor, library)
    order = np.argsort(-scores, kind="stable")[:k]
    return [(int(row), float(scores[row])) for row in order]
