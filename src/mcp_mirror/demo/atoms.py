"""Spherical electron densities of single atoms, from tabulated Slater exponents.

An atom is its occupied shells. A shell nl with exponent zeta (1/bohr) is one single-zeta Slater orbital whose density,
averaged over the angles, is

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

import numpy as np
from numpy.typing import NDArray

BOHR = 0.529177210903
"""Length of 1 bohr in angstrom (CODATA 2018)."""

SMEARING = 0.14
"""Standard deviation of the Gaussian in angstrom: a mean square displacement of 0.0196 A^2, that of a cold crystal."""

CUTOFF = 12.0
"""Radius in angstrom past which an atom counts as empty: even the density of the most diffuse is below 1e-6 e/A^3."""

RADIAL_STEP = 0.01
"""Distance in angstrom between two entries of a radial table."""

Floats = NDArray[np.float64]


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
    """Take `charge` electrons (add them, if negative) from the outermost shells, in proportion to their electrons.

    Raises:
        ValueError: The outermost shells have fewer electrons than the charge takes.
    """
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
