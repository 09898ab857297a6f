"""The descriptor: equal for a rotated molecule, different for all other molecules of the library."""

import os
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from rdkit import Chem
from samples import sample as as_sample

from mcp_mirror.demo.density import Structure, build_structure, density_grid
from mcp_mirror.demo.similarity import (
    GridError,
    describe_grid,
    rank_samples,
    read_descriptors,
    read_samples,
    score_samples,
    to_grid,
)

TURNED = [
    "water", "butane", "isobutane", "1-propanol", "2-propanol", "o-xylene", "m-xylene", "p-xylene", "o-cresol",
    "m-cresol", "p-cresol", "leucine", "isoleucine", "alanine", "beta-alanine", "maleic acid", "fumaric acid",
    "pyrimidine", "pyrazine", "pyridazine", "quinoline", "isoquinoline",
    "1,2-dichlorobenzene", "1,3-dichlorobenzene", "1,4-dichlorobenzene",
    "iodoform", "caffeine", "aspirin",
]  # fmt: skip
CHOSEN = TURNED if "FULL_SIZE" in os.environ else TURNED[::3]
"""`make soak` takes all."""
NAMES = [sample.name for sample in read_samples()]


def structure_of(name: str) -> Structure:
    return build_structure(read_samples()[NAMES.index(name)].smiles)


def turned(structure: Structure, seed: int) -> Structure:
    """The same molecule under a rotation drawn evenly from all (a unit quaternion) and a shift below a voxel."""
    rng = np.random.default_rng(seed)
    w, x, y, z = (quaternion := rng.normal(size=4)) / np.linalg.norm(quaternion)
    rotation = np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ]
    )
    return replace(structure, positions=structure.positions @ rotation.T + rng.uniform(-0.1, 0.1, size=3))


def test_the_library_has_200_samples_of_different_structures() -> None:
    samples = read_samples()
    assert len(samples) >= 200
    keys = [name.casefold() for sample in samples for name in (sample.name, *sample.synonyms)]
    assert len(set(keys)) == len(keys)
    structures = [Chem.MolToSmiles(Chem.MolFromSmiles(sample.smiles)) for sample in samples]
    assert len(set(structures)) == len(structures)


def test_the_library_contains_no_mirror_images() -> None:
    flat = [Chem.MolToSmiles(Chem.MolFromSmiles(sample.smiles), isomericSmiles=False) for sample in read_samples()]
    same = {NAMES[i] for i, smiles in enumerate(flat) if flat.count(smiles) > 1}
    assert same == {"fumaric acid", "maleic acid"}


def test_every_sample_has_a_descriptor_of_its_own() -> None:
    descriptors = read_descriptors()
    assert descriptors.shape[0] == len(NAMES)
    assert np.isfinite(descriptors).all()
    assert all(rank_samples(row, descriptors, 1)[0][0] == i for i, row in enumerate(descriptors))


@pytest.mark.parametrize("name", ["water", "o-xylene", "caffeine"])
def test_the_shipped_descriptors_are_those_that_the_code_computes(name: str) -> None:
    computed = describe_grid(density_grid(structure_of(name)))
    assert np.allclose(computed, read_descriptors()[NAMES.index(name)], rtol=1e-3)


@pytest.mark.parametrize("name", as_sample(CHOSEN, CHOSEN[::6].__contains__))
def test_a_turned_molecule_ranks_itself_first_by_a_clear_margin(name: str) -> None:
    structure = structure_of(name)
    for seed in (TURNED.index(name), 1000 + TURNED.index(name)):
        descriptor = describe_grid(density_grid(turned(structure, seed)))
        (first, best), (_, second) = rank_samples(descriptor, read_descriptors(), 2)
        assert NAMES[first] == name
        assert 1.0 - second > 5.0 * (1.0 - best)


def test_the_next_after_caffeine_are_the_other_xanthines() -> None:
    row = NAMES.index("caffeine")
    ranked = rank_samples(read_descriptors()[row], read_descriptors(), 3)
    assert {NAMES[i] for i, _ in ranked} == {"caffeine", "theophylline", "theobromine"}


@given(st.integers(0, len(NAMES) - 1))
def test_a_descriptor_is_wholly_alike_to_itself_and_less_so_to_others(row: int) -> None:
    scores = score_samples(read_descriptors()[row], read_descriptors())
    assert scores[row] == 1.0
    assert (np.delete(scores, row) < 1.0).all()
    assert (scores >= 0.0).all()


def test_a_smaller_cube_of_the_same_voxels_is_described_alike() -> None:
    grid = density_grid(structure_of("water"))
    assert np.allclose(describe_grid(grid), describe_grid(grid[24:104, 24:104, 24:104]), rtol=1e-3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: "molecules-1/raw_grid", "contains something that is not a number"),
        (lambda: [[[1.0, "x"]]], "contains something that is not a number"),
        (lambda: [[1.0, 2.0], [3.0]], "uneven"),
        (lambda: {"raw_grid": []}, "contains something that is not a number"),
        (lambda: None, "this has the shape"),
        (list, r"this has the shape \[0\]"),
        (lambda: np.ones((16, 16)), r"this has the shape \[16, 16\]"),
        (lambda: np.ones((16, 16, 17)), r"this has the shape \[16, 16, 17\]"),
        (lambda: np.ones((4, 4, 4)), r"this has the shape \[4, 4, 4\]"),
        (lambda: np.ones((129, 129, 129)), r"this has the shape \[129, 129, 129\]"),
        (lambda: np.zeros((16, 16, 16)), "sum is not positive"),
        (lambda: np.full((16, 16, 16), np.nan), "not finite"),
    ],
)
def test_an_unusable_grid_error_names_the_cause(make: Callable[[], object], message: str) -> None:
    with pytest.raises(GridError, match=message):
        to_grid(make())


def test_nested_lists_are_a_grid() -> None:
    values: NDArray[np.float64] = np.arange(512, dtype=np.float64).reshape(8, 8, 8)
    assert np.array_equal(to_grid(values.tolist()), values)
