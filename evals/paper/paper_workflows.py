"""Runs both workflows of the memory-pointer paper three times: `make run`.

The first run uses a gateway with our notices, the second one with the notices of the paper. The third calls the servers
directly, so the model would copy every value itself. Servers, gateways and clients are real processes; the model is a
script, because the demo counts only the tokens that a model would read and write.

The paper: "Solving Context Window Overflow in AI Agents", arXiv:2511.22729.
"""

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import anyio
import yaml
from mcp import Client, StdioServerParameters
from mcp_types import CallToolResult, TextContent
from rich import box
from rich.console import Console
from rich.table import Table

from mcp_mirror.paths import BASE_PATTERN
from mcp_mirror.tokens import estimate_tokens

Previous = Callable[[int], Any]
"""Returns the result of an earlier step: a memory path with the gateway, the value without it."""

_PIECE: Final = 1 << 17
"""Characters that are tokenized at once."""
_SHOWN: Final = 1200
"""Characters of a call or a result that are printed."""
_PATH: Final = re.compile(BASE_PATTERN)
"""The first memory path in a notice is that of the whole value."""


@dataclass(frozen=True, slots=True)
class Step:
    """One tool call; its arguments may use results of earlier steps."""

    server: str
    tool: str
    arguments: Callable[[Previous], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Workflow:
    """A task, the calls that solve it, and the tokens that the paper measured with and without pointers."""

    name: str
    prompt: str
    steps: tuple[Step, ...]
    paper_with: float
    paper_without: float
    key: str = ""
    """The key of the first step's value that the second step takes; empty: the whole value."""


WORKFLOWS: Final = (
    Workflow(
        "molecule grid",
        "Generate the grid of caffeine and list the ten most similar molecules.",
        (
            Step("molecules", "generate_molecule_grid", lambda _: {"molecule_description": "caffeine"}),
            Step("molecules", "retrieve_similar_molecules", lambda previous: {"raw_grid": previous(0), "k": 10}),
        ),
        paper_with=1_234.04,
        paper_without=20_822_181.34,
        key="raw_grid",
    ),
    Workflow(
        "safety data sheet",
        "Read safety_data_sheet.pdf and list the product's ingredients with CAS number, concentration and formula.",
        (
            Step("documents", "tika", lambda _: {"pdf_path": "safety_data_sheet.pdf"}),
            Step("documents", "extract_sds", lambda previous: {"content": previous(0)}),
        ),
        paper_with=841.66,
        paper_without=6_411.36,
    ),
)


@dataclass(slots=True)
class Trace:
    """The texts that a model reads and writes in one run."""

    texts: list[str] = field(default_factory=list)
    seconds: float = 0.0
    notices: list[str] = field(default_factory=list)
    """The texts that are notices of a gateway."""

    def tokens(self, count: Callable[[str], int]) -> int:
        """Count the tokens of all texts."""
        return sum(map(count, self.texts))


@dataclass(frozen=True, slots=True)
class Runs:
    """The three runs of one workflow."""

    workflow: Workflow
    ours: Trace
    worded: Trace
    """Through a gateway with the paper's wording."""
    direct: Trace


def token_counter() -> tuple[Callable[[str], int], str]:
    """Return a token counter and its unit: a real tokenizer if one is installed, else our estimate."""
    try:
        import bpe_openai  # noqa: PLC0415  # a development dependency
    except ImportError:
        return lambda text: estimate_tokens(text.encode()), "estimated tokens"
    encoding = bpe_openai.get_encoding("o200k_base")
    return lambda text: sum(len(encoding.encode(piece)) for piece in pieces(text)), "o200k tokens"


def pieces(text: str) -> Iterator[str]:
    """Yield a text in parts that the tokenizer accepts, cut after numbers so that no token is cut."""
    start = 0
    while start < len(text):
        stop = (
            len(text) if len(text) - start <= _PIECE else text.rfind(",", start, start + _PIECE) + 1 or start + _PIECE
        )
        yield text[start:stop]
        start = stop


def text_of(result: CallToolResult) -> str:
    """Return the text of a result for a model: structured content if present, as in most clients, else the text."""
    if result.structured_content is not None:
        return json.dumps(result.structured_content)
    return "\n".join(block.text for block in result.content if isinstance(block, TextContent))


def path_in(notice: str, key: str) -> str:
    """Return the memory path in a notice.

    Raises:
        SystemExit: The notice has no path.
    """
    found = _PATH.search(notice)
    if found is None:
        raise SystemExit(f"A result was not stored: {shorten(notice)}")
    return f"{found[0]}/{key}" if key else found[0]


async def with_gateway(workflow: Workflow, client: Client, console: Console) -> Trace:
    """Run a workflow on the twins, passing on paths."""
    trace, results = Trace([workflow.prompt]), list[str]()
    started = time.perf_counter()
    for step in workflow.steps:
        arguments = step.arguments(lambda index: path_in(results[index], workflow.key))
        name = f"{step.tool}_mirrored"
        call = f"{name}({json.dumps(arguments)})"
        console.print(f"[bold]call[/bold]  {shorten(call)}", highlight=False)
        results.append(text_of(checked(await client.call_tool(name, arguments))))
        console.print(shorten(results[-1]), style="green", highlight=False, markup=False)
        trace.texts += [call, results[-1]]
    trace.seconds = time.perf_counter() - started
    trace.notices = [result for result in results if _PATH.search(result)]
    return trace


async def without_gateway(workflow: Workflow, clients: Mapping[str, Client]) -> Trace:
    """Run a workflow on the servers themselves, passing on values."""
    trace, values = Trace([workflow.prompt]), list[Any]()
    started = time.perf_counter()
    for step in workflow.steps:
        arguments = step.arguments(lambda index: values[index][workflow.key] if workflow.key else values[index])
        result = checked(await clients[step.server].call_tool(step.tool, arguments))
        values.append(text_of(result) if result.structured_content is None else result.structured_content)
        trace.texts += [f"{step.tool}({json.dumps(arguments)})", text_of(result)]
    trace.seconds = time.perf_counter() - started
    return trace


def checked(result: CallToolResult) -> CallToolResult:
    """Return a result that is not an error.

    Raises:
        SystemExit: The call failed; the message quotes the tool's error.
    """
    if result.is_error:
        raise SystemExit(f"A call failed: {text_of(result)}")
    return result


def shorten(text: str) -> str:
    """Cut a text for printing."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]} ..."


def table_of(rows: list[Runs], count: Callable[[str], int], unit: str) -> Table:
    """Return a table of the workflows with and without the gateway, and the paper's figures; 80 columns wide."""
    title = f"What the model reads and writes, with and without the gateway ({unit})"
    table = _table(title, "tokens\nwith", "tokens\nwithout", "ratio", "seconds\nwith", "seconds\nwithout")
    for runs in rows:
        workflow, ours, direct = runs.workflow, runs.ours, runs.direct
        with_, without = ours.tokens(count), direct.tokens(count)
        ratio = f"1 : {without / with_:,.0f}"
        table.add_row(
            workflow.name, f"{with_:,}", f"{without:,}", ratio, f"{ours.seconds:.2f}", f"{direct.seconds:.2f}"
        )
        ratio = f"1 : {workflow.paper_without / workflow.paper_with:,.0f}"
        table.add_row("  in the paper", f"{workflow.paper_with:,.2f}", f"{workflow.paper_without:,.2f}", ratio)
    return table


def wording_table_of(rows: list[Runs], count: Callable[[str], int], unit: str) -> Table:
    """Return a table of the tokens of our notices and the paper's: the notices only, and all texts of the run."""
    title = f"The same with the notices worded as the paper's ({unit})"
    table = _table(title, "notices\nours", "the\npaper's", "ours\nare", "tokens\nwith these", "ours\nare")
    for runs in rows:
        ours, worded = (sum(map(count, trace.notices)) for trace in (runs.ours, runs.worded))
        with_these = runs.worded.tokens(count)
        parts = (f"{ours / max(worded, 1):.0%}", f"{runs.ours.tokens(count) / max(with_these, 1):.0%}")
        table.add_row(runs.workflow.name, f"{ours:,}", f"{worded:,}", parts[0], f"{with_these:,}", parts[1])
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE, pad_edge=False, collapse_padding=True)
    table.add_column("", no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def write_paper_config(config: Path, folder: Path) -> Path:
    """Write the same configuration with the notices of the paper, and return its path."""
    read = yaml.safe_load(config.read_text(encoding="utf-8"))
    path = folder / "paper.yaml"
    path.write_text(yaml.safe_dump({**read, "mirror": {**(read.get("mirror") or {}), "notice": "paper"}}))
    return path


def gateway(config: Path) -> Client:
    """Return a client that starts its own gateway."""
    return Client(
        StdioServerParameters(command=sys.executable, args=["-m", "mcp_mirror", "serve", "--config", str(config)])
    )


async def run(config: Path, console: Console) -> None:
    """Run all workflows and print the tables."""
    rows: list[Runs] = []
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ours = await stack.enter_async_context(gateway(config))
        worded = await stack.enter_async_context(gateway(write_paper_config(config, folder)))
        direct = {
            name: await stack.enter_async_context(
                Client(StdioServerParameters(command=sys.executable, args=["-m", f"mcp_mirror.demo.{name}"]))
            )
            for name in ("molecules", "documents")
        }
        for client in (ours, worded):
            await client.list_tools()
        for workflow in WORKFLOWS:
            console.rule(workflow.name, align="left")
            console.print(f"[bold]task[/bold]  {workflow.prompt}", highlight=False)
            traced = await with_gateway(workflow, ours, console)
            console.print("again with the paper's notices, and without the gateway ...", style="dim")
            again = await with_gateway(workflow, worded, Console(quiet=True))
            rows.append(Runs(workflow, traced, again, await without_gateway(workflow, direct)))
    count, unit = token_counter()
    for table in (table_of(rows, count, unit), wording_table_of(rows, count, unit)):
        console.print()
        console.print(table)


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description="Run both workflows of the memory-pointer paper.")
    parser.add_argument("--config", type=Path, default=Path("configs/demo.yaml"), help="the gateway's configuration")
    anyio.run(run, parser.parse_args().config, Console(soft_wrap=True))


if __name__ == "__main__":
    main()
