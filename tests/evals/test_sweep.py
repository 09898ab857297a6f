"""Every case with a scripted model that succeeds and one that fails the expected checks, with a real gateway."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import cycle
from pathlib import Path

import pytest
from arms import ARMS
from gateway_processes import forked_python
from scripted import SCRIPTS, scripted_server
from scripted_runs import CASES, joined, run_script, setting_of

from mcp_mirror.errors import UpstreamError
from mcp_mirror.evals.cases import Case
from mcp_mirror.evals.conversation import Call
from mcp_mirror.evals.dialects import ToolsMode
from mcp_mirror.evals.matrix import PLAIN, Model, merge
from mcp_mirror.evals.profiles import load_case
from mcp_mirror.evals.servers import RunFolder, Servers, start_servers

pytestmark = pytest.mark.usefixtures("forked_servers")

PAPER = ("molecule_grid", "safety_data_sheet")
SEPARATE = "expired_path"
OFFICE = (*sorted(SCRIPTS.keys() - {*PAPER, SEPARATE, "many_tools"}), "many_tools")
GROUPS = (OFFICE, PAPER, (SEPARATE,))
"""Cases that share a gateway, to save its start. Scripts depend only on the conversation."""


def test_every_case_has_its_scripts() -> None:
    assert sorted([*SCRIPTS, *ARMS, "screenshot"]) == sorted(path.stem for path in CASES.glob("*.md"))


@asynccontextmanager
async def servers_of(cases: list[Case], folder: Path) -> AsyncIterator[Servers]:
    run_folder = RunFolder(folder, CASES)
    config = run_folder.prepare(joined(cases), {})
    async with start_servers(run_folder, config, gateway=True) as servers:
        yield servers


MODES: tuple[ToolsMode, ...] = ("native", "json_schema", "json_text")


@pytest.mark.parametrize(
    "names",
    [pytest.param(names, marks=() if names is OFFICE else pytest.mark.slow) for names in GROUPS],
    ids=lambda names: names[0],
)
async def test_a_good_model_passes_and_a_bad_one_fails_the_expected_checks(
    names: tuple[str, ...], tmp_path: Path
) -> None:
    cases = [load_case(CASES / f"{name}.md") for name in names]
    with scripted_server() as server:
        async with servers_of(cases, tmp_path) as servers:
            for case, tools in zip(cases, cycle(MODES), strict=False):
                bad = await run_script(servers, server, case, "bad")
                failed = [check["name"] for check in bad["checks"] if not check["passed"]]
                assert (case.name, failed, bad["success"]) == (case.name, SCRIPTS[case.name]["fails"], False)
                assert all(check["reason"] for check in bad["checks"] if not check["passed"])
                good = await run_script(servers, server, case, "good", tools)
                assert [check for check in good["checks"] if not check["passed"]] == [], case.name
                assert good["success"], case.name
                assert good["exact"] is not False, case.name
                assert good["received"] is not False, case.name


async def test_without_the_gateway_the_same_case_passes_values(tmp_path: Path) -> None:
    case = load_case(CASES / "save.md")
    run_folder = RunFolder(tmp_path, CASES)
    with scripted_server() as server:
        server.scripts["save/direct"] = [
            {"read_minutes": {"meeting": "autumn"}},
            {"save_file": {"name": "autumn.txt", "content": "${LAST}"}},
            "Saved.",
        ]
        config = run_folder.prepare(setting_of(case, Model("scripted", server.url), gateway=False).config, {})
        async with start_servers(run_folder, config, gateway=False) as servers:
            assert [tool.name for tool in servers.tools] == ["read_minutes", "save_file"]
            record = await run_script(servers, server, case, "direct", gateway=False, style=PLAIN, few_shot=True)
            assert [check for check in record["checks"] if not check["passed"]] == []
            assert (record["success"], record["exact"], record["received"]) == (True, None, True)
            assert record["estimated_tokens"]["conversation"] > 4000


async def test_a_model_that_searches_calls_tools_that_are_not_listed(tmp_path: Path) -> None:
    case = load_case(CASES / "many_tools.md")
    run_folder = RunFolder(tmp_path, CASES)
    with scripted_server() as server:
        server.scripts["many_tools/search"] = [
            {"find_tools": {"query": "read minutes; count words"}},
            {"call_tool": {"name": "read_minutes", "arguments": {"meeting": "spring"}}},
            {"call_tool": {"name": "count_words_mirrored", "arguments": {"text": "${PATH_1}"}}},
            "They have ${LAST}",
        ]
        changed = merge(joined([case]), {"mirror": {"listing": "search"}})
        async with start_servers(run_folder, run_folder.prepare(changed, {}), gateway=True) as servers:
            assert "read_minutes_mirrored" not in {tool.name for tool in servers.tools}
            record = await run_script(servers, server, case, "search")
            assert [check for check in record["checks"] if not check["passed"]] == []
            assert (record["success"], record["exact"], record["received"]) == (True, True, True)


async def test_a_lost_server_makes_the_run_void(tmp_path: Path) -> None:
    raw = Path(__file__).parents[1] / "end_to_end" / "servers" / "raw.py"
    upstreams = {"raw": {"command": "${PYTHON}", "args": [str(raw), "ok"]}}
    case = Case(title="Lost", servers={"upstreams": upstreams}, name="lost", prompt="Go.", digest="0")
    run_folder = RunFolder(tmp_path, tmp_path)
    with scripted_server() as server:
        server.scripts["lost/dying"] = [{"die": {}}, "It is dead."]
        config = run_folder.prepare(case.servers, {})
        async with start_servers(run_folder, config, gateway=False) as servers:
            record = await run_script(servers, server, case, "dying", gateway=False)
            assert (record["end"], record["success"]) == ("error", False)
            assert "connection" in record["detail"]


async def test_a_call_without_an_answer_times_out(tmp_path: Path) -> None:
    raw = Path(__file__).parents[1] / "end_to_end" / "servers" / "raw.py"
    upstream = {"command": "${PYTHON}", "args": [str(raw), "ok"], "timeout": 2}
    run_folder = RunFolder(tmp_path, tmp_path)
    async with start_servers(
        run_folder, run_folder.prepare({"upstreams": {"raw": upstream}}, {}), gateway=False
    ) as servers:
        files = {"started": str(tmp_path / "started"), "until": str(tmp_path / "until")}
        made = await servers.make_call(Call("c", "hang", files))
        (tmp_path / "until").touch()
        assert made.result.is_error
        assert "imed out" in made.result.text


async def test_the_error_of_a_failed_start_quotes_the_server(tmp_path: Path) -> None:
    run_folder = RunFolder(tmp_path, tmp_path)
    config = run_folder.prepare(
        {"upstreams": {"gone": {"command": "${PYTHON}", "args": ["-c", "raise OSError('no key')"]}}}, {}
    )
    with pytest.raises(UpstreamError, match="no key"):
        async with start_servers(run_folder, config, gateway=False):
            pass


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, "store"), ({"ttl": "1m"}, "store"), ({"path": "own"}, "own"), ({"kind": "memory"}, "store")],
)
def test_a_run_has_a_store_of_its_own(given: dict[str, str], expected: str, tmp_path: Path) -> None:
    config = RunFolder(tmp_path, tmp_path).prepare({"upstreams": {}, "store": given} if given else {}, {})
    assert config.store.path == str(tmp_path / expected)


@pytest.mark.parametrize("transport", ["http", "sse"])
async def test_without_the_gateway_http_servers_work_too(tmp_path: Path, transport: str) -> None:
    chemist = Path(__file__).parents[1] / "end_to_end" / "servers" / "chemist.py"
    program = await asyncio.create_subprocess_exec(
        *forked_python(str(chemist), transport), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert program.stdout is not None
        port = int(await asyncio.wait_for(program.stdout.readline(), 20))
        path, kind = ("mcp", "streamable-http") if transport == "http" else ("sse", "sse")
        upstream = {"url": f"http://127.0.0.1:{port}/{path}", "transport": kind, "tools": {"allow": ["measure"]}}
        run_folder = RunFolder(tmp_path, tmp_path)
        async with start_servers(
            run_folder, run_folder.prepare({"upstreams": {"far": upstream}}, {}), gateway=False
        ) as servers:
            assert [tool.name for tool in servers.tools] == ["measure"]
            made = await servers.make_call(Call("c", "measure", {"text": "abc"}))
            assert (made.result.text, made.result.is_error) == ('{"result": 3}', False)
    finally:
        program.terminate()
        await asyncio.wait_for(program.wait(), 20)
