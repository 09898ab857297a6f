"""The measurements, each a function and a table."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import msgspec
import server
from mcp import Client
from rich.console import Console
from rich.table import Table
from setups import (
    HERE,
    PROXY_PYTHON,
    Stalls,
    cpu_seconds,
    direct,
    family,
    path_of,
    text_of,
    through_mirror,
    through_proxy,
    upstream,
)

from mcp_mirror.payload.json_rpc import line_of, open_message
from mcp_mirror.payload.json_spans import locate, members, trim

MB = 1_000_000


def show(console: Console, title: str, header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Print one table."""
    table = Table(*header, title=title, title_justify="left")
    for row in rows:
        table.add_row(*row)
    console.print(table)


async def timed(call: Callable[..., Awaitable[object]], *arguments: object) -> float:
    """Seconds that a call takes."""
    started = time.perf_counter()
    await call(*arguments)
    return time.perf_counter() - started


async def _raw_workflow(client: Client, form: str) -> None:
    result = await client.call_tool("grid", {"form": form})
    value = result.structured_content or json.loads(text_of(result))
    text_of(await client.call_tool("take", {"raw_grid": value["raw_grid"]}))


async def _pointer_workflow(client: Client, form: str) -> None:
    path = path_of(await client.call_tool("grid_mirrored", {"form": form}))
    text_of(await client.call_tool("take_mirrored", {"raw_grid": f"{path}/raw_grid"}))


async def grid(console: Console, runs: int, large: bool) -> None:  # noqa: FBT001  # a table of one signature
    """The paper's grid, made by one tool and taken by another."""
    rows = []
    for form, times in (("short", runs), ("short-text", runs), *((("long-doubled", min(runs, 3)),) if large else ())):
        async with AsyncExitStack() as stack:
            mirror, _ = await stack.enter_async_context(through_mirror({"upstreams": {"bench": upstream(form)}}))
            raw = await stack.enter_async_context(direct(form))
            proxy = await stack.enter_async_context(through_proxy(form)) if PROXY_PYTHON else None
            seconds: dict[str, list[float]] = {"ours": [], "direct": [], "proxy": []}
            for _ in range(times):
                seconds["ours"].append(await timed(_pointer_workflow, mirror, form))
                seconds["direct"].append(await timed(_raw_workflow, raw, form))
                if proxy:
                    seconds["proxy"].append(await timed(_raw_workflow, proxy, form))
        ours, others = statistics.median(seconds["ours"]), [seconds["direct"], seconds["proxy"]]
        medians = [statistics.median(other) if other else None for other in others]
        cells = [f"{median:.2f} s" if median else "-" for median in medians]
        ratios = [f"{ours / median:.3f}" if median else "-" for median in medians]
        rows.append((f"{form}, {len(server.grid(form)) / MB:.0f} MB", f"{ours:.2f} s", *cells, *ratios))
    header = ("grid 128x128x128", "ours", "direct SDK", "FastMCP proxy", "ours/direct", "ours/proxy")
    show(console, "Grid workflow, median", header, rows)


async def cpu(console: Console, runs: int, large: bool) -> None:  # noqa: ARG001, FBT001
    """CPU time per byte, compared with a process that only moves and scans it."""
    rows = []
    for form in ("short", "short-text", "long-doubled"):
        async with through_mirror({"upstreams": {"bench": upstream(form)}}) as (mirror, process):
            await _pointer_workflow(mirror, form)
            before = cpu_seconds(process)
            for _ in range(runs):
                await _pointer_workflow(mirror, form)
            ours = (cpu_seconds(process) - before) / runs
        frame = b'{"jsonrpc":"2.0","id":1,"result":{' + server.grid(form) + b"}}\n"
        floor = await anyio.to_thread.run_sync(_floor, frame * 1, runs)
        size = len(frame) / MB
        rows.append((f"{form}, {size:.0f} MB", f"{ours * 1e3:.0f} ms", f"{floor * 1e3:.0f} ms", f"{ours / floor:.2f}"))
    show(console, "Gateway CPU for one result stored and passed on", ("result", "ours", "floor", "ratio"), rows)


def _floor(frame: bytes, runs: int) -> float:
    with tempfile.TemporaryFile() as source:
        for _ in range(runs + 1):
            source.write(frame)
        feeder = subprocess.Popen(["cat"], stdin=_rewound(source), stdout=subprocess.PIPE)
        drain = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        done = subprocess.run(
            [sys.executable, str(HERE / "floor.py")],
            stdin=feeder.stdout, stdout=drain.stdin, stderr=subprocess.PIPE, check=True,
        )  # fmt: skip
        seconds = float(done.stderr.split()[0]) - _start_up()
        for process in (feeder, drain):
            for pipe in (process.stdin, process.stdout):
                if pipe:
                    pipe.close()
            process.wait(timeout=30)
    return seconds / (runs + 1)


def _start_up() -> float:
    done = subprocess.run(
        [sys.executable, str(HERE / "floor.py")], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, check=True
    )
    return float(done.stderr.split()[0])


def _rewound(file: Any) -> Any:
    file.seek(0)
    return file


async def latency(console: Console, runs: int, large: bool) -> None:  # noqa: ARG001, FBT001
    """What the gateway adds to a small call: to a server that costs nothing, and to one written with the SDK."""
    rows = []
    sdk = {"command": sys.executable, "args": [str(HERE / "sdk_server.py")], "timeout": 3600}
    for name, settings, arguments in (
        ("a bare server", upstream(), ()),
        ("a server of the Python SDK", sdk, (str(HERE / "sdk_server.py"),)),
    ):
        async with AsyncExitStack() as stack:
            mirror, _ = await stack.enter_async_context(through_mirror({"upstreams": {"bench": settings}}))
            raw = await stack.enter_async_context(direct_to(*(arguments or (str(HERE / "server.py"),))))
            ours: list[float] = []
            theirs: list[float] = []
            for _ in range(runs):
                theirs += [await timed(raw.call_tool, "small", {"text": "x"}) for _ in range(200)]
                ours += [await timed(mirror.call_tool, "small_mirrored", {"text": "x"}) for _ in range(200)]
        cells = []
        for at in (0.5, 0.99):
            with_, without = quantile(ours, at), quantile(theirs, at)
            ratio = (with_ - without) / without
            cells += [f"{without * 1e3:.2f}", f"{with_ * 1e3:.2f}", f"{ratio:.2f}"]
        rows.append((name, *cells))
    header = ("small call to", "p50 direct, ms", "ours", "added/direct", "p99 direct, ms", "ours", "added/direct")
    show(console, "Latency of a small call", header, rows)


def quantile(values: list[float], at: float) -> float:
    return sorted(values)[int(len(values) * at)]


def direct_to(*argv: str) -> Any:
    """The SDK's client and some server."""
    from mcp import StdioServerParameters  # noqa: PLC0415

    return Client(StdioServerParameters(command=sys.executable, args=list(argv)), mode="legacy")


async def concurrent(console: Console, runs: int, large: bool) -> None:  # noqa: ARG001, FBT001
    """1,000 small calls at once; each answer must be the one to its question."""

    async def burst(client: Client, tool: str) -> float:
        async def one(number: int) -> None:
            assert text_of(await client.call_tool(tool, {"text": str(number)})) == f"text {number}"

        started = time.perf_counter()
        async with anyio.create_task_group() as tasks:
            for number in range(1000):
                tasks.start_soon(one, number)
        return 1000 / (time.perf_counter() - started)

    argv = str(HERE / "sdk_server.py")
    settings = {"command": sys.executable, "args": [argv], "timeout": 3600}
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        stalls = Stalls(Path(folder, "stalls"))
        mirror, _ = await stack.enter_async_context(through_mirror({"upstreams": {"bench": settings}}, stalls))
        stalls.reset()
        raw = await stack.enter_async_context(direct_to(argv))
        pairs = [(await burst(raw, "echo"), await burst(mirror, "echo_mirrored")) for _ in range(runs)]
        longest = str(stalls)
    theirs, ours = (statistics.median(column) for column in zip(*pairs, strict=True))
    row = (f"{theirs:,.0f}/s", f"{ours:,.0f}/s", f"{ours / theirs:.2f}", "0", longest)
    header = ("direct", "ours", "ratio", "lost or crossed", "longest stall")
    show(console, "1,000 concurrent small calls (SDK server)", header, [row])


async def neighbour(console: Console, runs: int, large: bool) -> None:  # noqa: FBT001
    """A small call to one upstream while another sends 100 MB, and while it is sent 100 MB."""
    rows = []
    settings = {"upstreams": {"big": upstream(), "small": upstream()}, "mirror": {"suffix": "_m"}}
    async with through_mirror(settings) as (mirror, _):
        idle = quantile([await timed(mirror.call_tool, "small_small_m", {"text": "x"}) for _ in range(400)], 0.99)
        for megabytes in (100, *((500,) if large else ())):
            busy: list[float] = []
            stored: list[float] = []
            for _ in range(runs):
                await _beside(mirror, megabytes * MB, busy, stored)
            rows.append((
                f"{megabytes} MB stored", f"{statistics.median(stored):.2f} s", f"{idle * 1e3:.1f} ms",
                f"{quantile(busy, 0.99) * 1e3:.1f} ms", f"{(quantile(busy, 0.99) - idle) * 1e3:.1f} ms",
                f"{max(busy) * 1e3:.1f} ms",
            ))  # fmt: skip
    header = ("while", "seconds", "p99 idle", "p99 then", "rise", "worst then")
    show(console, "A neighbour's small calls", header, rows)


async def stalls(console: Console, runs: int, large: bool) -> None:  # noqa: ARG001, FBT001
    """The longest stalls of the gateway's event loop while large values arrive and leave."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        watched = Stalls(Path(folder) / "stalls")
        settings = {"upstreams": {"bench": upstream("short", "long-doubled")}}
        async with through_mirror(settings, watched) as (mirror, _):
            for name, tool, arguments, key in (
                ("100 MB of text", "sized", {"size": 100 * MB}, ""),
                ("15 MB of text, in memory", "sized", {"size": 15 * MB}, ""),
                ("a grid of 21 MB", "grid", {"form": "short"}, "/raw_grid"),
                ("a grid twice, 104 MB", "grid", {"form": "long-doubled"}, "/raw_grid"),
            ):
                coming, going = [], []
                for _ in range(runs):
                    watched.reset()
                    path = path_of(await mirror.call_tool(f"{tool}_mirrored", arguments)) + key
                    coming.append(watched.longest)
                    watched.reset()
                    taker, argument = ("take_mirrored", "raw_grid") if key else ("small_mirrored", "text")
                    text_of(await mirror.call_tool(taker, {argument: path}))
                    going.append(watched.longest)
                cells = (f"{statistics.median(each):.1f} ms, {max(each):.1f} ms" for each in (coming, going))
                rows.append((name, *cells))
    header = ("value", "arriving: median, longest", "leaving: median, longest")
    show(console, f"Stalls of the event loop in {runs} runs, the longest of each run", header, rows)


async def _beside(mirror: Client, size: int, busy: list[float], stored: list[float]) -> None:
    async def keep_calling() -> None:
        while True:
            busy.append(await timed(mirror.call_tool, "small_small_m", {"text": "x"}))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(keep_calling)
        stored.append(await timed(mirror.call_tool, "big_sized_m", {"size": size}))
        tasks.cancel_scope.cancel()


async def memory(console: Console, runs: int, large: bool) -> None:  # noqa: ARG001, FBT001
    """Peak resident memory of the gateway for a text of some size, stored and passed on."""
    rows = []
    for kind in ("memory", "disk"):
        for size in (20 * MB, 200 * MB, *((1 << 30,) if large else ())):
            with tempfile.TemporaryDirectory() as folder:
                store = {"kind": kind} | ({"path": folder} if kind == "disk" else {})
                settings = {"upstreams": {"bench": upstream()}, "store": store}
                async with through_mirror(settings) as (mirror, process):
                    text_of(await mirror.call_tool("small_mirrored", {"text": "x"}))
                    watch = _Watch(process)
                    base = watch.now()
                    path = path_of(await watch.over(mirror.call_tool("sized_mirrored", {"size": size})))
                    came_in = watch.peak
                    text_of(await watch.over(mirror.call_tool("small_mirrored", {"text": path})))
                    rows.append((
                        kind, f"{size / MB:,.0f} MB", f"{base[0] / MB:.0f} MB",
                        f"+{(came_in[0] - base[0]) / MB:.0f} MB", f"+{(watch.peak[0] - base[0]) / MB:.0f} MB",
                        f"{watch.peak[1] / MB:.0f} MB",
                    ))  # fmt: skip
    header = ("store", "result", "anonymous, idle", "peak coming in", "peak going out", "peak mapped")
    show(console, "Resident memory of the gateway and its workers", header, rows)


class _Watch:
    """Looks at a gateway's memory every few milliseconds."""

    def __init__(self, process: int) -> None:
        self._process = process
        self.peak = (0, 0)

    def now(self) -> tuple[int, int]:
        """Anonymous and shared bytes, and bytes mapped from files, of the gateway and its workers."""
        anonymous = mapped = 0
        for member in family(self._process):
            fields = dict(line.split(":", 1) for line in Path(f"/proc/{member}/status").read_text().splitlines())
            anonymous += sum(int(fields[name].split()[0]) for name in ("RssAnon", "RssShmem")) * 1024
            mapped += int(fields["RssFile"].split()[0]) * 1024
        return anonymous, mapped

    async def over(self, call: Awaitable[Any]) -> Any:
        """The call's result, its peak seen."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._follow)
            result = await call
            tasks.cancel_scope.cancel()
        return result

    async def _follow(self) -> None:
        while True:
            now = self.now()
            self.peak = (max(self.peak[0], now[0]), max(self.peak[1], now[1]))
            await anyio.sleep(0.002)  # a sampling interval


async def rates(console: Console, runs: int, large: bool) -> None:  # noqa: ARG001, FBT001
    """Scanning and splicing, in this process."""
    frame = b'{"jsonrpc":"2.0","id":1,"result":{' + server.grid("short") + b"}}"
    value = bytes(msgspec.json.decode(frame, type=_Frame).result["structuredContent"])
    sink = os.open(os.devnull, os.O_WRONLY)
    jobs: dict[str, Callable[[], object]] = {
        "split a frame": lambda: open_message(frame),
        "index the top level": lambda: members(value, trim(value)),
        "find /raw_grid/5/7/3": lambda: locate(value, ("raw_grid", "5", "7", "3")),
        "find /raw_grid/127/127/127": lambda: locate(value, ("raw_grid", "127", "127", "127")),
        "splice and write": lambda: [os.write(sink, piece) for piece in line_of((b"{", memoryview(value), b"}"))],
        "parse it all (json.loads), for comparison": lambda: json.loads(value),
    }
    rows = []
    for name, job in jobs.items():
        seconds = []
        for _ in range(runs):
            started = time.perf_counter()
            job()
            seconds.append(time.perf_counter() - started)
        median = statistics.median(seconds)
        rows.append((name, f"{median * 1e3:.1f} ms", f"{len(value) / median / 1e9:.2f} GB/s"))
    os.close(sink)
    show(console, f"Rates, on a value of {len(value) / MB:.0f} MB", ("what", "time", "rate"), rows)


class _Frame(msgspec.Struct):
    result: dict[str, msgspec.Raw]
