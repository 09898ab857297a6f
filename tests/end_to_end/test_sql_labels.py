"""Labels of SQL queries: no query removes them, and hidden values never become visible, not even in errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from flow_user import HIDING, PATH, SECRET, SELF, STRICT, path_in
from samples import sample

if TYPE_CHECKING:
    from flow_user import Desk

pytest.importorskip("duckdb")

PRIVATE = [{"name": SECRET, "n": 1, SECRET: 2}] * 3
PUBLIC = [{"name": "page", "n": 1}]


async def say(user: Desk, name: str, value: object) -> str:
    return f"{await user.say(name, {'rows': value})}/rows"


LAUNDRY = [
    "SELECT * FROM x",
    "SELECT reverse(name) AS r FROM x",
    "SELECT md5(name) AS r FROM x",
    "SELECT unnest(range(len(name))) AS r FROM x",
    "SELECT name LIKE 'c4%' AS r FROM x",
    "SELECT count(*) AS r FROM x",
    "SELECT 'a constant' AS r FROM x LIMIT 1",
    "SELECT 'a constant' AS r",
    "DESCRIBE x",
    "SELECT x.n, y.name FROM x JOIN y USING (n)",
    "SELECT name FROM y WHERE n IN (SELECT n FROM x)",
]


@pytest.mark.parametrize("sql", LAUNDRY)
async def test_every_result_carries_the_labels_of_all_inputs(shared_desk: Any, sql: str) -> None:
    user = await shared_desk(STRICT, flows=SELF)
    inputs = {"x": await say(user, "crm", PRIVATE), "y": await say(user, "web", PUBLIC)}
    fill = "(SELECT repeat('x', 20) AS fill FROM range(300))"
    repeated = f"FROM ({sql}) r, {fill}"
    made = path_in(await user.text("memory_query", sql=repeated, inputs=inputs))
    assert await user.labels(made) == {
        "sources": "crm,the model,web",
        "integrity": "untrusted",
        "confidentiality": "private",
    }
    assert "may not go to" in await user.refused("mail_hear_mirrored", x=made)
    assert user.calls("mail") == 0


HIDDEN = [
    "SELECT * FROM x",
    "SELECT count(*) FROM x",
    "SELECT 1 FROM x WHERE name = 'other'",
    "SELECT name::INTEGER FROM x",
    "SELECT error(name) FROM x",
    "SELECT CASE WHEN name LIKE 'c%' THEN error('yes') ELSE 'no' END FROM x",
    "SELECT nothing FROM x",
    "SELECT sum(name) FROM x",
    "SELECT name / 0 FROM x",
    "SELECT strptime(name, '%Y') FROM x",
    "SELECT from_json(name, '\"JSON\"') FROM x",
    "SELECT list(a.range) FROM x, range(100000) a, range(100000) b",
    "SELECT sum(a.range * b.range % 7) FROM range(1000000) a, range(1000000) b",
    "SELECT * FROM range(1000000000000)",
    "DESCRIBE x",
    "SELECT 1",
]


LONG = ("SELECT list(a.range)", "SELECT sum(a.range")
"""The beginnings of queries that take long until they reach a limit, as `range(1000000000000)` does too."""


@pytest.mark.parametrize("sql", sample(HIDDEN, lambda sql: not sql.startswith(LONG)))
async def test_of_a_hidden_value_the_model_gets_only_a_path(shared_desk: Any, sql: str) -> None:
    """Success, failure and limits look alike, so that no condition on a hidden value can be seen."""
    user = await shared_desk(STRICT, flows=HIDING, memory_tools={"timeout": 2})
    path = await say(user, "crm", PRIVATE)
    reply = await user.reply("memory_query", sql=sql, inputs={"x": path})
    assert not reply.is_error, reply.text
    assert PATH.fullmatch(reply.text.strip()), reply.text
    assert (await user.labels(reply.text.strip()))["confidentiality"] == "private"
    assert "may not be shown" in await user.refused("memory_read", memory_path=reply.text.strip())


@pytest.mark.parametrize("value", [5, "just a text", [1, SECRET], '{"a": 1}\n{broken', {"a": 1}])
async def test_a_hidden_value_that_is_not_a_table_looks_like_one(shared_desk: Any, value: Any) -> None:
    user = await shared_desk(STRICT, flows=HIDING)
    path = await user.say("crm", {"part": value})
    reply = await user.reply("memory_query", sql="SELECT * FROM x", inputs={"x": f"{path}/part"})
    assert PATH.fullmatch(reply.text.strip()), reply.text


async def test_the_result_of_a_hidden_value_goes_where_the_value_may_go(desk: Any) -> None:
    async with desk(STRICT, flows=HIDING) as user:
        path = await say(user, "crm", PRIVATE)
        text = await user.text("memory_query", sql="SELECT name FROM x LIMIT 1", inputs={"x": path})
        assert await user.stored(text.strip()) == [{"name": SECRET}]
        failed = await user.text("memory_query", sql="SELECT name::INTEGER FROM x", inputs={"x": path})
        assert SECRET in (await user.stored(failed.strip()))["error"]
        assert "may not go to" in await user.refused("mail_hear_mirrored", x=text.strip())


async def test_one_hidden_input_hides_a_join(desk: Any) -> None:
    async with desk(STRICT, flows=HIDING) as user:
        inputs = {"x": await say(user, "crm", PRIVATE), "y": await say(user, "web", PUBLIC)}
        sql = "SELECT y.name FROM y WHERE EXISTS (SELECT * FROM x WHERE name LIKE 'c4%')"
        assert PATH.fullmatch((await user.text("memory_query", sql=sql, inputs=inputs)).strip())
        shown = await user.text("memory_query", sql="SELECT name FROM y", inputs={"y": inputs["y"]})
        assert shown == '[{"name":"page"}]\nResult ends.'


async def test_mistakes_are_shown_because_they_do_not_depend_on_values(desk: Any) -> None:
    async with desk(STRICT, flows=HIDING) as user:
        path = await say(user, "crm", PRIVATE)
        for sql in ("SELEC 1", "SELECT * FROM z", "COPY x TO 'y'", "SELECT * FROM read_text('/etc/passwd')"):
            await user.refused("memory_query", sql=sql, inputs={"x": path})


async def test_the_other_form_refuses_a_hidden_value(desk: Any) -> None:
    async with desk(STRICT, flows=HIDING) as user:
        path = await say(user, "crm", PRIVATE)
        assert "may not be shown" in await user.refused("memory_query", memory_path=path, expression="[0]")


UNPREVIEWED = [
    "SELECT * FROM x",
    "SELECT name FROM x LIMIT 1",
    "SELECT 1 FROM x",
    "DESCRIBE x",
    "SELECT name::INTEGER FROM x",
    "SELECT error(name) FROM x",
    "SELECT nothing FROM x",
    "SELECT sum(name) FROM x",
    "SELECT strptime(name, '%Y') FROM x",
]


@pytest.mark.parametrize("sql", UNPREVIEWED)
async def test_of_a_value_without_preview_no_part_is_shown(shared_desk: Any, sql: str) -> None:
    user = await shared_desk({"crm": {"preview": False}})
    path = await say(user, "crm", PRIVATE)
    reply = await user.reply("memory_query", sql=sql, inputs={"x": path})
    assert SECRET not in reply.text
    assert '"name' not in reply.text
    if reply.is_error:
        assert "has no preview" in reply.text
        assert "Exception" in reply.text
    else:
        assert isinstance(await user.stored(path_in(reply.text)), list)


async def test_a_broken_value_without_preview_is_not_quoted(desk: Any) -> None:
    async with desk({"crm": {"preview": False}}) as user:
        path = await user.say("crm", {"part": 5_551_234})
        text = await user.refused("memory_query", sql="FROM x", inputs={"x": f"{path}/part"})
        assert "5551234" not in text
        assert "has no preview" in text
