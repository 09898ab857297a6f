"""The real servers of this suite, how each is started, and ordinary calls of each."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mcp import StdioServerParameters
from tests.real.conftest import NODE_MODULES, PACKAGES

SCRIPTS: Final = Path(__file__).parents[2] / ".venv-everyday" / ("Scripts" if sys.platform == "win32" else "bin")
"""Where `make everyday` installs the Python servers."""
NODE: Final = NODE_MODULES / "node" / "bin" / ("node.exe" if sys.platform == "win32" else "node")
CHROMIUM: Final = Path("/usr/bin/chromium")

NOTE: Final = "# Notes\n\n" + "".join(
    f"- item {number}: caf\u00e9 \u2013 \U0001f600 'quoted' \"twice\"\n" for number in range(8)
)
SOURCE: Final = "".join(f'def f{number}(x: int) -> str:\n    return f"{{x}}-{number}"\n\n\n' for number in range(60))
LOG: Final = "".join(
    f"{number:05} {('info', 'ERROR')[number % 9 == 0]} disk sda took {number % 7} ms\n" for number in range(4000)
)
ROWS: Final = (
    "create table orders as "
    "select range as id, 'customer ' || (range % 97) as name, range * 1.25 as total from range(300)"
)
PAGE: Final = (
    "<html><head><link rel='icon' href='data:,'><title>Orders</title></head>"  # no request, so no error in the console
    "<body><h1>Orders</h1><button>Send</button>{}</body></html>".format(
        "".join(f"<p>Order {number} was sent on day {number % 31}.</p>" for number in range(40))
    )
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where one copy of the servers works: the direct ones and those behind the gateway have a folder each."""

    folder: Path
    url: str
    """Of the local HTTP server, which serves a folder with `page.html` and `large.html`."""

    def file(self, name: str) -> str:
        return str(self.folder / name)


Call = tuple[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Server:
    """One real server."""

    name: str
    start: Callable[[Place], StdioServerParameters]
    calls: Callable[[Place], tuple[Call, ...]]
    needs: tuple[Path, ...] = ()
    """Files without which it cannot be started."""


def _node(package: str, *args: str, **env: str) -> StdioServerParameters:
    return StdioServerParameters(command=str(NODE), args=[package, *args], env=env or None)


def _official(name: str) -> str:
    return str(PACKAGES / f"server-{name}" / "dist" / "index.js")


def _module(*args: str) -> StdioServerParameters:
    return StdioServerParameters(command=sys.executable, args=["-m", *args])


def _script(name: str, *args: str) -> StdioServerParameters:
    return StdioServerParameters(command=str(SCRIPTS / name), args=list(args))


def _files(place: Place) -> tuple[Call, ...]:
    return (
        ("list_allowed_directories", {}),
        ("write_file", {"path": place.file("new.txt"), "content": "one\ntwo\n"}),
        ("read_text_file", {"path": place.file("note.md")}),
        ("read_text_file", {"path": place.file("note.md"), "head": 2}),
        ("list_directory", {"path": place.file("")}),
        ("search_files", {"path": place.file(""), "pattern": "**/*.py"}),
        ("edit_file", {"path": place.file("new.txt"), "edits": [{"oldText": "two", "newText": "three"}]}),
        ("get_file_info", {"path": place.file("new.txt")}),
        ("create_directory", {"path": place.file("sub")}),
        ("read_text_file", {"path": place.file("missing.txt")}),
        ("directory_tree", {"path": place.file("")}),
        ("read_text_file", {"path": place.file("source.py")}),
        ("read_text_file", {"path": place.file("disk.log")}),
        ("read_multiple_files", {"paths": [place.file("note.md"), place.file("source.py")]}),
        ("read_media_file", {"path": place.file("dot.png")}),
    )


def _memory(_: Place) -> tuple[Call, ...]:
    ada = {"name": "Ada", "entityType": "person", "observations": ["writes programs", "likes \U0001f600"]}
    bob = {"name": "Bob", "entityType": "person", "observations": ["reads them"]}
    many = [{"name": f"n{n}", "entityType": "thing", "observations": [f"observation {n}"] * 3} for n in range(80)]
    return (
        ("create_entities", {"entities": [ada, bob]}),
        ("create_relations", {"relations": [{"from": "Ada", "to": "Bob", "relationType": "knows"}]}),
        ("add_observations", {"observations": [{"entityName": "Ada", "contents": ["has a cat"]}]}),
        ("search_nodes", {"query": "cat"}),
        ("open_nodes", {"names": ["Bob"]}),
        ("read_graph", {}),
        ("delete_observations", {"deletions": [{"entityName": "Ada", "observations": ["has a cat"]}]}),
        ("delete_entities", {"entityNames": ["Bob"]}),
        ("search_nodes", {"query": "nothing like this"}),
        ("add_observations", {"observations": [{"entityName": "Nobody", "contents": ["x"]}]}),
        ("create_entities", {"entities": many}),
        ("read_graph", {}),
    )


def _thinking(_: Place) -> tuple[Call, ...]:
    thoughts = [
        {"thought": f"Step {n}", "nextThoughtNeeded": n < 4, "thoughtNumber": n, "totalThoughts": 4}
        for n in (1, 2, 3, 4)
    ]
    return (*(("sequentialthinking", thought) for thought in thoughts), ("sequentialthinking", {"thought": "x"}))


def _everything(_: Place) -> tuple[Call, ...]:
    return (
        ("echo", {"message": "hello"}),
        ("echo", {"message": LOG}),
        ("get-sum", {"a": 2, "b": 40}),
        ("get-sum", {"a": "x", "b": 40}),
        ("get-tiny-image", {}),
        ("get-structured-content", {"location": "Chicago"}),
        ("get-annotated-message", {"messageType": "success", "includeImage": True}),
        ("get-resource-reference", {"resourceType": "Text", "resourceId": 1}),
        ("get-resource-links", {"count": 3}),
    )


def _git(place: Place) -> tuple[Call, ...]:
    repo = {"repo_path": place.file("repo")}
    return (
        ("git_status", repo),
        ("git_log", repo),
        ("git_branch", {**repo, "branch_type": "local"}),
        ("git_diff_unstaged", repo),
        ("git_show", {**repo, "revision": "HEAD"}),
        ("git_diff", {**repo, "target": "HEAD~1"}),
        ("git_add", {**repo, "files": ["source.py"]}),
        ("git_create_branch", {**repo, "branch_name": "topic"}),
        ("git_checkout", {**repo, "branch_name": "no such branch"}),
    )


def _time(_: Place) -> tuple[Call, ...]:
    at_ten = {"source_timezone": "UTC", "time": "10:00", "target_timezone": "Asia/Tokyo"}
    return (
        ("get_current_time", {"timezone": "Europe/Paris"}),
        ("convert_time", at_ten),
        ("convert_time", {**at_ten, "time": "25:99"}),
        ("get_current_time", {"timezone": "Nowhere"}),
    )


def _fetch(place: Place) -> tuple[Call, ...]:
    return (
        ("fetch", {"url": f"{place.url}/page.html"}),
        ("fetch", {"url": f"{place.url}/page.html", "raw": True}),
        ("fetch", {"url": f"{place.url}/large.html", "max_length": 100_000}),
        ("fetch", {"url": f"{place.url}/page.html", "start_index": 100_000}),
        ("fetch", {"url": f"{place.url}/missing.html"}),
    )


def _duckdb(_: Place) -> tuple[Call, ...]:
    return (
        ("execute_query", {"sql": ROWS}),
        ("list_tables", {}),
        ("list_columns", {"table": "orders"}),
        ("execute_query", {"sql": "select count(*) as n, sum(total) as s from orders"}),
        ("execute_query", {"sql": "select * from orders limit 5"}),
        ("execute_query", {"sql": "select * from orders"}),
        ("execute_query", {"sql": "select nope from orders"}),
        ("list_columns", {"table": "missing"}),
    )


def _excel(place: Place) -> tuple[Call, ...]:
    book = {"path": place.file("book.xlsx")}
    sheet = {**book, "sheet": "Orders"}
    rows = [["id", "name", "total"], *([n, f"customer {n % 97}", n * 1.25] for n in range(300))]
    return (
        ("create_workbook", {**book, "sheets": ["Orders"]}),
        ("write_range", {**sheet, "at": "A1", "rows": rows}),
        ("describe_workbook", book),
        ("read_range", {**sheet, "range": "A1:C3"}),
        ("read_range", {**sheet, "range": "A1:C301"}),
        ("find_cells", {**book, "query": "customer 5", "exact": True}),
        ("export_workbook", book),
        ("read_range", {**sheet, "range": "not a range"}),
        ("describe_sheet", {**book, "sheet": "Missing"}),
    )


def _playwright(place: Place) -> tuple[Call, ...]:
    return (
        ("browser_navigate", {"url": f"{place.url}/page.html"}),
        ("browser_snapshot", {}),
        ("browser_take_screenshot", {}),
        ("browser_evaluate", {"function": "() => document.title"}),
        ("browser_evaluate", {"function": "() => document.body.innerText.repeat(9)"}),
        ("browser_click", {"target": "no such element"}),
        ("browser_evaluate", {"function": "() => { throw new Error('broken') }"}),
    )


_BROWSER: Final = ("--headless", "--no-sandbox", "--isolated", "--executable-path", str(CHROMIUM))

INSTALLED: Final = (
    Server("files", lambda place: _node(_official("filesystem"), str(place.folder)), _files, (NODE,)),
    Server("memory", lambda place: _node(_official("memory"), MEMORY_FILE_PATH=place.file(".graph")), _memory, (NODE,)),
    Server("git", lambda _: _module("mcp_server_git"), _git),
    Server("time", lambda _: _module("mcp_server_time", "--local-timezone", "UTC"), _time),
)
"""The servers that are installed with the test dependencies; `make test-slow` runs them."""

ALL: Final = (
    *INSTALLED,
    Server("thinking", lambda _: _node(_official("sequential-thinking")), _thinking, (NODE,)),
    Server("everything", lambda _: _node(_official("everything"), "stdio"), _everything, (NODE,)),
    Server(
        "fetch",
        lambda _: _script("mcp-server-fetch", "--ignore-robots-txt", "--allow-private-ips"),
        _fetch,
        (SCRIPTS / "mcp-server-fetch",),
    ),
    Server(
        "duckdb",
        lambda _: _script("mcp-server-motherduck", "--db-path", ":memory:", "--read-write"),
        _duckdb,
        (SCRIPTS / "mcp-server-motherduck",),
    ),
    Server("excel", lambda _: _script("excel-mcp-server", "stdio"), _excel, (SCRIPTS / "excel-mcp-server",)),
    Server(
        "playwright",
        lambda place: _node(
            str(NODE_MODULES / "@playwright" / "mcp" / "cli.js"), *_BROWSER, "--output-dir", place.file("browser")
        ),
        _playwright,
        (NODE, CHROMIUM),
    ),
)
"""The servers of `make everyday`."""
