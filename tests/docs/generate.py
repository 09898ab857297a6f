"""Write the pages and drawings of the documentation that are generated from the code.

`make docs` and `make reference` run this file. `test_generated.py` checks that each generated file is current.
"""

import re
import tomllib
from collections import Counter
from collections.abc import Callable
from functools import partial
from html import escape, unescape
from pathlib import Path
from typing import Any, Final

import typer
from client_pages import CLIENT_PAGES, client_page
from typer.cli import get_docs_for_click

from mcp_mirror.cli.main import COMMANDS, load_command
from mcp_mirror.config.reference import example_file, reference_page

ROOT: Final = Path(__file__).parents[2]
CLI_PAGE: Final = ROOT / "docs" / "reference" / "cli.md"
KEYS_PAGE: Final = ROOT / "docs" / "reference" / "configuration-keys.md"
EXAMPLE: Final = ROOT / "configs" / "example.yaml"
LAYERS_DRAWING: Final = ROOT / "docs" / "assets" / "layers.svg"

_CLI_HEAD: Final = """\
# Command line

`mcp-mirror COMMAND --help` prints the text of a command. `make docs` generates this page from it.

"""
_COMMON_HEAD: Final = """\
## Common options

Each command names those that it has; all have `--help`.

"""
_REPLACED: Final = (
    (r"^(?:Example: )(.*)$", r"```console\n\1\n```"),
    (r"```\n\n```console\n(?!\$)", ""),  # one block for all examples
    (r"^\*\*Usage\*\*:\n\n```console\n\$ .* \[OPTIONS\]\n```\n\n", ""),  # nothing else follows the command
    (r"^\*\*Usage\*\*:\n\n```console\n\$ (.*)\n```", r"Usage: `\1`"),
    (r"^\*\*Arguments\*\*:\n\n((?:\* .*\n)+)\n(?=\*)", r"\1"),  # one list with the options
    (r"^\*\*Arguments\*\*:\n\n", ""),
    (r"^\*\*Commands\*\*:\n\n(?:\* .*\n)+\n", ""),  # their sections follow
    (r"\n{3,}", "\n\n"),
)
"""Patterns in the text of `typer utils docs`, and what replaces them."""
_MANY: Final = 5
"""Commands with the same option, from which on it is a common one."""
_CLI_END: Final = """\
## Exit codes

| code | meaning |
|---|---|
| 0 | success |
| 1 | `check` or `doctor` found a problem; `lock` could not reach an upstream; `lock --check` found a difference |
| 1 | `call` failed; `install --all` or `uninstall --all` left a file that it cannot use; an unexpected error |
| 2 | the command line, the configuration, the store, a file, an address or a memory path cannot be used |
| 130 | stopped by Ctrl-C |

## Signals

| signal | effect on `serve` |
|---|---|
| SIGHUP | reads the configuration again; so does `serve --watch` when the file changes |
| SIGTERM, Ctrl-C | [graceful shutdown](../operations/faults.md#graceful-shutdown); a second signal ends it at once |

A configuration with an error changes nothing, and the log reports it. The log names the keys that have changed, and
those that need a restart:

| changed | effect of a reload |
|---|---|
| a key of an upstream, also `accepts` or `labels` | it restarts; its calls have `server.drain` seconds to end |
| a limit [of upstreams](limits.md) | all upstreams restart |
| quotas and rates of calls, of `limits` and of `auth.principals` | they apply at once, to open sessions too |
| `store`, `server`, `audit`, `events`, `dashboard`, other keys of `limits` | none before the next start |
| `namespace_bytes` and `namespace_values` of `auth.principals`; authentication on or off | the same |
"""


def cli_page() -> str:
    """Return the Markdown page of all commands, in the form of `typer utils docs`."""
    sections = []
    for name in COMMANDS:
        command = load_command(name)
        context = typer.Context(command, info_name=name)
        sections.append(
            get_docs_for_click(obj=command, ctx=context, indent=1, name=name, call_prefix="mcp-mirror").strip()
        )
    common, text = _move_common_options(unescape("\n\n".join(sections)) + "\n")
    for pattern, replacement in _REPLACED:
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    return f"{_CLI_HEAD}{_COMMON_HEAD}{common}\n{text}\n{_CLI_END}"


def _move_common_options(text: str) -> tuple[str, str]:
    """Return the options that many commands have, and the text with only the names of these."""
    counts = Counter(re.findall(r"^\* `.*--.*\n", text, re.MULTILINE))
    common = {line: re.findall(r"--[a-z]+", line)[0] for line, count in counts.items() if count >= _MANY}

    def shorten(options: re.Match[str]) -> str:
        lines = options[1].splitlines(keepends=True)
        names = [f"`{common[line]}`" for line in lines if line in common and "--help" not in line]
        own = "".join(line for line in lines if line not in common)
        return own + (f"* {', '.join(names)}: [common options](#common-options)\n" if names else "")

    return "".join(common), re.sub(r"\*\*Options\*\*:\n\n((?:\* .*(?:\n|\Z))+)", shorten, text)


_WIDTH: Final = 720
_ROW: Final = 38
_STYLE: Final = """\
  <style>
    text { font: 14px ui-monospace, monospace; fill: #24292f; }
    .box { fill: #f6f8fa; stroke: #8c959f; }
    .note { font: 12px system-ui, sans-serif; fill: #57606a; }
    .line { stroke: #8c959f; }
    .back { fill: #ffffff; }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3; }
      .box { fill: #161b22; stroke: #6e7681; }
      .note { fill: #9198a1; }
      .line { stroke: #6e7681; }
      .back { fill: #0d1117; }
    }
  </style>"""


def layers() -> list[list[str]]:
    """Return the packages of each layer of the import-linter contract, top first."""
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    [contract] = [one for one in contracts if one.get("containers") == ["mcp_mirror"]]
    return [[name.strip("() ") for name in layer.replace(":", "|").split("|")] for layer in contract["layers"]]


def layers_drawing() -> str:
    """Return an SVG drawing of the layers: a package imports only packages in rows below its own."""
    rows = layers()
    height = _ROW * len(rows) + 50
    end, label = height - 52, "Layers of packages; a package imports only packages in rows below its own"
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}"',
        f'  role="img" aria-label="{label}">',
        _STYLE,
        f'  <rect class="back" width="{_WIDTH}" height="{height}" rx="8"/>',
        f'  <path class="line" fill="none" d="M 24 12 V {end} M 18 {end - 8} L 24 {end} L 30 {end - 8}"/>',
    ]
    for number, names in enumerate(rows):
        width = (_WIDTH - 60 - 8 * (len(names) - 1)) / len(names)
        for place, name in enumerate(names):
            left, top = 52 + place * (width + 8), 8 + number * _ROW
            drawn.append(f'  <rect class="box" x="{left:.0f}" y="{top}" width="{width:.0f}" height="30" rx="5"/>')
            drawn.append(
                f'  <text x="{left + width / 2:.0f}" y="{top + 20}" text-anchor="middle">{escape(name)}</text>'
            )
    drawn.append(
        f'  <text class="note" x="52" y="{height - 14}">A package imports only packages in rows below its own. '
        "Packages in one row do not import each other.</text>"
    )
    return "\n".join((*drawn, "</svg>", ""))


GENERATED: Final[dict[Path, Callable[[], str]]] = {
    CLI_PAGE: cli_page,
    KEYS_PAGE: reference_page,
    EXAMPLE: example_file,
    LAYERS_DRAWING: layers_drawing,
    **{file: partial(client_page, client) for file, client in CLIENT_PAGES.items()},
}
"""Each generated file and the function that returns its text."""

if __name__ == "__main__":
    for file, make in GENERATED.items():
        file.write_text(make(), encoding="utf-8")
