"""Writes the entry of the MCP registry: `entry.py OWNER/REPOSITORY FOLDER` writes FOLDER/server.json.

The registry accepts a name `io.github.OWNER/...` from a workflow of OWNER, and only if the description of the package
at PyPI contains the name. Therefore the entry is written at the release, and README.md gets the name before the build.
README.md is that description, so its relative links get the address of the repository, too.
"""

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
SCHEMA: Final = "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json"
DESCRIPTION: Final = "Keeps large results of your MCP servers out of the context; tools accept memory paths instead."
"""At most 100 characters."""
MARKER: Final = "mcp-name: "
_RELATIVE_LINK: Final = re.compile(r"(?P<image>!\[[^\]]*)?\]\((?!https?:)(?P<target>[^)\s]+)\)")


def make_entry(repository: str, project: dict[str, Any]) -> dict[str, Any]:
    """Return the entry.

    Args:
        repository: `OWNER/REPOSITORY` at GitHub.
        project: The table `project` of pyproject.toml.
    """
    owner = repository.partition("/")[0]
    package = {
        "registryType": "pypi",
        "identifier": project["name"],
        "version": project["version"],
        "runtimeHint": "uvx",
        "transport": {"type": "stdio"},
        "packageArguments": [{"type": "positional", "value": "serve"}],
        "environmentVariables": [
            {
                "name": "MCP_MIRROR_CONFIG",
                "description": "The YAML file that names your MCP servers, such as mcp-mirror.yaml.",
                "format": "filepath",
                "isRequired": True,
            }
        ],
    }
    return {
        "$schema": SCHEMA,
        "name": f"io.github.{owner}/{project['name']}",
        "title": project["name"],
        "description": DESCRIPTION,
        "repository": {"url": f"https://github.com/{repository}", "source": "github"},
        "version": project["version"],
        "packages": [package],
    }


def mark_readme(readme: str, name: str) -> str:
    """Return the README with the entry's name, which proves to the registry that the package belongs to it."""
    return readme if MARKER in readme else f"{readme.rstrip()}\n\n<!-- {MARKER}{name} -->\n"


def link_readme(readme: str, repository: str, version: str) -> str:
    """Return the README with links to the files of a version in place of relative links."""

    def link(found: re.Match[str]) -> str:
        image, target = found["image"] or "", found["target"]
        path = f"README.md{target}" if target.startswith("#") else target
        if image:
            return f"{image}](https://raw.githubusercontent.com/{repository}/v{version}/{path})"
        return f"](https://github.com/{repository}/blob/v{version}/{path})"

    return _RELATIVE_LINK.sub(link, readme)


def main(repository: str, folder: Path) -> None:
    """Write the entry into a folder, and its name and the links into README.md."""
    entry = make_entry(repository, tomllib.loads((ROOT / "pyproject.toml").read_text())["project"])
    folder.mkdir(exist_ok=True)
    (folder / "server.json").write_text(json.dumps(entry, indent=2) + "\n")
    readme = ROOT / "README.md"
    readme.write_text(mark_readme(link_readme(readme.read_text(), repository, entry["version"]), entry["name"]))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
