"""The promolecular electron density on a grid: the sum of the densities of its free, spherical atoms.

The promolecule is that of F. L. Hirshfeld, Theor. Chim. Acta 44, 129 (1977), doi:10.1007/BF00549096; the atoms are
those of `atoms`. All grids have the same spacing: 128 x 128 x 128 voxels of 0.2 angstrom, a cubic box of 25.6 angstrom
around the molecule. Values are in electrons per cubic angstrom.
"""

import numpy as np

from mcp_mirror.demo.atoms import CUTOFF, RADIAL_STEP, Floats, radial_table
from mcp_mirror.demo.structure import MoleculeError, Structure

POINTS = 128
VOXEL = 0.2
"""Edge of a voxel in angstrom."""

MARGIN = 3.0
"""Least distance in angstrom of a nucleus from the walls: under 1 % of the electrons of any organic atom lie beyond."""

DIGITS = 6
"""Significant digits of a value that leaves the server."""

_CENTRES: Floats = (np.arange(POINTS, dtype=np.float64) - (POINTS - 1) / 2.0) * VOXEL
_REACH = round(CUTOFF / VOXEL)


def check_fits(positions: Floats) -> None:
    """Check that all atoms are at least MARGIN away from the walls of the box.

    Raises:
        MoleculeError: The molecule is too long.
    """
    room = POINTS * VOXEL - 2.0 * MARGIN
    length = 2.0 * float(np.abs(positions).max())
    if length > room:
        raise MoleculeError(
            f"The molecule is {length:.1f} angstrom long and the grid has room for {room:.1f}. Give a smaller molecule."
        )


def add_atom(grid: Floats, position: Floats, table: Floats) -> None:
    """Add one atom's radial density to the voxels within its cutoff, by linear interpolation of the table."""
    nearest = np.rint(position / VOXEL + (POINTS - 1) / 2.0).astype(int)
    low, high = np.maximum(nearest - _REACH, 0), np.minimum(nearest + _REACH + 1, POINTS)
    window = tuple(slice(a, b) for a, b in zip(low, high, strict=True))
    x, y, z = (np.square(_CENTRES[s] - p) for s, p in zip(window, position, strict=True))
    steps = np.sqrt(x[:, None, None] + y[None, :, None] + z[None, None, :]) / RADIAL_STEP
    grid[window] += np.interp(steps, np.arange(len(table)), table, right=0.0)


def density_grid(structure: Structure) -> Floats:
    """Return the density of the structure, shape (128, 128, 128), in electrons per cubic angstrom.

    Raises:
        MoleculeError: The molecule does not fit into the box, or an atom's charge has no density.
    """
    check_fits(structure.positions)
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
