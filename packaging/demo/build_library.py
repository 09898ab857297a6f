"""Build the descriptors of the demo's library of molecules: `python packaging/demo/build_library.py`.

Run it after a change of `data/library.csv`, of the atoms, the grid or the descriptor. The result depends on the version
of RDKit, which chooses the conformers of flexible molecules.
"""

from importlib.resources import files
from pathlib import Path

import numpy as np

from mcp_mirror.demo.density import build_structure, density_grid
from mcp_mirror.demo.similarity import DESCRIPTORS, describe_grid, read_samples

if __name__ == "__main__":
    described = [describe_grid(density_grid(build_structure(sample.smiles))) for sample in read_samples()]
    np.save(Path(str(files("mcp_mirror.demo").joinpath(DESCRIPTORS))), np.array(described, dtype=np.float32))
