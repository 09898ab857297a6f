"""An upstream without previews: clients get no byte of its results until they request it."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
from preview_samples import CANARY, RESULTS
from tests.end_to_end.conftest import SERVERS

if TYPE_CHECKING:
    from tests.end_to_end.conftest import Configured, OpenClient, OpenLines

SECRET = {"env": {"SECRET": f"{CANARY}-env"}}


def path_of(content: str) -> str:
    return content.split("\n", 1)[0].strip('"')


@pytest.mark.parametrize("spool", ["16MiB", "1KiB"], ids=["in memory", "in files"])
async def test_a_client_gets_no_byte_of_it_and_hands_all_of_it_on(
    configured: Configured, open_lines: OpenLines, raw: Any, spool: str
) -> None:
    upstreams = {"hidden": raw("ok", "--name", CANARY) | SECRET | {"preview": False}, "open": raw()}
    config = configured(upstreams, limits={"spool_bytes": spool}, mirror={"expose_originals": True})
    async with open_lines(config) as client:
        greeting = await client.greet()
        assert "Server open: I am raw" in greeting["instructions"]
        assert CANARY not in json.dumps(greeting)
        listed = [tool["name"] for tool in json.loads(await client.request("tools/list"))["result"]["tools"]]
        assert "open_say" in listed
        assert "hidden_say" not in listed
        paths: dict[str, str] = {}
        for name, result in RESULTS.items():
            padded = {**result, "padding": "." * 1500}
            answer = await client.call("hidden_say_mirrored", json.dumps({"result": json.dumps(padded)}))
            assert CANARY.encode() not in answer, name
            if content := json.loads(answer)["result"]["content"]:
                paths[name] = path_of(content[0]["text"])
        failed = {**RESULTS["structured"], "isError": True}
        failure = json.loads(await client.call("hidden_say_mirrored", json.dumps({"result": json.dumps(failed)})))[
            "result"
        ]
        assert failure["isError"] is True
        assert CANARY not in json.dumps(failure)
        at = f"{paths['structured']}/~#2/~#0"
        received = await client.text("open_hear_mirrored", {"text": at})
        assert CANARY not in received  # what it was given may be what it says
        assert CANARY in await client.text("retrieve_final_answer_from_memory", {"memory_path": path_of(received)})
        assert await client.text("retrieve_final_answer_from_memory", {"memory_path": at}) == CANARY
        unknown = await client.text("open_hear_mirrored", {"text": f"{paths['structured']}/x"})
        assert unknown.endswith('has no key "x". Its keys are hidden; name them by position: "/~#0" to "/~#3".')
        assert CANARY not in await client.text("memory_list")
        edited = await client.text("memory_edit", {"memory_path": paths["structured"], "merge": {"b~": 1}})
        assert CANARY not in edited
        assert '"~#1" number' in edited


async def test_nor_does_one_get_its_errors_and_last_words(
    configured: Configured, open_lines: OpenLines, raw: Any
) -> None:
    upstreams = {
        "hidden": raw("ok", "--mine", f"{CANARY}-argument"),
        "leaks": raw("leaks", f"{CANARY}-argument"),
        "refuses": raw("refuses", f"{CANARY}-argument"),
    }
    async with open_lines(
        configured(upstreams, mirror={"preview": False, "suffix": "", "capture": "never"}), "-vv"
    ) as client:
        answers = [json.dumps(await client.greet()), await client.text("hear", {"text": CANARY})]
        refused = await client.text("refuse")
        answers += [refused, await client.text("die"), await client.text("hear", {"text": CANARY})]
        answers.append((await client.request("resources/read", '{"uri":"mcp-mirror://upstreams"}')).decode())
    assert refused == "Upstream 'hidden' refused 'refuse' (error -32000). Its message is hidden (`preview: false`)."
    assert not [text for text in [*answers, b"".join(client.stderr).decode()] if CANARY in text]


async def test_a_value_of_it_that_does_not_fit_a_schema_is_not_repeated(
    open_client: OpenClient, raw: Any, tmp_path: Any
) -> None:
    fields = {"text": {"type": "string", "pattern": "^[0-9]+$"}, "rows": {"type": "array"}}
    schema = {"type": "object", "properties": fields}
    tools = [{"name": "hear", "inputSchema": schema}]
    (tmp_path / "tools").write_text(json.dumps(tools))
    upstreams = {"hidden": raw() | {"preview": False}, "open": raw("ok", "--tools", str(tmp_path / "tools"))}
    async with open_client(upstreams) as client:
        result = json.dumps({"content": [], "structuredContent": {"a": CANARY, f"rows of {CANARY}": [1]}})
        path = path_of(await client.text("say_mirrored", {"result": result}))
        answer = await client.text("open_hear_mirrored", {"text": f"{path}/~#0"})
        for given in ("the rows", path, f"{path}/~#0"):
            refused = await client.text("open_hear_mirrored", {"rows": given})
            assert CANARY not in refused
            assert "rows" in refused
    assert "the value of a memory path does not match the tool's schema" in answer
    assert CANARY not in answer


async def test_a_late_message_about_a_value_of_it_is_hidden(
    configured: Configured, open_lines: OpenLines, raw: Any
) -> None:
    late = {"command": sys.executable, "args": ["-S", str(SERVERS / "late.py")], "timeout": 1}
    config = configured({"hidden": raw() | {"preview": False}, "late": late})
    async with open_lines(config) as client:
        await client.greet(sampling={}, elicitation={})
        result = json.dumps({"content": [{"type": "text", "text": CANARY}]})
        path = path_of(await client.text("say_mirrored", {"result": result}))
        assert "did not answer" in await client.text("work_mirrored", {"subject": path, "hangs": True})
        await client.send(
            '{"jsonrpc":"2.0","id":99,"method":"tools/call",'
            '"params":{"name":"work_mirrored","arguments":{"subject":"another"}}}'
        )
        received = [await client.receive()]
        while json.loads(received[-1]).get("id") != 99:
            received.append(await client.receive())
    methods = [json.loads(line).get("method") for line in received if CANARY in line.decode()]
    assert methods in ([], ["elicitation/create"])  # a person reads it
