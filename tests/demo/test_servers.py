"""Both demo servers with a real client over stdio."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
from gateway_processes import forked_upstream
from mcp import Client, StdioServerParameters
from mcp_types import CallToolResult, TextContent, Tool

from mcp_mirror.demo.density import VOXEL

LONGEST_WAIT = 90.0


@asynccontextmanager
async def client_of(module: str, cwd: Path | None = None) -> AsyncIterator[Client]:
    parameters = StdioServerParameters(**forked_upstream("-m", f"mcp_mirror.demo.{module}"), cwd=cwd)
    with anyio.fail_after(LONGEST_WAIT):
        async with Client(parameters) as client:
            yield client


def text_of(result: CallToolResult) -> str:
    (block,) = result.content
    assert isinstance(block, TextContent)
    return block.text


@pytest.mark.slow
async def test_a_grid_of_caffeine_comes_once_and_ranks_caffeine_first() -> None:
    async with client_of("molecules") as client:
        result = await client.call_tool("generate_molecule_grid", {"molecule_description": "Caffeine"})
        assert not result.is_error
        assert result.content == []
        assert result.structured_content is not None
        assert set(result.structured_content) == {"raw_grid", "shape"}
        assert result.structured_content["shape"] == [128, 128, 128]
        grid = np.asarray(result.structured_content["raw_grid"])
        assert grid.shape == (128, 128, 128)
        assert abs(grid.sum() * VOXEL**3 / 102 - 1.0) < 0.02

        arguments = {"raw_grid": result.structured_content["raw_grid"]}
        ranking = await client.call_tool("retrieve_similar_molecules", arguments)
        lines = text_of(ranking).splitlines()
        assert lines[0] == "Top-10 similar samples:"
        assert lines[1] == "1. caffeine (CN1C=NC2=C1C(=O)N(C(=O)N2C)C) score 1.0000"
        assert len(lines) == 11
        assert ranking.structured_content is None


async def test_mistakes_of_a_caller_are_tool_errors_that_say_what_to_give() -> None:
    cube = np.ones((16, 16, 16)).tolist()
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("generate_molecule_grid", {"molecule_description": "unobtainium"}, "Give the SMILES of one molecule"),
        ("generate_molecule_grid", {"molecule_description": "[Fe]"}, "No density is tabulated for Fe"),
        ("generate_molecule_grid", {"molecule_description": "C#C" + "C#C" * 8}, "Give a smaller molecule"),
        ("retrieve_similar_molecules", {"raw_grid": [[1.0]]}, "this has the shape [1, 1]"),
        ("retrieve_similar_molecules", {"raw_grid": "somewhere/raw_grid"}, "128x128x128"),
        ("retrieve_similar_molecules", {"raw_grid": cube, "k": 0}, "greater than or equal to 1"),
    ]
    async with client_of("molecules") as client:
        for tool, arguments, message in cases:
            result = await client.call_tool(tool, arguments)
            assert result.is_error
            assert message in text_of(result)


async def test_k_bounds_the_ranking() -> None:
    async with client_of("molecules") as client:
        result = await client.call_tool("retrieve_similar_molecules", {"raw_grid": np.ones((8, 8, 8)).tolist(), "k": 3})
        assert len(text_of(result).splitlines()) == 4


async def test_the_tools_are_read_only_and_say_what_they_take() -> None:
    tools: dict[str, Tool] = {}
    for module in ("molecules", "documents"):
        async with client_of(module) as client:
            tools |= {tool.name: tool for tool in (await client.list_tools()).tools}
    assert set(tools) == {"generate_molecule_grid", "retrieve_similar_molecules", "tika", "extract_sds"}
    for tool in tools.values():
        assert tool.annotations is not None
        assert tool.annotations.read_only_hint
        assert tool.description
    assert tools["retrieve_similar_molecules"].input_schema["required"] == ["raw_grid"]
    assert tools["generate_molecule_grid"].output_schema is not None
    assert "safety_data_sheet.pdf" in json.dumps(tools["tika"].input_schema)


async def test_the_shipped_sheet_goes_from_pdf_to_ingredients(tmp_path: Path) -> None:
    async with client_of("documents", cwd=tmp_path) as client:
        text = text_of(await client.call_tool("tika", {"pdf_path": "safety_data_sheet.pdf"}))
        result = await client.call_tool("extract_sds", {"content": text})
        assert result.structured_content is not None
        assert result.structured_content["product_name"] == "Brightwell GC-40 Glass and Surface Cleaner"
        assert [row["cas_rn"] for row in result.structured_content["ingredients"]] == [
            "67-63-0",
            "111-76-2",
            "1336-21-6",
        ]
        assert set(result.structured_content["ingredients"][0]) == {"name", "cas_rn", "concentration", "formula"}


async def test_a_missing_file_is_a_tool_error() -> None:
    async with client_of("documents") as client:
        result = await client.call_tool("tika", {"pdf_path": "/no/such/file.pdf"})
        assert result.is_error
        assert "No file at '/no/such/file.pdf'" in text_of(result)
