"""The promolecular density: atoms integrate to their electrons, grids to the molecule's, wherever the nuclei lie."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rdkit import Chem
from samples import at_most, sample

from mcp_mirror.demo.density import (
    CUTOFF,
    POINTS,
    RADIAL_STEP,
    VOXEL,
    MoleculeError,
    Structure,
    build_structure,
    charge_shells,
    count_electrons,
    density_grid,
    radial_table,
    read_shells,
    round_significant,
    shell_density,
)
from mcp_mirror.demo.similarity import find_smiles

ELEMENTS = sorted(read_shells())
FEW_ATOMS = [
    "[H][H]", "O", "C", "N#N", "Cl", "Br", "I", "ClC(Cl)(Cl)Cl", "BrC(Br)Br", "IC(I)(I)I", "FC(F)(F)F", "C[Si](C)(C)C",
    "OB(O)O", "OP(=O)(O)O", "OS(=O)(=O)O", "C[N+](C)(C)C", "CC(=O)[O-]", "[NH4+]", "[Cl-]", "[Na+]", "C[Se]C",
    "c1ccccc1I",     "CN1C=NC2=C1C(=O)N(C(=O)N2C)C", "C[N+](=O)[O-]", "Brc1ccc(I)cc1",
]  # fmt: skip


@pytest.mark.parametrize("element", ELEMENTS)
def test_the_shells_of_an_element_hold_its_electrons(element: str) -> None:
    electrons = sum(shell.electrons for shell in read_shells()[element])
    assert electrons == Chem.GetPeriodicTable().GetAtomicNumber(element)


def test_the_elements_of_organic_molecules_are_tabulated() -> None:
    assert {"H", "B", "C", "N", "O", "F", "Si", "P", "S", "Cl", "Br", "I"} <= set(ELEMENTS)


@pytest.mark.parametrize("element", ["H", "C", "O", "Cl", "I"])
def test_a_shell_density_integrates_to_its_electrons(element: str) -> None:
    radii = np.geomspace(1e-6, 30.0, 20_000)
    for shell in read_shells()[element]:
        integral = np.trapezoid(4.0 * np.pi * radii**2 * shell_density(shell, radii), radii)
        assert integral == pytest.approx(shell.electrons, rel=1e-4)


@pytest.mark.parametrize("element", ELEMENTS)
def test_a_smeared_atom_keeps_its_electrons_and_falls_off_outwards(element: str) -> None:
    table = radial_table(element, 0)
    radii = np.arange(len(table)) * RADIAL_STEP
    assert radii[-1] == pytest.approx(CUTOFF)
    integral = np.trapezoid(4.0 * np.pi * radii**2 * table, radii)
    assert integral == pytest.approx(Chem.GetPeriodicTable().GetAtomicNumber(element), rel=1e-5)
    assert (np.diff(table) < 0.0).all()
    assert table[-1] < 1e-6


def test_a_charge_leaves_the_outermost_shell() -> None:
    shells = read_shells()["Na"]
    assert [shell.electrons for shell in charge_shells(shells, 1)] == [2.0, 2.0, 6.0, 0.0]
    with pytest.raises(ValueError, match="outermost shell"):
        charge_shells(shells, 2)


@pytest.mark.parametrize("smiles", sample(FEW_ATOMS, FEW_ATOMS[::8].__contains__))
def test_a_grid_integrates_to_the_electron_count(smiles: str) -> None:
    structure = build_structure(smiles)
    mol = Chem.AddHs(Chem.MolFromSmiles(smiles))
    expected = sum(atom.GetAtomicNum() for atom in mol.GetAtoms()) - Chem.GetFormalCharge(mol)
    assert structure.electrons == expected
    assert count_electrons(round_significant(density_grid(structure))) == pytest.approx(expected, rel=0.002)


@at_most(20)
@given(
    element=st.sampled_from(["H", "C", "Cl", "I"]),
    offset=st.tuples(*[st.floats(-VOXEL, VOXEL, allow_nan=False)] * 3),
)
def test_an_atom_keeps_its_electrons_wherever_it_lies_between_the_points(
    element: str, offset: tuple[float, float, float]
) -> None:
    atom = Structure((element,), (0,), np.array([offset]))
    assert count_electrons(density_grid(atom)) == pytest.approx(atom.electrons, rel=0.002)


def test_a_grid_has_its_documented_shape_with_the_molecule_centred() -> None:
    grid = density_grid(build_structure("C"))
    assert grid.shape == (POINTS, POINTS, POINTS)
    assert (grid >= 0.0).all()
    centre = np.array([np.average(np.arange(POINTS), weights=grid.sum(axis=axes)) for axes in [(1, 2), (0, 2), (0, 1)]])
    assert np.abs(centre - (POINTS - 1) / 2.0).max() < 3.0


@pytest.mark.slow
def test_one_description_gives_one_grid() -> None:
    first, second = (density_grid(build_structure("CC(C)Cc1ccc(cc1)C(C)C(=O)O")) for _ in range(2))
    assert np.array_equal(first, second)


def test_a_molecule_too_long_for_the_box_is_refused() -> None:
    with pytest.raises(MoleculeError, match=r"angstrom long and the grid has room for 19\.6"):
        density_grid(build_structure("C#CC#CC#CC#CC#CC#CC#CC#CC#C"))


def test_an_atom_near_a_wall_is_refused() -> None:
    structure = build_structure("O")
    with pytest.raises(MoleculeError, match="Give a smaller molecule"):
        density_grid(replace(structure, positions=structure.positions + 10.0))


@pytest.mark.parametrize(
    ("description", "message"),
    [
        ("", "neither a valid SMILES nor a name"),
        ("no such thing", "neither a valid SMILES nor a name"),
        ("C1CC", "neither a valid SMILES nor a name"),
        ("CC(=O)[O-].[Na+]", "several parts"),
        ("[Fe]", "No density is tabulated for Fe"),
        ("C" * 200, "at most 400"),
    ],
)
def test_an_unusable_description_error_names_the_expected_input(description: str, message: str) -> None:
    with pytest.raises(MoleculeError, match=message):
        build_structure(description)


def test_a_charge_that_no_atom_can_bear_is_refused() -> None:
    with pytest.raises(MoleculeError, match="No density for Na"):
        density_grid(Structure(("Na",), (3,), np.zeros((1, 3))))


@pytest.mark.parametrize("name", ["caffeine", "Caffeine", " CAFFEINE ", "1,3,7-trimethylxanthine"])
def test_a_library_name_in_any_case_is_a_description(name: str) -> None:
    assert find_smiles(name) == "CN1C=NC2=C1C(=O)N(C(=O)N2C)C"


def test_any_other_description_stays_as_it_is() -> None:
    assert find_smiles("CCO") == "CCO"


@given(st.lists(st.floats(1e-14, 1e4), min_size=1, max_size=50))
def test_rounded_values_are_close_and_short(values: list[float]) -> None:
    array = np.array([*values, 0.0])
    rounded = round_significant(array)
    assert np.allclose(rounded, array, rtol=5.1e-6, atol=0.0)
    for value in rounded.tolist():
        digits = repr(value).split("e", maxsplit=1)[0].replace(".", "").strip("0")
        assert len(digits) <= 6
