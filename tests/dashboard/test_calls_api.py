"""Calls and savings in the dashboard."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from tests.dashboard.conftest import Page
from tests.dashboard.samples import NOW, base_of, fill_busy, log_calls, make_call, put
from tests.load import measure_pause, slowness

from mcp_mirror.dashboard import api
from mcp_mirror.dashboard.savings import MAX_ROWS, Assumptions, build_savings, find_price, merge_prices
from mcp_mirror.settings.limits import PrincipalLimits
from mcp_mirror.settings.policies import Config, DashboardPolicy, PricePolicy
from mcp_mirror.settings.store import StorePolicy
from mcp_mirror.stores.event_log import Sums

STALL = 0.1
"""Seconds of a pass of the event loop on an idle machine. Before, these requests took five times as long."""
ALICE, BOB = '["token", "alice"]', '["token", "bob"]'


@pytest.fixture(autouse=True)
def now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "time", lambda: NOW)


async def test_the_newest_calls_come_first_page_by_page(page: Page) -> None:
    await fill_busy(page.store)
    first = await page.get("calls", limit=4)
    assert [one["id"] for one in first["calls"]] == [f"{number:016x}" for number in (10, 9, 8, 7)]
    second = await page.get("calls", limit=4, before=first["next"])
    assert [one["id"] for one in second["calls"]] == [f"{number:016x}" for number in (6, 5, 4, 3)]
    ids, before = [], None
    while True:
        listed = await page.get("calls", limit=7, **({"before": before} if before else {}))
        ids += [one["id"] for one in listed["calls"]]
        before = listed["next"]
        if before is None:
            break
    assert len(ids) == len(set(ids)) == 55


async def test_later_calls_are_polled_with_a_cursor(page: Page) -> None:
    await fill_busy(page.store)
    newest = (await page.get("calls"))["newest"]
    assert (await page.get("calls", after=newest))["calls"] == []
    await log_calls(page.store, [make_call(77, NOW, "t", "u"), make_call(78, NOW + 1, "t", "u")])
    later = await page.get("calls", after=newest)
    assert [one["id"][-2:] for one in later["calls"]] == ["4e", "4d"]
    assert (await page.get("calls", after=later["newest"]))["calls"] == []


async def test_calls_before_the_first_one_are_polled_too(page: Page) -> None:
    newest = (await page.get("calls"))["newest"]
    await log_calls(page.store, [make_call(1, NOW, "t", "u")])
    assert len((await page.get("calls", after=newest))["calls"]) == 1


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ({"outcome": "refused"}, [7]),
        ({"outcome": "error"}, [5]),
        ({"tool": "SCREEN"}, [3]),
        ({"upstream": "files"}, [2]),
        ({"upstream": "mcp-mirror"}, [10, 8]),
        ({"why": "1"}, [9, 7]),
    ],
)
async def test_filters_select_calls(page: Page, query: dict[str, str], ids: list[int]) -> None:
    await fill_busy(page.store)
    assert [int(one["id"], 16) for one in (await page.get("calls", **query))["calls"]] == ids


async def test_a_filter_searches_a_bounded_number_of_calls_at_once(page: Page) -> None:
    await log_calls(
        page.store, [make_call(at, NOW - 5_000 + at, "often" if at else "rare", "u") for at in range(3_000)]
    )
    first = await page.get("calls", tool="rare")
    assert (first["calls"], first["searched"]) == ([], 2_000)
    assert len((await page.get("calls", tool="rare", before=first["next"]))["calls"]) == 1


async def test_a_call_has_its_arguments_paths_and_reasons(page: Page) -> None:
    paths = await fill_busy(page.store)
    call = await page.get("call", id=f"{7:016x}")
    assert call["inputs"] == [paths["report"]]
    assert paths["report"] in call["arguments"]
    assert call["why"][0][2].startswith("The value may not go to tickets")
    assert (await page.refuse("call", id="0"))[0] == 404


@pytest.mark.parametrize("cursor", ["x", "e30", "eyJhIjogMX0=", "W10="])
async def test_a_foreign_cursor_is_an_error_or_without_effect(page: Page, cursor: str) -> None:
    await fill_busy(page.store)
    answer = await page.send("GET", "calls", before=cursor)
    assert answer.status_code in (200, 404)


@pytest.mark.parametrize("cursor", ["x", "1790000000000-0", "9" * 30, "-" + "9" * 30, "9" * 5000])
async def test_a_cursor_of_another_kind_of_store_is_an_error_or_without_effect(page: Page, cursor: str) -> None:
    await fill_busy(page.store)
    encoded = base64.urlsafe_b64encode(json.dumps({"local": cursor}).encode()).decode()
    for name in ("before", "after"):
        query: dict[str, Any] = {name: encoded}
        answer = await page.send("GET", "calls", **query)
        assert answer.status_code == 200 or "not one of this list" in answer.json()["error"]


async def test_the_lineage_of_a_value_has_what_it_was_made_of_and_what_used_it(page: Page) -> None:
    paths = await fill_busy(page.store)
    graph = await page.get("lineage", path=paths["report"])
    names = {one.get("path") or one["tool"] for one in graph["nodes"]}
    assert {paths["orders"], paths["report"], "list_orders_mirrored", "send_mail_mirrored"} <= names
    assert paths["image"] not in names
    newest = await page.get("lineage")
    assert {paths["image"], paths["log"]} <= {one.get("path") for one in newest["nodes"]}
    assert (await page.refuse("lineage", path="no path"))[0] == 404
    assert (await page.get("lineage", path=base_of("unknown", 1)))["nodes"] == []


@pytest.mark.slow
async def test_values_older_than_the_newest_ten_thousand_have_a_lineage(page: Page) -> None:
    first = await put(page.store, b"1", "first", 1, created=NOW - 9)
    second = await put(page.store, b"1", "second", 2, inputs=(f"{first}/rows",), created=NOW - 8)
    third = await put(page.store, b"1", "third", 3, inputs=(second, base_of("gone", 9)), created=NOW - 7)
    for at in range(10_000):
        await put(page.store, b"1", "other", at + 10, created=NOW - 6)
    await log_calls(page.store, [make_call(1, NOW, "send_mirrored", "mail", inputs=(second,))])
    graph = await page.get("lineage", path=third)
    values = {one["path"]: one["removed"] for one in graph["nodes"] if one["type"] == "value"}
    assert values == {first: False, second: False, third: False, base_of("gone", 9): True}
    newest = await page.get("lineage")
    assert [one["removed"] for one in newest["nodes"] if one.get("path") == second] == [False]


async def test_the_lineage_of_many_values_is_cut(page: Page) -> None:
    for at in range(300):
        await put(page.store, b"1", "t", at, created=NOW + at)
    graph = await page.get("lineage")
    assert graph["cut"]
    assert len(graph["nodes"]) < 130


async def test_an_operator_sees_no_keys_in_the_lineage_of_others(page: Page) -> None:
    path = await put(page.store, {"canary": 1}, "t", 1, namespace=BOB)
    await log_calls(page.store, [make_call(1, NOW, "use", "u", inputs=(f"{path}/canary",))], BOB)
    operator = page.seen_by(namespace=ALICE, is_operator=True)
    answer = await operator.send("GET", "lineage", principal=BOB, path=path)
    assert "use" in answer.text
    assert "canary" not in answer.text
    calls = await operator.send("GET", "calls", principal=BOB)
    assert "canary" not in calls.text


async def test_an_operator_sees_no_keys_in_the_inputs_of_a_value_of_others(page: Page) -> None:
    source = await put(page.store, {"canary": 1}, "t", 1, namespace=BOB)
    made = await put(page.store, b"1", "t", 2, namespace=BOB, inputs=(f"{source}/canary",))
    operator = page.seen_by(namespace=ALICE, is_operator=True)
    listed = await operator.send("GET", "values", principal=BOB)
    facts = await operator.send("GET", "value", principal=BOB, path=made)
    assert facts.json()["inputs"] == [source]
    assert "canary" not in listed.text + facts.text
    own = await page.seen_by(namespace=BOB).get("value", path=made)
    assert own["inputs"] == [f"{source}/canary"]


@pytest.mark.slow
async def test_calls_of_many_principals_do_not_stall_others(page: Page) -> None:
    for principal in range(200):
        calls = [make_call(at, NOW - at, "t", "u") for at in range(20)]
        await log_calls(page.store, calls, f'["token", "{principal}"]')
    operator = page.seen_by(is_operator=True)
    assert await measure_pause(operator.get("calls", principal="*", tool="rare")) < STALL * slowness()
    assert await measure_pause(operator.refuse("call", principal="*", id="0")) < STALL * slowness()


@pytest.mark.slow
async def test_the_names_of_many_principals_do_not_stall_others(page: Page) -> None:
    sums = {(int(NOW) // 3600, "u", "t"): Sums(1)}
    for principal in range(20_000):
        await page.store.events.append(f'["https://login.example.com", "{principal}"]', (), sums, keep=1)
    operator = page.seen_by(is_operator=True)
    assert await measure_pause(operator.get("session")) < STALL * slowness()


async def test_savings_of_many_hours_do_not_stall_others(page: Page) -> None:
    hour = int(NOW) // 3600
    sums = {(hour - at, f"u{tool}", f"t{tool}"): Sums(1) for at in range(1_000) for tool in range(20)}
    await page.store.events.append("local", (), sums, keep=1)
    assert await measure_pause(page.get("savings", days=90)) < STALL * slowness()


async def test_savings_price_tokens_steps_and_cached_input() -> None:
    sums = {
        "me": {
            (0, "crm", "list"): Sums(calls=2, sent=300, kept_out=1_000_000),
            (30, "", "memory_read"): Sums(calls=4, sent=50_000),
        }
    }
    found = build_savings(sums, Assumptions(PricePolicy("m", 3.0, 0.3), later_steps=5, step_context=10_000))
    total = found["total"]
    assert total["avoided"] == pytest.approx(3.0 + 5 * 0.3)
    assert total["shown"] == pytest.approx(0.05 * (3.0 + 5 * 0.3))
    assert total["step_cost"] == pytest.approx(4 * 10_000 * 0.3 / 1e6)
    assert total["net"] == pytest.approx(total["avoided"] - total["shown"] - total["step_cost"])
    assert [row["name"] for row in found["by_day"]] == ["1970-01-01", "1970-01-02"]
    assert {row["name"] for row in found["by_upstream"]} == {"crm", "mcp-mirror"}
    for group in ("day", "upstream", "tool", "principal"):
        assert sum(row["net"] for row in found[f"by_{group}"]) == pytest.approx(total["net"])


def test_many_rows_are_joined_in_the_last_one() -> None:
    sums: dict[str, Any] = {"me": {(0, "u", f"t{at}"): Sums(calls=1, kept_out=at) for at in range(500)}}
    found = build_savings(sums, Assumptions(PricePolicy("m", 1.0)))
    assert len(found["by_tool"]) == MAX_ROWS
    assert sum(row["calls"] for row in found["by_tool"]) == 500


def test_configured_prices_replace_those_of_the_page() -> None:
    prices = merge_prices((PricePolicy("mine", 2.0), PricePolicy("claude-sonnet", 9.0)))
    assert [one.input for one in prices if one.name == "claude-sonnet"] == [9.0]
    assert find_price(prices, "mine").cached == pytest.approx(0.2)
    assert find_price(prices, "unknown").name == "claude-sonnet"


@pytest.mark.parametrize("namespace", ["42", "null", '"ab"', "[]", "[1", "[1, 2]", "alice"])
async def test_a_namespace_may_have_any_name(page: Page, namespace: str) -> None:
    await put(page.store, b"1", "t", 1, namespace=namespace)
    for owner in (ALICE, namespace):
        await log_calls(page.store, [make_call(1, NOW, "t", "u")], owner)
    operator = page.seen_by(is_operator=True)
    names = {one["id"]: one["name"] for one in (await operator.get("session"))["principals"]}
    assert names == {"local": "local user", ALICE: "alice", namespace: namespace}
    savings = await operator.get("savings", principal="*")
    assert sum(one["calls"] for one in savings["by_principal"]) == savings["total"]["calls"] == 2


async def test_savings_cover_the_chosen_days_and_the_quota(page: Page) -> None:
    await fill_busy(page.store)
    week = await page.get("savings")
    today = await page.get("savings", days=1)
    assert week["total"]["calls"] == 55
    assert 0 < today["total"]["calls"] < 55
    assert week["total"]["steps"] == 2
    [memory] = week["memory"]
    assert (memory["principal"], memory["values"], memory["max_values"]) == ("local user", 6, 100_000)
    assert 400_000 < memory["bytes"] < memory["max_bytes"]
    assert week["prices_read"]
    dear = page.with_services(config=Config(dashboard=DashboardPolicy(prices=(PricePolicy("dear", 300.0),))))
    priced = await dear.get("savings", model="dear", later_steps=0, step_context=0)
    assert priced["total"]["avoided"] == pytest.approx(week["total"]["kept_out"] * 300 / 1e6)
    assert priced["total"]["step_cost"] == 0


async def test_the_quota_of_a_principal_is_its_own(page: Page) -> None:
    limits = StorePolicy(namespace_values=10, principals=(PrincipalLimits("alice", namespace_values=99),))
    for namespace, most in ((ALICE, 99), (BOB, 10)):
        [memory] = (await page.seen_by(namespace=namespace).with_services(limits=limits).get("savings"))["memory"]
        assert memory["max_values"] == most


@pytest.mark.parametrize(
    "query", [{"days": "-1"}, {"later_steps": "x"}, {"step_context": "9" * 30}, {"days": "\uff11"}]
)
async def test_numbers_that_are_no_whole_numbers_are_errors(page: Page, query: dict[str, str]) -> None:
    assert (await page.refuse("savings", **query))[0] == 404


async def test_a_principal_sees_only_its_own(page: Page) -> None:
    path = await put(page.store, {"canary": 1}, "t", 1, namespace=BOB)
    await log_calls(page.store, [make_call(1, NOW, "canary", "u", path=path)], BOB)
    alice = page.seen_by(namespace=ALICE)
    unknown = await alice.refuse("value", path=base_of("t", 2))
    for endpoint in ("value", "part", "download", "image", "notice"):
        assert await alice.refuse(endpoint, path=path) == (unknown[0], unknown[1].replace(base_of("t", 2), path))
    for endpoint in ("values", "calls", "savings", "value", "lineage"):
        for principal in (BOB, "*", "local", "nobody"):
            status, message = await alice.refuse(endpoint, path=path, principal=principal)
            assert (status in (403, 404), "canary" in message) == (True, False)
    assert (await alice.get("values"))["values"] == []
    assert (await alice.get("calls"))["calls"] == []
    assert (await alice.send("POST", "forget", headers={"x-mcp-mirror": "1"}, path=path)).status_code == 404
    assert (await page.seen_by(namespace=BOB).get("values"))["total"] == 1
    assert [one["name"] for one in (await alice.get("session"))["principals"]] == ["alice"]


async def test_an_operator_sees_metadata_of_all_and_values_of_none(page: Page) -> None:
    path = await put(page.store, {"key": "canary"}, "t", 1, namespace=BOB)
    why = (("/a", "canary", "canary"),)
    await log_calls(page.store, [make_call(1, NOW, "t", "u", path=path, arguments='{"a":"canary"}', why=why)], BOB)
    await log_calls(page.store, [make_call(2, NOW - 9, "t", "u")], ALICE)
    operator = page.seen_by(namespace=ALICE, is_operator=True)
    listed = await operator.send("GET", "calls", principal="*")
    assert [one["principal_name"] for one in listed.json()["calls"]] == ["bob", "alice"]
    values = await operator.send("GET", "values", principal=BOB)
    assert values.json()["values"][0]["path"] == path
    facts = await operator.send("GET", "value", principal=BOB, path=path)
    savings = await operator.send("GET", "savings", principal="*")
    assert {row["name"] for row in savings.json()["by_principal"]} == {"alice", "bob"}
    assert "canary" not in listed.text + values.text + facts.text + savings.text
    for endpoint in ("part", "download", "image", "notice"):
        status, message = await operator.refuse(endpoint, principal=BOB, path=path)
        assert (status, "canary" in message) == (403, False)
        status, message = await operator.refuse(endpoint, principal=BOB, path=f"{path}/nokey")
        assert (status, "key" in message.replace("nokey", "")) == (403, False)
    answer = await operator.send("POST", "forget", headers={"x-mcp-mirror": "1"}, principal=BOB, path=path)
    assert answer.status_code == 403
    assert {one.outcome for one in page.sink.records} == {"not your value"}


async def test_an_operator_who_may_read_values_is_audited(page: Page) -> None:
    path = await put(page.store, {"key": "canary"}, "t", 1, namespace=BOB)
    operator = page.seen_by(namespace=ALICE, is_operator=True, reads_others=True)
    assert (await operator.get("part", principal=BOB, path=path))["entries"][0]["text"] == "canary"
    [record] = page.sink.records
    owner = {"owner": "bob", "owner_issuer": "token"}
    assert (record.event, record.principal, record.detail, record.path) == ("read", ALICE, owner, path)


async def test_the_calls_of_all_principals_are_one_list(page: Page) -> None:
    for at in range(30):
        await log_calls(page.store, [make_call(at, NOW + at, "t", "u")], f'["token", "p{at % 3}"]')
    operator = page.seen_by(namespace=ALICE, is_operator=True)
    first = await operator.get("calls", principal="*", limit=10)
    assert [int(one["id"], 16) for one in first["calls"]] == list(range(29, 19, -1))
    second = await operator.get("calls", principal="*", limit=10, before=first["next"])
    assert [int(one["id"], 16) for one in second["calls"]] == list(range(19, 9, -1))
    await log_calls(page.store, [make_call(99, NOW + 99, "t", "u")], '["token", "new"]')
    assert [
        int(one["id"], 16) for one in (await operator.get("calls", principal="*", after=first["newest"]))["calls"]
    ] == [99]
