"""The commands `mcp-mirror values list | show | export | clear`: stored values for people.

They open the configured store, whether or not a gateway runs. No flow policy binds them: who may run them may read the
store. A model's way to the same values are the memory tools.
"""

import json
import re
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich import box
from rich.table import Table

from mcp_mirror.app import open_kept_store
from mcp_mirror.callers import LOCAL
from mcp_mirror.cli.check import open_console
from mcp_mirror.cli.run import fail, load, run_to_end, say
from mcp_mirror.core.preview import human_bytes
from mcp_mirror.errors import MirrorError
from mcp_mirror.memory.tools.files import bytes_of
from mcp_mirror.memory.tools.lookup import read_path
from mcp_mirror.memory.value_lookup import FoundValue, recall, unknown_path
from mcp_mirror.observability.logging import set_up_logging
from mcp_mirror.paths import tool_label, unwrap
from mcp_mirror.security.sanitize import sanitize_to_lines
from mcp_mirror.stores.base import Store
from mcp_mirror.system.child_watchdog import ChildWatchdog
from mcp_mirror.types import Buffer, Descriptor
from mcp_mirror.workers.frames import FrameScanner

values_app = typer.Typer(no_args_is_help=True, help="Stored values: list, show, export and clear them.")

_SHOWN: Final = 2000
"""Bytes of a value that `show` prints."""
_AGE: Final = re.compile(r"([0-9]{1,9})([smhd])")
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", help="The configuration; see `check`.", show_default=False)
]
NamespaceOption = Annotated[
    str,
    typer.Option("--namespace", help="Whose values, as `stats` prints it; `local` is the user of standard streams."),
]
PathArgument = Annotated[str, typer.Argument(metavar="PATH", help="A memory path, or a path below one.")]


@dataclass(frozen=True, slots=True)
class _Shelf:
    """The values of one namespace."""

    store: Store
    namespace: str

    async def find(self, text: str) -> FoundValue:
        """The value under a path.

        Raises:
            ToolError: There is none; the message names paths that may be meant.
        """
        path = read_path(text)
        with ChildWatchdog() as child_watchdog:
            async with aclosing(FrameScanner(child_watchdog)) as scanner:
                found = await recall(self.store, scanner, self.namespace, path) if path else None
        if found is None:
            raise await unknown_path(self.store, self.namespace, unwrap(text))
        return found


@values_app.command(name="list")
def list_values(
    tool: Annotated[str, typer.Option(help="Only values of this tool.")] = "",
    limit: Annotated[int, typer.Option(help="Values to print, the newest first.", min=1)] = 100,
    namespace: NamespaceOption = LOCAL,
    as_: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,  # noqa: FBT002  # a flag
    config: ConfigOption = None,
) -> None:
    """List stored values, the newest first: path, tool, upstream, kind, size, age and time to expiry.

    Example: mcp-mirror values list --tool list_orders
    """

    async def run(shelf: _Shelf) -> None:
        label = tool_label(tool) if tool else ""
        found = await shelf.store.list(shelf.namespace, label=label, limit=limit + 1)
        if as_:
            print(json.dumps([_facts(one) for one in found[:limit]], indent=2))  # noqa: T201  # the output
            return
        if not found:
            others = sorted(await shelf.store.namespaces() - {shelf.namespace})
            named = f" Other namespaces: {', '.join(others)} (--namespace)." if others else ""
            print(f"No values are stored for {shelf.namespace}.{named}")  # noqa: T201  # the output
            return
        open_console().print(_as_table(found[:limit]))
        if len(found) > limit:
            say(f"There are more than {limit:,} values. Print more with --limit.")

    _run(config, namespace, run)


@values_app.command()
def show(path: PathArgument, namespace: NamespaceOption = LOCAL, config: ConfigOption = None) -> None:
    """Print where a value came from, and its beginning.

    Example: mcp-mirror values show list_orders-5f0a3c52-0c1e-4a52-8f2b-1d9f6f2f7b10/0
    """

    async def run(shelf: _Shelf) -> None:
        found = await shelf.find(path)
        facts = _facts(found.known) | {"path": str(found.path)} if found.known else {}
        for name, fact in facts.items():
            print(f"{name + ':':<12}{sanitize_to_lines(str(fact))}")  # noqa: T201  # the output
        print(f"\n{_beginning(found)}")  # noqa: T201  # the output

    _run(config, namespace, run)


@values_app.command()
def export(
    path: PathArgument,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.")],
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,  # noqa: FBT002  # a flag
    namespace: NamespaceOption = LOCAL,
    config: ConfigOption = None,
) -> None:
    """Write a value to a file: text as its text, media and files as their bytes, anything else as its JSON.

    Example: mcp-mirror values export screenshot-9c1d4f0e-6a55-4b8e-9d0a-0f3b2f6f6a11 page.png
    """

    async def run(shelf: _Shelf) -> None:
        found = await shelf.find(path)
        size = _write(file, bytes_of(found, from_base64=False), force=force)
        say(f"Written: {size:,} bytes to {file}.")

    _run(config, namespace, run)


@values_app.command()
def clear(
    older_than: Annotated[
        str, typer.Option(help="Only values that were stored longer ago than this, such as 12h or 7d.", metavar="AGE")
    ] = "",
    namespace: NamespaceOption = LOCAL,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,  # noqa: FBT002  # a flag
    config: ConfigOption = None,
) -> None:
    """Delete the stored values of a namespace; it asks first. Running gateways answer for them as for unknown paths.

    Example: mcp-mirror values clear --older-than 7d
    """
    before = time.time() - _seconds(older_than)

    async def run(shelf: _Shelf) -> None:
        found = [one for one in await shelf.store.list(shelf.namespace) if one.created <= before]
        what = f"{len(found):,} values, {human_bytes(sum(one.size for one in found))}, of {shelf.namespace}"
        if found and not yes:
            _confirm(what)
        deleted = [await shelf.store.delete(shelf.namespace, one.base) for one in found]
        say(f"Deleted {sum(deleted):,} values.")

    _run(config, namespace, run)


def _run(config: Path | None, namespace: str, work: Callable[[_Shelf], Coroutine[Any, Any, None]]) -> None:
    set_up_logging(0)
    loaded = load(config)
    set_up_logging(0, loaded)

    @asynccontextmanager
    async def opened() -> AsyncIterator[_Shelf]:
        async with open_kept_store(loaded) as store:
            yield _Shelf(store, namespace)

    async def run() -> None:
        async with opened() as shelf:
            await work(shelf)

    run_to_end(run())


def _confirm(what: str) -> None:
    """Ask a person on a terminal.

    Raises:
        MirrorError: There is no terminal, or the answer is no.
    """
    if not sys.stdin.isatty():
        raise MirrorError(f"`values clear` would delete {what}. Confirm with --yes.")
    if not typer.confirm(f"Delete {what}?", err=True):
        raise MirrorError("Nothing was deleted.")


def _seconds(age: str) -> float:
    match = _AGE.fullmatch(age)
    if age and not match:
        fail(MirrorError(f"--older-than takes a number and s, m, h or d, such as 7d; got {age!r}."))
    return int(match[1]) * _UNITS[match[2]] if match else 0


def _as_table(found: Iterable[Descriptor]) -> Table:
    table = Table(box=box.SIMPLE)
    table.add_column("path", no_wrap=True)
    for name in ("tool", "upstream", "kind", "size", "age", "expires in"):
        table.add_column(name, overflow="fold")
    now = time.time()
    for one in found:
        tool, upstream = sanitize_to_lines(one.provenance.tool), one.provenance.upstream
        times = (_duration(now - one.created), _duration(one.expires - now))
        table.add_row(one.base, tool, upstream, one.media_type or one.kind, human_bytes(one.size), *times)
    return table


def _duration(seconds: float) -> str:
    """A time in its largest fitting unit: `3 h`."""
    unit = next((unit for unit in "dhm" if seconds >= _UNITS[unit]), "s")
    return f"{max(0, int(seconds / _UNITS[unit]))} {unit}"


def _facts(one: Descriptor) -> dict[str, Any]:
    """What is known of a value; members without content are left out."""
    facts = {
        "path": one.base,
        "tool": one.provenance.tool,
        "upstream": one.provenance.upstream,
        "inputs": list(one.provenance.inputs),
        "kind": one.kind,
        "media_type": one.media_type,
        "bytes": one.size,
        "tokens": one.tokens,
        "stored": _stamp(one.created),
        "expires": _stamp(one.expires),
        "labels": dict(one.labels),
    }
    return {name: fact for name, fact in facts.items() if fact not in (None, [], {})}


def _stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _beginning(found: FoundValue) -> str:
    """The first bytes of a value, without characters that nobody sees; of media, how to get them."""
    if found.kind == "binary":
        return "Media are not shown. Write them to a file with `mcp-mirror values export`."
    head = b""
    for piece in bytes_of(found, from_base64=False):
        head += bytes(piece[: _SHOWN + 1])
        if len(head) > _SHOWN:
            break
    more = "\n... `mcp-mirror values export` writes all of it." if len(head) > _SHOWN else ""
    return sanitize_to_lines(head[:_SHOWN].decode("utf-8", "ignore")) + more


def _write(path: Path, pieces: Iterable[Buffer], *, force: bool) -> int:
    """Write a file whole or not at all; its size.

    Raises:
        MirrorError: It exists already, or cannot be written.
    """
    if path.exists() and not force:
        raise MirrorError(f"{path} exists already. Name another file, or replace it with --force.")
    draft: Path | None = None
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as opened:
            draft = Path(opened.name)
            size = sum(opened.write(piece) for piece in pieces)
        draft.replace(path)
    except OSError as error:
        raise MirrorError(
            f"{path} cannot be written: {error.strerror}. Check the folder and its permissions."
        ) from None
    finally:
        if draft is not None:
            draft.unlink(missing_ok=True)
    return size
