"""Labels of scripts: no transformation in a script removes them, and hidden values never become visible."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from flow_user import HIDING, PATH, SECRET, STRICT, path_in, upstream

from mcp_mirror.callers import LOCAL
from mcp_mirror.memory.resources import list_values

if TYPE_CHECKING:
    from pathlib import Path

    from flow_user import Desk

pytest.importorskip("pydantic_monty")

ALL = {"tools": "all"}


async def run(user: Desk, code: str, **inputs: Any) -> str:
    reply = await user.reply("memory_run", code=code, inputs=inputs)
    return reply.text


LAUNDRY = [
    "import base64\nbase64.b64encode(str(x).encode()).decode()",
    "[ord(c) for c in str(x)]",
    "len(str(x))",
    "1 if 'c4nary' in str(x) else 0",
    "str(x)[::-1]",
    "n = 0\nfor c in str(x): n = n * 256 + ord(c)\nn",
    "import json\njson.dumps(x)",
    "open('/memory/x').read()[5]",
    "'a constant'",
    "None",
]


@pytest.mark.parametrize("code", LAUNDRY)
async def test_every_returned_value_carries_the_labels_of_all_inputs(shared_desk: Any, code: str) -> None:
    user = await shared_desk(STRICT, code=ALL, mirror={"capture": "always"})
    path = await user.say("crm")
    text = await run(user, _repeat(code), x=path)
    made_path = path_in(text)
    labels = await user.labels(made_path)
    assert labels["confidentiality"] == "private"
    assert "crm" in labels["sources"].split(",")
    assert "may not go to" in await user.refused("mail_hear_mirrored", x=made_path)


@pytest.mark.parametrize("code", LAUNDRY)
async def test_no_argument_of_a_call_is_free_of_the_labels(shared_desk: Any, code: str) -> None:
    user = await shared_desk(STRICT, code=ALL)
    path = await user.say("crm")
    *before, last = code.split("\n")
    script = "\n".join([*before, f"y = {last}", "await tools.mail_hear_mirrored(x=str(y))"])
    if last == "n":
        script = f"{code.rsplit(chr(10), 1)[0]}\nawait tools.mail_hear_mirrored(x=str(n))"
    text = await run(user, script, x=path)
    assert "values of the script" in text
    assert "may not go to upstream 'mail'" in text
    assert user.calls("mail") == 0


def _repeat(code: str) -> str:
    """The script, with a value that is large enough to be stored."""
    *before, last = code.split("\n")
    name = "n" if last == "n" else last
    return "\n".join([*before, f"[{name}] * 3000"])


async def test_results_and_branches_on_them_join_the_labels(desk: Any) -> None:
    async with desk(STRICT, code=ALL) as user:
        result = json.dumps({"content": [], "structuredContent": {"secret": SECRET}})
        code = f"x = await tools.crm_say_mirrored(result={result!r})\ny = 1 if x['secret'][0] == 'c' else 2\n"
        text = await run(user, f"{code}await tools.mail_hear_mirrored(x=str(y))")
        assert "may not go to upstream 'mail'" in text
        assert user.calls("mail") == 0
        before = f"await tools.mail_hear_mirrored(x='before')\n{code}y"
        assert await run(user, before) == "1\nResult ends."
        assert user.calls("mail") == 1


async def test_an_error_of_a_tool_joins_its_labels(desk: Any) -> None:
    async with desk(STRICT, code=ALL) as user:
        failed = json.dumps({"content": [{"type": "text", "text": SECRET}], "isError": True})
        code = (
            f"try:\n    await tools.crm_say_mirrored(result={failed!r})\nexcept Exception as e:\n    y = str(e)\n"
            "await tools.mail_hear_mirrored(x=y)"
        )
        assert "may not go to upstream 'mail'" in await run(user, code)
        assert user.calls("mail") == 0


@pytest.mark.parametrize("below", ["/nothing", "/rows"])
async def test_an_error_that_quotes_a_value_has_the_labels_of_it(desk: Any, tmp_path: Path, below: str) -> None:
    """The first error lists the keys of the value, and the second quotes a text where a number is expected."""
    schema = {"type": "object", "properties": {"x": {"type": "array", "items": {"type": "integer"}}}}
    (tmp_path / "tools.json").write_text(json.dumps([{"name": "count", "inputSchema": schema}]))
    started = upstream("web", tmp_path)
    labels = {"integrity": "trusted", "confidentiality": "public"}
    web = {"args": [*started["args"], "--tools", str(tmp_path / "tools.json")], "labels": labels}
    async with desk(STRICT | {"web": web}, code=ALL) as user:
        path = await user.say("crm")
        code = (
            f"import json\nx = json.loads({json.dumps(path + below)!r})\n"  # the check before the run knows no type
            "try:\n    await tools.count_mirrored(x=x)\nexcept Exception as e:\n    y = str(e)\n"
            "await tools.mail_hear_mirrored(x=y)"
        )
        assert "may not go to upstream 'mail'" in await run(user, code)
        quoted = code.rpartition("\n")[0] + "\n[y] * 1000"
        made = path_in(await run(user, quoted))
        assert SECRET in json.dumps(await user.stored(made))
        assert "crm" in (await user.labels(made))["sources"].split(",")
        assert user.calls("mail") == 0


async def test_concurrent_results_join_their_labels(desk: Any) -> None:
    async with desk(STRICT, code=ALL) as user:
        secret = json.dumps({"content": [], "structuredContent": {"secret": SECRET}})
        page = json.dumps({"content": [], "structuredContent": {"page": 1}})
        code = (
            f"import asyncio\nasync def one(t, r): return await t(result=r)\n"
            f"say, also = one(tools.crm_say_mirrored, {secret!r}), one(tools.web_say_mirrored, {page!r})\n"
            "a, b = await asyncio.gather(say, also)\n"
            "[a['secret'], b['page']] * 2000"
        )
        labels = await user.labels(path_in(await run(user, code)))
        assert labels == {"sources": "crm,the model,web", "integrity": "untrusted", "confidentiality": "private"}


HIDDEN = [
    "x",
    "print(x)",
    "x['rows'][0]",
    "raise ValueError(str(x))",
    "x['rows'][0]['nothing']",
    "1 / 0",
    "assert x['rows'][0] == 'other'",
    "while True: pass",
    "a = []\nwhile True: a.append('x' * 1000000)",
    "def f(n): return f(n + 1)\nf(0)",
    "[0] * 100000000",
    "await tools.web_hear_mirrored(x=x['rows'][0])",
    "await tools.mail_hear_mirrored(x=x['rows'][0])",
    "open('/memory/x').read()",
    "eval(x['rows'][0] + '(')",
    "import json\njson.loads(x['rows'][0])",
    "None",
    "1",
    "len(x['rows'])",
]


@pytest.mark.parametrize("code", HIDDEN)
async def test_of_a_hidden_value_the_model_gets_only_a_path(shared_desk: Any, code: str) -> None:
    """Success, failure, limits and refusals look alike, so that no branch on a hidden value can be seen."""
    user = await shared_desk(STRICT, flows=HIDING, code={**ALL, "seconds": 0.3, "memory": "32MiB"})
    path = await user.say("crm")
    reply = await user.reply("memory_run", code=code, inputs={"x": path})
    assert not reply.is_error, reply.text
    assert PATH.fullmatch(reply.text.strip()), reply.text
    assert "secret" not in reply.text
    assert (await user.labels(reply.text.strip()))["confidentiality"] == "private"
    assert "may not be shown" in await user.refused("memory_read", memory_path=reply.text.strip())


async def test_a_hidden_result_hides_the_whole_script(desk: Any) -> None:
    async with desk(STRICT, flows=HIDING, code=ALL) as user:
        result = json.dumps({"content": [], "structuredContent": {"secret": SECRET}})
        code = f"print('before')\nx = await tools.crm_say_mirrored(result={result!r})\nprint(x)\nx['secret']"
        text = await run(user, code)
        assert PATH.fullmatch(text.strip())
        assert await user.stored(text.strip()) == SECRET
        failing = await run(user, code.replace("x['secret']", "x['nothing']"))
        assert PATH.fullmatch(failing.strip())
        assert (await user.stored(failing.strip()))["error"] == "KeyError: nothing"


async def test_what_is_listed_of_hidden_values_does_not_depend_on_them(desk: Any) -> None:
    """A script could return a value of the kind and size by which the model learns a part of what it read."""
    async with desk(STRICT, flows=HIDING, code=ALL) as user:
        path, memory = await user.say("crm"), user.application.gateway.memory
        for code in ("'a' * 3000", "[1]"):
            made = (await run(user, code, x=path)).strip()
            lines = (await user.text("memory_list")).splitlines()
            assert lines[0].startswith(f'"{made}" hidden, 2')
            assert len(lines) == len(await memory.store.list(LOCAL))
            resource = json.loads((await list_values(memory, LOCAL, None))[0][0])
            assert {*resource} == {"uri", "name", "title", "description", "annotations"}
            assert (resource["title"], resource["description"]) == ("memory_run", "from memory_run of mcp-mirror")
            assert await user.text("memory_export", memory_path=made, file=made) == f"Written: {made!r}."


@pytest.mark.parametrize("code", ["'a' * 2000000", "'a'"])
async def test_a_hidden_value_that_cannot_be_stored_looks_like_any(desk: Any, code: str) -> None:
    store = {"kind": "memory", "path": None, "max_bytes": "1MiB"}
    async with desk(STRICT, flows=HIDING, code=ALL, store=store) as user:
        path = await user.say("crm")
        reply = await user.reply("memory_run", code=code, inputs={"x": path})
        assert not reply.is_error, reply.text
        assert PATH.fullmatch(reply.text.strip()), reply.text
        assert ("error" in await user.stored(reply.text.strip())) is (code != "'a'")


async def test_mistakes_are_shown_because_they_do_not_depend_on_values(desk: Any) -> None:
    async with desk(STRICT, flows=HIDING, code=ALL) as user:
        path = await user.say("crm")
        for code in ("await tools.mail_hear_mirrored(y=x) + undefined_name", "x = ("):
            reply = await user.reply("memory_run", code=code, inputs={"x": path})
            assert reply.is_error
            assert SECRET not in reply.text


UNPREVIEWED = ["x", "print(x)", "raise ValueError(str(x))", "{'a': x}", "str(x)", "x['rows']", "assert not x, x"]


@pytest.mark.parametrize("code", UNPREVIEWED)
async def test_of_a_value_without_preview_no_part_is_shown(shared_desk: Any, code: str) -> None:
    user = await shared_desk({"crm": {"preview": False}}, code=ALL)
    path = await user.say("crm")
    reply = await user.reply("memory_run", code=code, inputs={"x": path})
    assert SECRET not in reply.text
    if "raise" in code or "assert" in code:
        assert reply.is_error
        assert "has no preview" in reply.text
    else:
        made = path_in(reply.text.replace(path, ""))
        assert SECRET in json.dumps(await user.stored(made))


async def test_a_result_without_preview_ends_previews_of_later_calls(desk: Any) -> None:
    async with desk({"crm": {"preview": False}}, code=ALL) as user:
        result = json.dumps({"content": [], "structuredContent": {"secret": SECRET}})
        code = f"x = await tools.crm_say_mirrored(result={result!r})\nawait tools.web_hear_mirrored(x=x['secret'])"
        text = await run(user, code)
        assert SECRET not in text
        failing = await run(user, f"{code}\n1 / 0")
        assert "ZeroDivisionError" in failing
        assert SECRET not in failing
