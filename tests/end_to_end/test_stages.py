"""Custom stages: passed by a program, or named as entry points in the configuration."""

import asyncio
import dataclasses
import importlib.util
import subprocess
from pathlib import Path
from typing import Any

import pytest
from gateway_processes import forked_python
from mcp import Client, MCPError
from mcp_types import INTERNAL_ERROR
from msgspec.structs import replace
from tests.end_to_end.conftest import BOUND

from mcp_mirror import Call, Mirror, Next, SyncMirror, ToolResult
from mcp_mirror.app import open_application
from mcp_mirror.callers import LOCAL, Caller, NullChannel
from mcp_mirror.config import parse_config
from mcp_mirror.errors import ConfigError, ToolError
from mcp_mirror.security.pins import NO_PINS

EXAMPLE = Path(__file__).parents[2] / "examples" / "quota_stage.py"
PACKAGE = """
from mcp_mirror.errors import ToolError

async def closed(call, call_next):
    raise ToolError(f"{call.name} is closed.")
"""


def test_the_example_prints_two_results_and_a_refusal() -> None:
    run = subprocess.run(forked_python(str(EXAMPLE)), capture_output=True, text=True, check=True, timeout=60)
    *found, refused = run.stdout.splitlines()
    assert found == ["Nothing about pipelines.", "Nothing about stages."]
    assert refused.startswith("search_mirrored was called 2 times")


async def test_a_stage_may_replace_the_reply() -> None:
    async def shout(call: Call, call_next: Next) -> ToolResult:
        reply = await call_next(call)
        content: Any = reply["content"]
        return {**reply, "content": b"".join(content).upper() if isinstance(content, tuple) else content.upper()}

    mirror = Mirror(stages=[shout])

    @mirror.tool
    def say(word: str) -> str:
        return word

    async with mirror:
        reply = await mirror.call("say_mirrored", {"word": "quiet"})
    assert "QUIET" in str(reply.content)


async def test_the_documented_stage_reads_calls_of_programs_and_clients() -> None:
    guide = (EXAMPLE.parents[1] / "docs" / "guides" / "library.md").read_text(encoding="utf-8")
    source = next(block for block in guide.split("```python\n") if "async def mark" in block).partition("```")[0]
    module: dict[str, Any] = {}
    exec(source, module)  # noqa: S102  # our own documentation
    mirror = Mirror(stages=[module["mark"]])

    @mirror.tool
    def say(word: str, language: str) -> str:
        return f"{word} ({language})"

    served: asyncio.Queue[str] = asyncio.Queue()
    async with mirror, asyncio.timeout(BOUND):
        reply = await mirror.call("say_mirrored", {"word": "yes"})
        texts = [block["text"] for block in reply.content]
        serving = asyncio.create_task(mirror.serve_http(announce=served.put_nowait))
        async with Client(await served.get()) as client:
            result = await client.call_tool("say_mirrored", {"word": "yes"})
        serving.cancel()
    assert texts == [block.text for block in result.content if block.type == "text"] == ["yes (en)", "Checked."]


async def passes_nothing_on(call: Call, call_next: Next) -> Any:
    await call_next(call)


async def writes_objects(call: Call, call_next: Next) -> Any:
    return {**await call_next(call), "content": [{"type": "text", "text": "Closed."}]}


async def passes_objects_on(call: Call, call_next: Next) -> Any:
    arguments: Any = {"word": "yes"}
    return await call_next(dataclasses.replace(call, arguments=arguments))


def answers_at_once(_call: Call, _call_next: Next) -> Any:
    return {"content": b"[]"}


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        (passes_nothing_on, "The stage 'passes_nothing_on' returned a NoneType. Return the reply of `call_next`"),
        (writes_objects, "The member 'content' of the reply of the stage 'writes_objects' is a list. Write it as JSON"),
        (passes_objects_on, "The stage 'passes_objects_on' passed on arguments that are a dict. Write them as JSON"),
        (answers_at_once, "The stage 'answers_at_once' is not `async`"),
    ],
)
async def test_an_error_names_a_stage_that_returns_something_else(stage: Any, message: str) -> None:
    mirror = Mirror(stages=[stage])

    @mirror.tool
    def say(word: str) -> str:
        return word

    async with mirror:
        with pytest.raises(TypeError) as raised:
            await mirror.call("say_mirrored", {"word": "yes"})
    assert message in str(raised.value)


@pytest.mark.parametrize("version", ["legacy", "2026-07-28"])
async def test_a_client_does_not_get_the_message_of_an_exception(
    version: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(_call: Call, _call_next: Next) -> Any:
        raise KeyError("c4nary")

    mirror = Mirror(stages=[fails])

    @mirror.tool
    def say(word: str) -> str:
        return word

    served: asyncio.Queue[str] = asyncio.Queue()
    async with mirror, asyncio.timeout(BOUND):
        serving = asyncio.create_task(mirror.serve_http(announce=served.put_nowait))
        async with Client(await served.get(), mode=version) as client:
            for _ in range(2):  # the second call is on the direct path
                with pytest.raises(MCPError) as raised:
                    await client.call_tool("say_mirrored", {"word": "yes"})
                assert (raised.value.error.code, "program" in str(raised.value)) == (INTERNAL_ERROR, True)
                assert "c4nary" not in str(raised.value)
        serving.cancel()
    assert caplog.text.count("handler for 'tools/call' raised") == 2


class Idle:
    async def __call__(self, call: Call, call_next: Next) -> ToolResult:
        return await call_next(call)


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([Idle(), Idle], "Stage 2 of `stages` is the class Idle. Give an object of the class, such as Idle()."),
        (Idle(), "`stages` is one stage. Give a list: stages=[...]."),
        (["quota"], "Stage 1 of `stages` is a str. Give an `async` function, or an object with `async def __call__`."),
    ],
)
def test_a_stage_that_cannot_be_called_is_an_error_at_once(stages: Any, message: str) -> None:
    with pytest.raises(TypeError) as raised:
        Mirror(stages=stages)
    assert str(raised.value) == message


async def test_stages_of_a_generator_are_used_at_each_opening() -> None:
    async def closed(call: Call, _call_next: Next) -> ToolResult:
        raise ToolError(f"{call.name} is closed.")

    stages: Any = (stage for stage in [closed])
    mirror = Mirror(stages=stages)
    mirror.tool(lambda: 5, name="now")
    for _ in range(2):
        async with mirror:
            assert str(await mirror.call("now_mirrored")) == "now_mirrored is closed."


def test_a_synchronous_mirror_takes_stages_too() -> None:
    specification = importlib.util.spec_from_file_location("quota_stage", EXAMPLE)
    assert specification is not None
    assert specification.loader is not None
    example = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(example)
    mirror = SyncMirror(stages=[example.Quota(most=0)])
    mirror.tool(example.search)
    with mirror:
        assert mirror.call("search_mirrored", {"text": "x"}).is_error


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a package with a stage."""
    (tmp_path / "stage_package.py").write_text(PACKAGE)
    metadata = tmp_path / "stage_package-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: stage-package\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[mcp_mirror.stages]\nclosed = stage_package:closed\nbroken = stage_package:missing\nwhole = stage_package\n"
        "failing = failing_stages:closed\nending = ending_stages:closed\ntwice = stage_package:closed\n"
    )
    other = tmp_path / "other_package-1.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: other-package\nVersion: 1.0\n")
    (other / "entry_points.txt").write_text(
        "[mcp_mirror.stages]\ntwice = other:closed\nclosed = stage_package:closed\n"
    )
    (tmp_path / "failing_stages.py").write_text("raise RuntimeError('c4nary')")
    (tmp_path / "ending_stages.py").write_text("raise SystemExit(0)")
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("installed")
async def test_the_configuration_names_stages_of_installed_packages() -> None:
    async with Mirror(upstreams={"mirror": {"stages": ["closed"]}}) as mirror:
        reply = await mirror.call("memory_list")
    assert reply.is_error
    assert "memory_list is closed." in reply.text


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("close", "Did you mean 'closed'"),
        ("broken", "'broken' of `mirror.stages` cannot be"),
        ("whole", "'whole' of `mirror.stages` is a module. Give an `async` function"),
        ("failing", "it raised RuntimeError. To read the error, import failing_stages with Python"),
        ("ending", "it raised SystemExit. To read the error, import ending_stages with Python"),
        ("twice", "several installed packages provide: other:closed, stage_package:closed. Uninstall all but one."),
    ],
)
async def test_a_stage_that_cannot_be_loaded_is_a_configuration_error(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        async with Mirror(upstreams={"mirror": {"stages": [name]}}):
            pytest.fail("it opened")


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("unusable", ["nowhere", "failing", "ending"])
async def test_a_reload_changes_stages_and_fails_whole_if_one_is_unusable(unusable: str, tmp_path: Path) -> None:
    config = parse_config("store: {kind: memory}", tmp_path / "mcp-mirror.yaml", {})

    async with open_application(config) as application:
        gateway = application.gateway

        async def is_closed() -> bool:
            reply = await gateway.state.answer(gateway.new_call(NullChannel(Caller(LOCAL)), "memory_list", b"{}"))
            return b"closed" in b"".join(map(bytes, reply["content"]))

        assert not await is_closed()
        application.reload(replace(config, mirror=replace(config.mirror, stages=("closed",))), NO_PINS)
        assert await is_closed()
        state = gateway.state
        with pytest.raises(ConfigError):
            application.reload(replace(config, mirror=replace(config.mirror, stages=(unusable,))), NO_PINS)
        assert gateway.state is state
