"""What a gateway costs before the first call: the time until it answers, its memory, and its installed size."""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib.metadata import distribution
from operator import itemgetter
from pathlib import Path

from many_clients import raw_upstream
from measures import MB, show
from packaging.requirements import Requirement
from process_tree import command_of, offspring
from raw_client import StdioClient
from raw_measures import RAW_SERVER, SDK_SERVER, wait_ready
from rich.console import Console
from setups import config_of, gateway_argv

import mcp_mirror

_UPSTREAMS = (1, 20)
_LARGEST = 5


async def startup(console: Console, runs: int, large: bool) -> None:  # noqa: ARG001, FBT001  # a table of one signature
    """Time from the start of the process to the response to `initialize`, memory, and installed size."""
    with config_of({"upstreams": {"bench": raw_upstream()}}) as config:
        wrap = [sys.executable, "-m", "mcp_mirror", "wrap", "--store", str(config.parent / "wrapped"), "--"]
        starts: dict[str, Callable[[], float]] = {
            "import mcp": _import_seconds,
            "a server of the Python SDK": partial(_start_seconds, [sys.executable, SDK_SERVER]),
            "that server, wrapped": partial(_start_seconds, [*wrap, sys.executable, SDK_SERVER]),
            "ours": partial(_start_seconds, gateway_argv(config)),
        }
        taken = [{name: start() for name, start in starts.items()} for _ in range(runs)]
    medians = {name: statistics.median(each[name] for each in taken) for name in starts}
    rows = [(name, f"{each:.2f} s", f"{each / medians['import mcp']:.2f}") for name, each in medians.items()]
    header = ("program", "until the response to `initialize`", "relative to `import mcp`")
    show(console, "Start, with one upstream over stdio", header, rows)
    memory = [(str(number), f"{_memory(number) / MB:.0f} MB") for number in _UPSTREAMS]
    show(console, "Memory of an idle gateway (proportional set size)", ("upstreams over stdio", "PSS"), memory)
    sizes = sorted(_installed_sizes().items(), key=itemgetter(1), reverse=True)
    total = sum(size for _, size in sizes)
    packages = [(name, f"{size / MB:.1f} MB") for name, size in (("all", total), *sizes[:_LARGEST])]
    show(console, "Installed size, without bytecode", ("package", "size"), packages)


def _import_seconds() -> float:
    """Return the seconds until a program has imported the SDK, without those in which it ends."""
    began = time.perf_counter()
    argv = [sys.executable, "-c", "import mcp; print(flush=True)"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline()
        return time.perf_counter() - began


def _start_seconds(argv: Sequence[str]) -> float:
    began = time.perf_counter()
    with StdioClient(argv):
        return time.perf_counter() - began


def _memory(upstreams: int) -> int:
    """Return the proportional set size of a gateway and its own processes, in bytes, after a call to each upstream."""
    settings = {"upstreams": {f"bench{number}": raw_upstream() for number in range(upstreams)}}
    prefixes = [f"bench{number}_" for number in range(upstreams)] if upstreams > 1 else [""]
    with config_of(settings) as config, StdioClient(gateway_argv(config)) as client:
        for prefix in prefixes:
            wait_ready(client, f"{prefix}echo_mirrored")
            client.request("tools/call", {"name": f"{prefix}echo_mirrored", "arguments": {"text": "x"}})
        own = [pid for pid in offspring(client.pid) if RAW_SERVER not in command_of(pid)]
        return sum(map(_pss, (client.pid, *own)))


def _pss(process: int) -> int:
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def _installed_sizes() -> dict[str, int]:
    """Return the bytes of the gateway and of each package that it requires without extras."""
    sizes: dict[str, int] = {}
    pending = [Requirement("mcp-mirror")]
    seen = set[tuple[str, str]]()
    while pending:
        wanted = pending.pop()
        package = distribution(wanted.name)
        for extra in ("", *wanted.extras):
            if (package.name, extra) in seen:
                continue
            seen.add((package.name, extra))
            required = map(Requirement, package.requires or ())
            pending += [one for one in required if not one.marker or one.marker.evaluate({"extra": extra})]
        sizes[package.name] = _size(Path(str(file.locate())) for file in package.files or ())
    # An editable installation has no files of its own.
    return sizes | {"mcp-mirror": _size(Path(mcp_mirror.__file__).parent.rglob("*"))}


def _size(files: Iterable[Path]) -> int:
    return sum(file.stat().st_size for file in files if file.is_file() and file.suffix != ".pyc")
