"""Converts a SMILES to the atoms of one conformer in space, with RDKit. It must not know grids.

The embedding is ETKDGv3 (S. Wang, J. Witte, G. Landrum and S. Riniker, J. Chem. Inf. Model. 60, 2044 (2020),
doi:10.1021/acs.jcim.0c00025) with a fixed seed, relaxed with MMFF94s (T. A. Halgren, J. Comput. Chem. 20, 720 (1999))
where its parameters cover the molecule: one SMILES gives one conformer.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from rdkit import Chem, rdBase
from rdkit.Chem import rdDistGeom, rdForceFieldHelpers

from mcp_mirror.demo.atoms import Floats, read_shells

SEED = 20250601
MAX_ATOMS = 400


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


def _read_smiles(smiles: str) -> Chem.Mol | None:
    """Return the molecule; None if the text is not a SMILES, which RDKit then does not log."""
    with rdBase.BlockLogs():
        mol: Chem.Mol | None = Chem.MolFromSmiles(smiles.strip())
    return mol


def parse_smiles(smiles: str) -> Chem.Mol:
    """Return the molecule with explicit hydrogens.

    Raises:
        MoleculeError: The text is not a SMILES, or has several molecules, too many atoms, or an unknown element.
    """
    mol = _read_smiles(smiles)
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
    """Return the positions (atoms x 3, angstrom) of the one conformer that the fixed seed gives.

    Raises:
        MoleculeError: The molecule has no geometry that satisfies its bonds.
    """
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
    """Return the atoms of the molecule that the SMILES describes.

    Raises:
        MoleculeError: See `parse_smiles` and `embed`.
    """
    mol = parse_smiles(smiles)
    positions = align(embed(mol))
    atoms = list(mol.GetAtoms())
    return Structure(tuple(a.GetSymbol() for a in atoms), tuple(a.GetFormalCharge() for a in atoms), positions)
