"""Real servers, called directly and through one gateway, side by side.

`make test-slow` runs the servers that are installed anyway; `make everyday` (EVERYDAY_FULL=1) runs all of them and
prints a table. EVERYDAY_WRITE_DOCS=1 also writes its totals into docs/evaluation/everyday.md.
"""

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from time import monotonic
from typing import Any, Final

import pytest
from tests.everyday.servers import ALL, INSTALLED, LOG, NOTE, PAGE, SOURCE, Place, Server
from tests.real.conftest import (
    START,
    Connect,
    Connection,
    Missing,
    RunGit,
    Serve,
    WriteConfig,
    command,
    connect,
    missing,
    run_git,
    serve,
    write_config,
)

__all__ = ["command", "connect", "missing", "run_git", "serve", "write_config"]

FULL: Final = "EVERYDAY_FULL" in os.environ
SERVERS: Final = ALL if FULL else INSTALLED
ROOT: Final = Path(__file__).parents[2]
BEGIN: Final = "<!-- everyday: written by `make everyday` -->"
END: Final = "<!-- end of everyday -->"
_PIXEL: Final = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360f8cf500f0003860180"
    "5a34a97b0000000049454e44ae426082"
)
_TITLES: Final = ("Server", "Calls", "Tokens direct", "Through", "Ratio", "As they came", "Shown", "Stored", "Errors")


@dataclass(slots=True)
class Row:
    """What the calls of one server cost."""

    server: str
    calls: int = 0
    direct: int = 0
    """Tokens of the results without the gateway."""
    through: int = 0
    same: int = 0
    shown: int = 0
    stored: int = 0
    errors: int = 0

    @property
    def cells(self) -> tuple[str, ...]:
        numbers = (f"{self.direct:,}", f"{self.through:,}", f"{self.through / (self.direct or 1):.2f}")
        return self.server, str(self.calls), *numbers, *map(str, (self.same, self.shown, self.stored, self.errors))


class _Quiet(SimpleHTTPRequestHandler):
    """A handler that prints nothing."""

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a local HTTP server with two pages."""
    folder = tmp_path_factory.mktemp("pages")
    (folder / "page.html").write_text(PAGE, encoding="utf-8")
    (folder / "large.html").write_text(PAGE.replace("</body>", f"<pre>{LOG}</pre></body>"), encoding="utf-8")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


NewPlace = Callable[[], Place]


@pytest.fixture(scope="session")
def new_place(tmp_path_factory: pytest.TempPathFactory, run_git: RunGit, pages: str) -> NewPlace:
    """A folder with files and a git repository, the same each time."""
    template = tmp_path_factory.mktemp("template")
    _fill(template, run_git)

    def make() -> Place:
        folder = tmp_path_factory.mktemp("place").resolve() / "work"
        shutil.copytree(template, folder)
        return Place(folder, pages)

    return make


def _fill(folder: Path, run_git: RunGit) -> None:
    for name, text in (("note.md", NOTE), ("source.py", SOURCE), ("disk.log", LOG)):
        (folder / name).write_bytes(text.encode())
    (folder / "dot.png").write_bytes(_PIXEL)
    repo = folder / "repo"
    repo.mkdir()
    run_git(repo, "init", "--quiet", "--initial-branch", "main")
    for key, value in (("user.name", "Ada"), ("user.email", "ada@example.org"), ("core.autocrlf", "false")):
        run_git(repo, "config", key, value)
    for text in (NOTE, NOTE + SOURCE[:900]):
        (repo / "source.py").write_bytes(text.encode())
        run_git(repo, "add", "--all")
        run_git(repo, "commit", "--quiet", "--message", "Change the source")
    (repo / "source.py").write_bytes(SOURCE.encode())


@pytest.fixture(scope="session")
def through_place(new_place: NewPlace) -> Place:
    """Where the servers behind the gateway work."""
    return new_place()


@pytest.fixture(scope="session")
def available(missing: Missing) -> tuple[Server, ...]:
    """The servers of this run that are installed."""
    found = tuple(server for server in SERVERS if all(path.exists() for path in server.needs))
    if not found:
        missing("No server is installed.")
    return found


Gateway = Callable[..., Connection]


@pytest.fixture(scope="session")
def open_gateway(connect: Connect, serve: Serve, write_config: WriteConfig) -> Gateway:
    """A gateway in front of these servers, which has connected to all of them."""

    def start(servers: Iterable[Server], place: Place, **mirror: Any) -> Connection:
        config = write_config({server.name: server.start(place) for server in servers}, mirror=mirror)
        _add_environment(config, servers, place)
        gateway = connect(serve(config))
        deadline = monotonic() + START
        expected = {f"{server.calls(place)[0][0]}_mirrored" for server in servers}
        while absent := expected - {tool.name for tool in gateway.tools()}:
            assert monotonic() < deadline, f"the gateway does not list {absent}"
        return gateway

    return start


def _add_environment(config: Path, servers: Iterable[Server], place: Place) -> None:
    """Give each upstream the environment of its server."""
    sections = json.loads(config.read_text(encoding="utf-8"))
    for server in servers:
        if env := server.start(place).env:
            sections["upstreams"][server.name]["env"] = env
    config.write_text(json.dumps(sections), encoding="utf-8")


@pytest.fixture(scope="session")
def gateway(open_gateway: Gateway, available: tuple[Server, ...], through_place: Place) -> Connection:
    """The gateway in front of all servers of this run."""
    return open_gateway(available, through_place, answer_budget=200_000)


@pytest.fixture(scope="session")
def direct(connect: Connect, new_place: NewPlace) -> Callable[[Server], tuple[Connection, Place]]:
    """A connection to a server itself, and where it works."""
    known: dict[str, tuple[Connection, Place]] = {}

    def start(server: Server) -> tuple[Connection, Place]:
        if server.name not in known:
            place = new_place()
            known[server.name] = connect(server.start(place)), place
        return known[server.name]

    return start


@pytest.fixture(params=SERVERS, ids=lambda server: server.name)
def server(request: pytest.FixtureRequest, missing: Missing) -> Server:
    """Each server of this run."""
    one: Server = request.param
    if absent := [str(path) for path in one.needs if not path.exists()]:
        missing(f"Not installed: {', '.join(absent)}; `make everyday` installs it, apart from chromium.")
    return one


Record = Callable[[Row], None]


@pytest.fixture
def record(record_property: Callable[[str, object], None]) -> Record:
    """Add a row to the table."""
    return lambda row: record_property("everyday", asdict(row))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the rows as a table; with EVERYDAY_WRITE_DOCS also write the totals into the docs, if no test failed."""
    reports = [one for outcome in ("passed", "failed") for one in terminalreporter.getreports(outcome)]
    found = [(key, value) for one in reports for key, value in one.user_properties]
    rows = [Row(**value) for key, value in found if key == "everyday"]
    if not rows:
        return
    total = Row("all")
    for row in rows:
        for name in Row.__slots__[1:]:
            setattr(total, name, getattr(total, name) + getattr(row, name))
    definitions = [value for key, value in found if key == "everyday definitions"]
    lines = [say_definitions("all servers", *(sum(one[at] for one in definitions) for at in (1, 2)))]
    lines += [value for key, value in found if key == "everyday line"]
    terminalreporter.section("everyday calls, direct and through the gateway (tokens of o200k)")
    terminalreporter.write_line(
        "\n".join((*table_of((*rows, total)), *(say_definitions(*one) for one in definitions), *lines))
    )
    if os.environ.get("EVERYDAY_WRITE_DOCS") and not terminalreporter.getreports("failed"):
        _write_docs(total, len(rows), lines)


def say_definitions(servers: str, tokens: int, extra: int) -> str:
    return f"Definitions of {servers}: {tokens:,} tokens, and {extra:,} more as twins ({extra / (tokens or 1):.0%})."


def _write_docs(total: Row, servers: int, lines: Iterable[str]) -> None:
    page = ROOT / "docs" / "evaluation" / "everyday.md"
    argv = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True, timeout=30).stdout.strip()
    when = f"{servers} servers, {datetime.now(UTC):%Y-%m-%d}, commit {commit}:"
    before, rest = page.read_text(encoding="utf-8").split(BEGIN)
    text = "\n".join((BEGIN, when, "", *table_of([total]), "", *(f"- {line}" for line in lines)))
    page.write_text(f"{before}{text}\n{END}{rest.split(END)[1]}", encoding="utf-8")


def table_of(rows: Iterable[Row]) -> Iterator[str]:
    """The lines of a Markdown table, aligned."""
    lines = [_TITLES, *(row.cells for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_TITLES))]
    lines.insert(1, tuple("-" * width for width in widths))
    for line in lines:
        yield "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"
