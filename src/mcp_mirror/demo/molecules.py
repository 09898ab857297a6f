"""The molecules server: `python -m mcp_mirror.demo.molecules` (stdio).

One tool returns a grid of two million numbers, the other takes one.
"""

from typing import Annotated, Any

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, ToolAnnotations
from pydantic import BaseModel, Field, SkipValidation, WithJsonSchema

from mcp_mirror.demo.density import MoleculeError, build_structure, density_grid, round_significant
from mcp_mirror.demo.similarity import (
    GridError,
    describe_grid,
    find_smiles,
    rank_samples,
    read_descriptors,
    read_samples,
    to_grid,
)

READ_ONLY = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)

_NUMBERS: dict[str, Any] = {
    "type": "array",
    "items": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
}
_ROWS: dict[str, Any] = {"type": "array", "items": {"type": "array"}}
"""The schema of the grid in the output schema: a validator checks 128 rows, not two million numbers."""


class MoleculeGrid(BaseModel):
    """An electron density on a cubic grid."""

    raw_grid: Annotated[
        SkipValidation[list[Any]],
        WithJsonSchema(
            {
                **_ROWS,
                "description": "128x128x128 electrons per cubic angstrom; their sum times 0.008 is the electron count",
            }
        ),
    ]
    shape: Annotated[list[int], Field(description="[128, 128, 128]")]


server: MCPServer[Any] = MCPServer(
    "molecules",
    instructions="Electron density grids of molecules, and the known molecules whose density is most alike.",
    log_level="WARNING",
)


@server.tool(annotations=READ_ONLY)
def generate_molecule_grid(
    molecule_description: Annotated[
        str,
        Field(description="SMILES of one molecule, such as CCO, or a common name, such as caffeine", max_length=2000),
    ],
) -> Annotated[CallToolResult, MoleculeGrid]:
    """Compute the promolecular electron density of a molecule on a grid of 128x128x128 voxels of 0.2 angstrom."""
    try:
        grid = density_grid(build_structure(find_smiles(molecule_description)))
    except MoleculeError as error:
        raise ToolError(str(error)) from error
    values = round_significant(grid)
    # Only structured content. Many servers repeat it as text, which would double the size.
    return CallToolResult(content=[], structured_content={"raw_grid": values.tolist(), "shape": list(values.shape)})


@server.tool(annotations=READ_ONLY, structured_output=False)
def retrieve_similar_molecules(
    raw_grid: Annotated[
        Any, WithJsonSchema({**_NUMBERS, "description": "The raw_grid of generate_molecule_grid: 128x128x128 numbers"})
    ],
    k: Annotated[int, Field(description="How many molecules to list", ge=1, le=100)] = 10,
) -> str:
    """Rank the molecules of a library by how alike their electron density is to a grid's, however it is turned."""
    try:
        descriptor = describe_grid(to_grid(raw_grid))
    except GridError as error:
        raise ToolError(str(error)) from error
    samples = read_samples()
    ranked = rank_samples(descriptor, read_descriptors(), k)
    lines = [
        f"{i}. {samples[row].name} ({samples[row].smiles}) score {score:.4f}"
        for i, (row, score) in enumerate(ranked, 1)
    ]
    return "\n".join([f"Top-{len(lines)} similar samples:", *lines])


def main() -> None:
    """Serve on stdin and stdout until the client disconnects."""
    server.run("stdio")


if __name__ == "__main__":
    main()
