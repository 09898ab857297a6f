"""The commands `mcp-mirror values list | show | export | lineage | clear`: stored values for operators.

They open the configured store, whether or not a gateway runs. Flow policies do not apply: an operator who can run
these commands can read the store. Models use the memory tools instead.
"""

import json
import math
import os
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer
from rich.table import Table

from mcp_mirror.callers import LOCAL, name_namespaces, name_principal
from mcp_mirror.cli.console import new_table, print_table
from mcp_mirror.cli.options import ConfigOption, JsonOption, StoreOption, format_duration, parse_age
from mcp_mirror.cli.run import print_note, reads_terminal
from mcp_mirror.cli.store import load_store_config, read_store
from mcp_mirror.core.amounts import format_bytes, format_count, format_time
from mcp_mirror.errors import MirrorError, ToolError
from mcp_mirror.memory.lookup_errors import unknown_path_error
from mcp_mirror.memory.tools.files import encode_file
from mcp_mirror.memory.tools.lookup import read_path
from mcp_mirror.memory.value_lookup import FoundValue, look_up
from mcp_mirror.observability.lineage import CallNode, Direction, Graph, Node, read_lineage, title_of
from mcp_mirror.paths import strip_wrapping, tool_slug
from mcp_mirror.payload.spool import Spool
from mcp_mirror.security.sanitize import sanitize_to_lines
from mcp_mirror.settings.policies import WirePolicy
from mcp_mirror.stores.base import Store
from mcp_mirror.system.child_watchdog import ChildWatchdog
from mcp_mirror.system.files import atomic_write
from mcp_mirror.types import Buffer, Descriptor
from mcp_mirror.workers.frames import FrameScanner

values_app: typer.Typer = typer.Typer(
    no_args_is_help=True, help="List, show, export and clear stored values; print their lineage."
)

_DIRECTIONS: Final[Mapping[str, Direction]] = {"made by": "up", "used by": "down"}
_MAX_OTHERS: Final = 20
"""Other namespaces that a message names."""
_SHOWN: Final = 2000
"""Bytes of a value that `show` prints."""

NamespaceOption = Annotated[
    str,
    typer.Option("--namespace", help="A principal or namespace that `stats` prints; `local` is the user of stdio."),
]
PathArgument = Annotated[str, typer.Argument(metavar="PATH", help="A memory path, or a path below one.")]


class _StoredValues(msgspec.Struct, frozen=True):
    """The values of one namespace."""

    store: Store
    namespace: str

    async def find(self, text: str) -> FoundValue:
        """Return the value under a path. The error for a missing value names similar paths."""
        if path := read_path(text):
            with ChildWatchdog() as child_watchdog, Spool(WirePolicy()) as spool:
                async with aclosing(FrameScanner(child_watchdog, spool)) as scanner:
                    if found := await look_up(self.store, scanner, self.namespace, path):
                        return found
        raise await self._unknown_path_error(text)

    async def trace(self, text: str) -> tuple[Graph, str]:
        """Return the lineage of the value under a path, and its base; the error of `find` if it has none."""
        if path := read_path(text):
            lineage = await read_lineage(self.store, self.namespace, path.base)
            if lineage.nodes:
                return lineage, path.base
        raise await self._unknown_path_error(text)

    async def _unknown_path_error(self, text: str) -> ToolError:
        error = await unknown_path_error(self.store, self.namespace, strip_wrapping(text))
        return ToolError(f"{error}{await self.name_others()}")

    async def name_others(self) -> str:
        """Return a sentence with the other namespaces; empty if there are none."""
        names = name_namespaces(await self.store.namespaces())
        others = sorted(sanitize_to_lines(name) for namespace, name in names.items() if namespace != self.namespace)
        hidden = len(others) - _MAX_OTHERS
        more = f", and {hidden:,} more, which `mcp-mirror stats` lists" if hidden > 0 else ""
        return f" Other namespaces: {', '.join(others[:_MAX_OTHERS])}{more} (--namespace)." if others else ""


@values_app.command(name="list")
def list_values(
    tool: Annotated[str, typer.Option(help="Only values of this tool.")] = "",
    limit: Annotated[int, typer.Option(help="Values to print, the newest first.", min=1)] = 100,
    namespace: NamespaceOption = LOCAL,
    as_: JsonOption = False,
    config: ConfigOption = None,
    store: StoreOption = None,
) -> None:
    """List stored values, the newest first.

    The table has path, tool, upstream, kind, stored size, age and time to expiry. The stored size is that of the value
    as JSON: of a text with its quotes and escapes, of media in base64.

    Example: mcp-mirror values list --tool list_orders
    """

    async def run(values: _StoredValues) -> None:
        slug = tool_slug(tool) if tool else ""
        found = await values.store.list(values.namespace, slug=slug, limit=limit + 1)
        if as_:
            print(json.dumps([_list_facts(value) for value in found[:limit]], indent=2))
            return
        if not found:
            what = f"No values of tool {sanitize_to_lines(tool)!r}" if tool else "No values"
            print(f"{what} are stored for {values.namespace}.{await values.name_others()}")
            return
        print_table(_build_table(found[:limit]))
        if len(found) > limit:
            print_note(f"There are more than {limit:,} values. Print more with --limit.")

    _run(config, store, namespace, run)


@values_app.command()
def show(
    path: PathArgument,
    namespace: NamespaceOption = LOCAL,
    config: ConfigOption = None,
    store: StoreOption = None,
) -> None:
    """Print the origin and the beginning of a value.

    Example: mcp-mirror values show list_orders-5f0a3c52-0c1e-4a52-8f2b-1d9f6f2f7b10/0
    """

    async def run(values: _StoredValues) -> None:
        found = await values.find(path)
        facts = _list_facts(found.descriptor) | {"path": str(found.path)}
        if found.path.tokens:  # the origin is that of the whole value, all else of the part
            for name in ("media_type", "tokens"):
                facts.pop(name, None)
            facts |= {"kind": found.kind, "bytes": len(found.blob)}
        for name, fact in facts.items():
            text = json.dumps(fact) if isinstance(fact, dict | list) else str(fact)
            print(f"{name + ':':<12}{sanitize_to_lines(text)}")
        print(f"\n{_preview_value(found)}")

    _run(config, store, namespace, run)


@values_app.command()
def export(
    path: PathArgument,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write; `-` is standard output.")],
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    namespace: NamespaceOption = LOCAL,
    config: ConfigOption = None,
    store: StoreOption = None,
) -> None:
    """Write a value to a file.

    Text is written as text, media and files as their bytes, anything else as JSON.

    Example: mcp-mirror values export screenshot-9c1d4f0e-6a55-4b8e-9d0a-0f3b2f6f6a11 page.png
    """

    async def run(values: _StoredValues) -> None:
        pieces = encode_file(await values.find(path), from_base64=False)
        if str(file) == "-":
            sys.stdout.buffer.writelines(pieces)
            return
        size = _write(file, pieces, force=force)
        print_note(f"Written: {size:,} bytes to {file}.")

    _run(config, store, namespace, run)


@values_app.command()
def lineage(  # noqa: PLR0913, PLR0917  # typer reads the options from the parameters
    path: PathArgument,
    dot: Annotated[bool, typer.Option("--dot", help="Print a graph for Graphviz.")] = False,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="Print a Mermaid flowchart.")] = False,
    as_: JsonOption = False,
    namespace: NamespaceOption = LOCAL,
    config: ConfigOption = None,
    store: StoreOption = None,
) -> None:
    """Print the calls and values behind a value, and its uses.

    The calls are those of the event log. A running gateway adds its calls every two seconds.

    Example: mcp-mirror values lineage list_orders-5f0a3c52-0c1e-4a52-8f2b-1d9f6f2f7b10 --dot | dot -Tsvg
    """
    if dot + mermaid + as_ > 1:
        raise MirrorError("Choose one of --dot, --mermaid and --json.")

    async def run(values: _StoredValues) -> None:
        graph, base = await values.trace(path)
        if dot:
            print(graph.to_dot())
        elif mermaid:
            print(graph.to_mermaid())
        else:
            print(json.dumps(graph.to_json(), indent=2) if as_ else "\n".join(_format_lineage(graph, base)))
        if graph.is_cut:
            print_note("There are more calls and values than these.")

    _run(config, store, namespace, run)


@values_app.command()
def clear(
    older_than: Annotated[
        str, typer.Option(help="Only values stored longer ago than this, such as 12h or 7d.", metavar="AGE")
    ] = "",
    namespace: NamespaceOption = LOCAL,
    of_all: Annotated[bool, typer.Option("--all", help="The values of all namespaces.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    config: ConfigOption = None,
    store: StoreOption = None,
) -> None:
    """Delete the stored values of a namespace, after a confirmation.

    Running gateways then treat their paths as unknown.

    Example: mcp-mirror values clear --older-than 7d
    """
    # Without an age, all values are deleted, also those of a gateway with a clock that is ahead.
    before = time.time() - parse_age(older_than, "--older-than") if older_than else math.inf
    if of_all and namespace != LOCAL:
        raise MirrorError("Choose one of --all and --namespace.")

    async def run(values: _StoredValues) -> None:
        owners = sorted(await values.store.namespaces()) if of_all else [values.namespace]
        found = [
            (owner, value) for owner in owners for value in await values.store.list(owner) if value.created <= before
        ]
        if found and not yes:
            size = format_bytes(sum(value.size for _, value in found))
            whose = format_count(len(owners), "namespace") if of_all else values.namespace
            what = f"{format_count(len(found), 'value')}, {size}, of {whose}"
            if not reads_terminal():
                raise MirrorError(f"`values clear` would delete {what}. Confirm with --yes.")
            if not typer.confirm(f"Delete {what}?", err=True):
                raise MirrorError("Nothing was deleted.")
        deleted = [await values.store.delete(owner, value.base) for owner, value in found]
        others = "" if of_all or found else await values.name_others()
        print_note(f"Deleted {format_count(sum(deleted), 'value')}.{others}")

    _run(config, store, namespace, run)


def _run(
    config: Path | None,
    store: Path | None,
    namespace: str,
    work: Callable[[_StoredValues], Coroutine[Any, Any, None]],
) -> None:
    """Run a command over a store; the first arguments are its options."""

    async def run(opened: Store) -> None:
        namespaces = await opened.namespaces()
        named = [owner for owner in namespaces if name_principal(owner) == namespace]
        is_principal = namespace not in namespaces and len(named) == 1
        await work(_StoredValues(opened, named[0] if is_principal else namespace))

    read_store(load_store_config(config, store), run)


def _build_table(found: Iterable[Descriptor]) -> Table:
    table = new_table(("path", "tool", "upstream", "kind", "stored size", "age", "expires in"))
    now = time.time()
    for value in found:
        tool, upstream = sanitize_to_lines(value.provenance.tool), value.provenance.upstream
        kind = sanitize_to_lines(value.media_type or value.kind)
        times = (format_duration(now - value.created), format_duration(value.expires - now))
        table.add_row(value.base, tool, upstream, kind, format_bytes(value.size), *times)
    return table


def _format_lineage(graph: Graph, base: str) -> Iterator[str]:
    """The lines of a tree: the value, what it was made of, and what used it."""
    yield _format_node(next(iter(graph.nodes.values())))
    for title, direction in _DIRECTIONS.items():
        lines = [
            f"{'  ' * depth}{_format_node(node)}{f'  {sanitize_to_lines(part)}' if part else ''}"
            for depth, node, part in graph.walk(base, direction)
        ]
        yield from ("", f"{title}:", *(lines or ["  (nothing)"]))


def _format_node(node: Node) -> str:
    """One line for a value or a call."""
    if isinstance(node, CallNode):
        return f"{sanitize_to_lines(title_of(node))}  {node.outcome}, {format_time(node.at)}"
    facts = "" if node.is_removed else f"  {node.kind}, {format_bytes(node.size)}"
    return f"{title_of(node)}{facts}"


def _list_facts(value: Descriptor) -> dict[str, Any]:
    """The facts of a value that have content."""
    facts = {
        "path": value.base,
        "tool": value.provenance.tool,
        "upstream": value.provenance.upstream,
        "inputs": list(value.provenance.inputs),
        "kind": value.kind,
        "media_type": value.media_type,
        "bytes": value.size,
        "tokens": value.tokens,
        "stored": format_time(value.created),
        "expires": format_time(value.expires),
        "labels": dict(value.labels),
    }
    return {name: fact for name, fact in facts.items() if fact not in (None, [], {})}


def _preview_value(found: FoundValue) -> str:
    """The first bytes of a value without invisible characters; for media, a hint."""
    if found.kind == "binary":
        return "Media cannot be printed. Write them to a file with `mcp-mirror values export`."
    head = b""
    for piece in encode_file(found, from_base64=False):
        head += bytes(piece[: _SHOWN + 1])
        if len(head) > _SHOWN:
            break
    more = "\n... `mcp-mirror values export` writes all of it." if len(head) > _SHOWN else ""
    return sanitize_to_lines(head[:_SHOWN].decode("utf-8", "ignore")) + more


def _write(path: Path, pieces: Iterable[Buffer], *, force: bool) -> int:
    """Write a file atomically, follow links, and return the size of the file."""
    target = os.path.realpath(path)
    if os.path.exists(target):  # noqa: PTH110  # `exists` raises in a folder of another user
        if not force:
            raise MirrorError(f"{path} exists already. Name another file, or replace it with --force.")
        if not os.path.isfile(target):  # noqa: PTH113  # as above
            raise MirrorError(f"{path} is not a regular file. Name another file.")
    try:
        return atomic_write(target, pieces, keep_mode=True)
    except OSError as error:
        raise MirrorError(
            f"{path} cannot be written: {error.strerror}. Check the folder and its permissions."
        ) from None
