"""Build the descriptors of the library: `python -m mcp_mirror.demo.build_library`.

Run it after a change of `data/library.csv`, of the atoms, the grid or the descriptor. The result depends on the version
of RDKit, which chooses the conformers of flexible molecules.
"""

from pathlib import Path

import numpy as np

from mcp_mirror.demo.density import density_grid
from mcp_mirror.demo.library import DESCRIPTORS, Sample, read_samples
from mcp_mirror.demo.similarity import describe_grid
from mcp_mirror.demo.structure import build_structure


def describe_sample(sample: Sample) -> np.ndarray:
    """Return the descriptor of a sample's own grid."""
    return describe_grid(density_grid(build_structure(sample.smiles)))


def main() -> None:
    """Write the descriptors beside the library, one row per sample."""
    rows = np.array([describe_sample(sample) for sample in read_samples()], dtype=np.float32)
    np.save(Path(__file__).parent / DESCRIPTORS, rows, allow_pickle=False)


if __name__ == "__main__":
    main()
