"""Texts that Python printed, texts that resemble them, and what scripts send are read without a stall."""

import pytest
from mcp import types
from tests.load import measure_pause, slowness

from mcp_mirror import Mirror

STALL = 0.25
"""Seconds of a pass of the event loop on an idle machine. Before, these calls stalled for several times as long."""
SIZE = 8_000_000


@pytest.mark.timeout(60)
async def test_a_text_of_quotes_beside_structured_content_does_not_stall_others() -> None:
    mirror = Mirror()
    text = "[NaN," + '\\"' * 20_000 + "]"

    @mirror.tool
    def report() -> types.CallToolResult:
        return types.CallToolResult(content=[types.TextContent(text=text)], structured_content={"rows": [1, 2]})

    async with mirror:
        assert await measure_pause(mirror.call("report_mirrored", {})) < STALL * slowness()


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{'a': 1, 'b': [" + "1, " * (SIZE // 3) + "1]}", "2"),
        ("[{'a': 1}," + " " * SIZE + "{'a': 2}]", "2"),
        ("['" + "a" * SIZE + "', 1]", "2"),
        ("[NaN," + " " * SIZE + "1]", "2"),
        ("[{'a': " + "x" * SIZE + "}]", str(SIZE + 9)),
    ],
    ids=["numbers", "spaces", "one text", "NaN", "a word"],
)
async def test_a_script_that_reads_a_long_literal_does_not_stall_others(text: str, expected: str) -> None:
    mirror = Mirror()

    @mirror.tool
    def rows() -> str:
        return text

    async with mirror:
        path = (await mirror.call("rows_mirrored", {})).path
        script = {"inputs": {"rows": path}, "code": "len(rows)"}
        await mirror.call("memory_run", {"code": "1"})  # starts a process
        answers: list[str] = []

        async def run() -> None:
            answers.append((await mirror.call("memory_run", script)).text)

        assert await measure_pause(run()) < STALL * slowness()
        assert answers[0].startswith(expected)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("call", ["_call_tool('count', large)", "os.getenv('A', large)"])
async def test_what_a_script_passes_to_no_tool_does_not_stall_others(call: str) -> None:
    code = f"import os\nlarge = {{str(n): [n] for n in range(200_000)}}\n{call}"
    async with Mirror() as mirror:
        await mirror.call("memory_run", {"code": "1"})  # starts a process
        answers: list[str] = []

        async def run() -> None:
            answers.append((await mirror.call("memory_run", {"code": code})).text)

        assert await measure_pause(run()) < STALL / 5 * slowness()
        assert "The script failed in line 3" in answers[0]


@pytest.mark.slow
@pytest.mark.timeout(60)
async def test_a_large_text_where_an_array_is_expected_does_not_stall_others() -> None:
    mirror = Mirror()

    @mirror.tool
    def count(rows: list[int]) -> int:
        return len(rows)

    async with mirror:
        path = await mirror.put("[" + '"a",' * 20_000_000 + "1]]")
        answers: list[str] = []

        async def run() -> None:
            answers.append((await mirror.call("count_mirrored", {"rows": path})).text)

        assert await measure_pause(run()) < STALL * slowness()
        assert "'rows' expects array" in answers[0]
        assert "is text" in answers[0]


@pytest.mark.alone
@pytest.mark.timeout(60)
@pytest.mark.parametrize("content", ["text", "blob"])
async def test_a_large_file_in_a_result_does_not_stall_others(content: str) -> None:
    mirror = Mirror()
    contents = types.TextResourceContents(uri="file:///a.txt", text="A line of a file\n" * 9_000_000)
    binary = types.BlobResourceContents(uri="file:///a.bin", blob="QUJD" * 40_000_000)

    @mirror.tool
    def file() -> types.CallToolResult:
        resource = contents if content == "text" else binary
        return types.CallToolResult(content=[types.EmbeddedResource(resource=resource)])

    @mirror.tool
    def count(rows: list[int]) -> int:
        return len(rows)

    async with mirror:
        path = (await mirror.call("file_mirrored", {})).path
        await mirror.call("memory_run", {"code": "1"})  # starts a process

        async def fail() -> None:
            assert "'rows' expects array" in (await mirror.call("count_mirrored", {"rows": path})).text
            edit = {"memory_path": path, "old_text": "no such text", "new_text": "x"}
            assert (await mirror.call("memory_edit", edit)).is_error
            script = {"inputs": {"rows": path}, "code": "1"}
            assert (await mirror.call("memory_run", script)).text.startswith("1")
            assert "code.values" in (await mirror.call("memory_run", script | {"code": "len(rows)"})).text

        assert await measure_pause(fail()) < STALL / 4 * slowness()
