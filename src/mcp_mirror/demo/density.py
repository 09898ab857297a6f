"""The promolecular electron density of a molecule on a grid: from its SMILES to the sum of its free, spherical atoms.

The promolecule is that of F. L. Hirshfeld, Theor. Chim. Acta 44, 129 (1977), doi:10.1007/BF00549096. All grids have the
same spacing: 128 x 128 x 128 voxels of 0.2 angstrom, a cubic box of 25.6 angstrom around the molecule. Values are in
electrons per cubic angstrom.

Molecule: the embedding is ETKDGv3 (S. Wang, J. Witte, G. Landrum and S. Riniker, J. Chem. Inf. Model. 60, 2044 (2020),
doi:10.1021/acs.jcim.0c00025) with a fixed seed, relaxed with MMFF94s (T. A. Halgren, J. Comput. Chem. 20, 720 (1999))
where its parameters cover the molecule: one SMILES gives one conformer.

Atoms: an atom is its occupied shells. A shell nl with exponent zeta (1/bohr) is one single-zeta Slater orbital whose
density, averaged over the angles, is

    rho(r) = electrons * (2 zeta)^(2n+1) / (2n)! * r^(2n-2) * exp(-2 zeta r) / (4 pi)

(J. C. Slater, Phys. Rev. 36, 57 (1930), doi:10.1103/PhysRev.36.57) and integrates to its electrons exactly. The
exponents in `data/slater_exponents.csv` are those of E. Clementi and D. L. Raimondi, J. Chem. Phys. 38, 2686 (1963),
doi:10.1063/1.1733573 (Z <= 36), and E. Clementi, D. L. Raimondi and W. P. Reinhardt, J. Chem. Phys. 47, 1300 (1967),
doi:10.1063/1.1712084 (Z >= 37).

Each density is smeared by an isotropic Gaussian, as thermal motion smears it in a crystal (the Debye-Waller factor;
P. Debye, Ann. Phys. 348, 49 (1913), doi:10.1002/andp.19133480105). A core shell is far thinner than any affordable
voxel; smeared, it is sampled without loss wherever the nucleus lies between the grid points.
"""

import csv
import math
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rdkit import Chem, rdBase
from rdkit.Chem import rdDistGeom, rdForceFieldHelpers

SEED = 20250601
MAX_ATOMS = 400

BOHR = 0.529177210903
"""Length of 1 bohr in angstrom (CODATA 2018)."""

SMEARING = 0.14
"""Standard deviation of the Gaussian in angstrom: a mean square displacement of 0.0196 A^2, that of a cold crystal."""

CUTOFF = 12.0
"""Radius in angstrom past which an atom counts as empty: even the density of the most diffuse is below 1e-6 e/A^3."""

RADIAL_STEP = 0.01
"""Distance in angstrom between two entries of a radial table."""

Floats = NDArray[np.float64]

POINTS = 128
VOXEL = 0.2
"""Edge of a voxel in angstrom."""

MARGIN = 3.0
"""Least distance in angstrom of a nucleus from the walls: under 1 % of the electrons of any organic atom lie beyond."""

DIGITS = 6
"""Significant digits of a value that leaves the server."""

_CENTRES: Floats = (np.arange(POINTS, dtype=np.float64) - (POINTS - 1) / 2.0) * VOXEL
_REACH = round(CUTOFF / VOXEL)


class MoleculeError(ValueError):
    """A description does not give a molecule that the demo can compute; the message has the next step."""


@dataclass(frozen=True)
class Structure:
    """Atoms of one conformer: elements, formal charges, and positions (atoms x 3, in angstrom)."""

    elements: tuple[str, ...]
    charges: tuple[int, ...]
    positions: Floats

    @property
    def electrons(self) -> int:
        """Electron count: the nuclear charges minus the formal charges."""
        table = Chem.GetPeriodicTable()
        return sum(table.GetAtomicNumber(symbol) for symbol in self.elements) - sum(self.charges)


def parse_smiles(smiles: str) -> Chem.Mol:
    """Return the molecule with explicit hydrogens.

    Raises:
        MoleculeError: The text is not a SMILES, or has several molecules, too many atoms, or an unknown element.
    """
    with rdBase.BlockLogs():  # RDKit logs a text that is not a SMILES
        mol: Chem.Mol | None = Chem.MolFromSmiles(smiles.strip())
    if not mol or not mol.GetNumAtoms():
        raise MoleculeError(
            f"{smiles[:80]!r} is neither a valid SMILES nor a name in the library. "
            "Give the SMILES of one molecule, such as CCO, or a common name, such as ethanol."
        )
    if len(Chem.GetMolFrags(mol)) > 1:
        raise MoleculeError(f"{smiles[:80]!r} has several parts. Give the SMILES of one molecule, without a dot.")
    mol = Chem.AddHs(mol)
    if mol.GetNumAtoms() > MAX_ATOMS:
        raise MoleculeError(f"The molecule has {mol.GetNumAtoms()} atoms; give one with at most {MAX_ATOMS}.")
    unknown = {atom.GetSymbol() for atom in mol.GetAtoms()} - read_shells().keys()
    if unknown:
        raise MoleculeError(
            f"No density is tabulated for {', '.join(sorted(unknown))}. "
            f"Give a molecule of these elements: {', '.join(read_shells())}."
        )
    return mol


def embed(mol: Chem.Mol) -> Floats:
    """Return the positions (atoms x 3, angstrom) of the conformer of the fixed seed; MoleculeError without one."""
    parameters: Any = rdDistGeom.ETKDGv3()
    parameters.randomSeed = SEED
    if rdDistGeom.EmbedMolecule(mol, parameters) < 0:
        parameters.useRandomCoords = True
        if rdDistGeom.EmbedMolecule(mol, parameters) < 0:
            raise MoleculeError("No three-dimensional structure could be built. Give the SMILES of another molecule.")
    if rdForceFieldHelpers.MMFFHasAllMoleculeParams(mol):
        rdForceFieldHelpers.MMFFOptimizeMolecule(mol, mmffVariant="MMFF94s", maxIters=2000)
    return np.asarray(mol.GetConformer().GetPositions(), dtype=np.float64)


def align(positions: Floats) -> Floats:
    """Rotate the principal axes of the atoms to x, y, z, longest first, and center the bounding box at zero."""
    centred = positions - positions.mean(axis=0)
    _, axes = np.linalg.eigh(centred.T @ centred)
    turned = centred @ axes[:, ::-1]
    middle: Floats = turned - (turned.max(axis=0) + turned.min(axis=0)) / 2.0
    return middle


def build_structure(smiles: str) -> Structure:
    """Return the atoms of the molecule that the SMILES describes; errors as of `parse_smiles` and `embed`."""
    mol = parse_smiles(smiles)
    positions = align(embed(mol))
    atoms = list(mol.GetAtoms())
    return Structure(tuple(a.GetSymbol() for a in atoms), tuple(a.GetFormalCharge() for a in atoms), positions)


@dataclass(frozen=True)
class Shell:
    """Occupied shell: principal quantum number, electrons in it, Slater exponent in 1/bohr."""

    n: int
    electrons: float
    exponent: float


@cache
def read_shells() -> dict[str, tuple[Shell, ...]]:
    """Return the shells of each tabulated element by its symbol."""
    table: dict[str, tuple[Shell, ...]] = {}
    text = files("mcp_mirror.demo").joinpath("data/slater_exponents.csv").read_text(encoding="utf-8")
    for row in csv.DictReader(text.splitlines()):
        shell = Shell(int(row["shell"][0]), float(row["electrons"]), float(row["exponent"]))
        table[row["element"]] = (*table.get(row["element"], ()), shell)
    return table


def charge_shells(shells: tuple[Shell, ...], charge: int) -> tuple[Shell, ...]:
    """Take electrons from the outermost shells, or add them, in proportion; ValueError if the shells have fewer."""
    outermost = max(shell.n for shell in shells)
    valence = sum(shell.electrons for shell in shells if shell.n == outermost)
    if charge > valence:
        raise ValueError(f"a charge of {charge:+d} takes more electrons than the {valence:g} of the outermost shell")
    factor = (valence - charge) / valence
    return tuple(
        Shell(shell.n, shell.electrons * (factor if shell.n == outermost else 1.0), shell.exponent) for shell in shells
    )


def shell_density(shell: Shell, radii: Floats) -> Floats:
    """Return the shell's density in electrons per cubic angstrom at the radii (angstrom), not smeared."""
    decay = 2.0 * shell.exponent / BOHR
    norm = decay ** (2 * shell.n + 1) / math.factorial(2 * shell.n) / (4.0 * math.pi)
    density: Floats = shell.electrons * norm * radii ** (2 * shell.n - 2) * np.exp(-decay * radii)
    return density


@cache
def _radii() -> tuple[Floats, Floats]:
    """Return the radii of a table and, finer towards the nucleus, those of the densities that it smears (angstrom)."""
    table: Floats = np.arange(round(CUTOFF / RADIAL_STEP) + 1, dtype=np.float64) * RADIAL_STEP
    table[0] = 1e-4  # the formula of the convolution divides by the radius
    source: Floats = np.geomspace(1e-5, CUTOFF + 2.0, 1000, dtype=np.float64)
    return table, source


@cache
def _smearing() -> Floats:
    """Return the matrix that takes a spherical density at the source radii to the smeared one at the table radii.

    The convolution with a Gaussian of width s in three dimensions, its angles integrated out, is

        g(r) = 1 / (r s sqrt(2 pi)) * integral of r' f(r') [exp(-(r-r')^2/2s^2) - exp(-(r+r')^2/2s^2)] dr'

    and the trapezoidal rule makes it a matrix.
    """
    table, source = _radii()
    near = np.exp(-0.5 * ((table[:, None] - source) / SMEARING) ** 2)
    far = np.exp(-0.5 * ((table[:, None] + source) / SMEARING) ** 2)
    steps = np.diff(source, prepend=source[0], append=source[-1])
    weights = source * (steps[1:] + steps[:-1]) / 2.0
    kernel: Floats = (near - far) * weights / (table[:, None] * SMEARING * math.sqrt(2.0 * math.pi))
    return kernel


@lru_cache(maxsize=64)
def radial_table(element: str, charge: int) -> Floats:
    """Return the smeared density of an atom at 0, RADIAL_STEP, 2 RADIAL_STEP, ... up to CUTOFF.

    Electrons per cubic angstrom; the table's own integral is the atom's electron count.

    Raises:
        KeyError: The element is not tabulated.
        ValueError: The charge takes more electrons than the outermost shell has.
    """
    shells = charge_shells(read_shells()[element], charge)
    radii, source = _radii()
    table: Floats = _smearing() @ np.sum([shell_density(shell, source) for shell in shells], axis=0)
    electrons = sum(shell.electrons for shell in shells)
    integral = float(np.trapezoid(4.0 * math.pi * radii**2 * table, radii))
    return table * (electrons / integral) if electrons else table * 0.0


def add_atom(grid: Floats, position: Floats, table: Floats) -> None:
    """Add one atom's radial density to the voxels within its cutoff, by linear interpolation of the table."""
    nearest = np.rint(position / VOXEL + (POINTS - 1) / 2.0).astype(int)
    low, high = np.maximum(nearest - _REACH, 0), np.minimum(nearest + _REACH + 1, POINTS)
    window = tuple(slice(a, b) for a, b in zip(low, high, strict=True))
    x, y, z = (np.square(_CENTRES[s] - p) for s, p in zip(window, position, strict=True))
    steps = np.sqrt(x[:, None, None] + y[None, :, None] + z[None, None, :]) / RADIAL_STEP
    grid[window] += np.interp(steps, np.arange(len(table)), table, right=0.0)


def density_grid(structure: Structure) -> Floats:
    """Return the density, shape (128, 128, 128), in electrons per cubic angstrom; MoleculeError without one."""
    room, length = POINTS * VOXEL - 2.0 * MARGIN, 2.0 * float(np.abs(structure.positions).max())
    if length > room:
        raise MoleculeError(
            f"The molecule is {length:.1f} angstrom long and the grid has room for {room:.1f}. Give a smaller molecule."
        )
    grid = np.zeros((POINTS, POINTS, POINTS))
    for element, charge, position in zip(structure.elements, structure.charges, structure.positions, strict=True):
        try:
            table = radial_table(element, charge)
        except ValueError as error:
            raise MoleculeError(f"No density for {element}: {error}.") from error
        add_atom(grid, position, table)
    return grid


def count_electrons(grid: Floats) -> float:
    """Return the integral of the density over the box."""
    return float(grid.sum()) * VOXEL**3


def round_significant(grid: Floats, digits: int = DIGITS) -> Floats:
    """Round non-negative values to significant decimal digits.

    Each is an integer over an exact power of ten, so that its shortest decimal form has at most `digits` digits.
    """
    exponent = np.floor(np.log10(grid, where=grid > 0.0, out=np.zeros_like(grid)))
    scale = 10.0 ** (digits - 1 - exponent)
    rounded: Floats = np.rint(grid * scale) / scale
    return rounded
