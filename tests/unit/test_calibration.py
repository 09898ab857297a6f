"""The scripts that fit the table of token costs. Their own libraries are installed only to run them."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parents[2] / "calibration").glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_script_imports_names_that_the_package_has(script: Path) -> None:
    for node in ast.walk(ast.parse(script.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mcp_mirror"):
            module = import_module(node.module or "")
            assert [name.name for name in node.names if not hasattr(module, name.name)] == []
