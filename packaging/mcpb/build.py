"""Builds an MCP bundle with the official tool: `build.py FOLDER` writes FOLDER/mcp-mirror-VERSION.mcpb.

The bundle has the sources of the package. The client installs its dependencies with uv (server type `uv`).
"""

import json
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TOOL = HERE / "node_modules" / ".bin" / "mcpb"
FILES = ("pyproject.toml", "README.md", "LICENSE")


def build(target: Path) -> Path:
    """Validate and pack the bundle, and return its file."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    manifest = json.loads((HERE / "manifest.json").read_text()) | {"version": version}
    bundle = target.absolute() / f"mcp-mirror-{version}.mcpb"
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        content = Path(folder)
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "src" / "mcp_mirror", content / "src" / "mcp_mirror", ignore=ignored)
        for name in FILES:
            shutil.copy(ROOT / name, content / name)
        (content / "manifest.json").write_text(json.dumps(manifest, indent=2))
        for command in (["validate", "manifest.json"], ["pack", ".", str(bundle)]):
            subprocess.run([TOOL, *command], cwd=content, check=True)
    return bundle


if __name__ == "__main__":
    print(build(Path(sys.argv[1])))
