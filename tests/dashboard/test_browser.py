"""The page in a headless Chromium: its states, the keyboard, hostile content, and accessibility by axe-core.

With DASHBOARD_SHOTS, a folder, each state is saved there as a screenshot.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from tests.auth.conftest import HASHES, TOKENS, Served, serving_gateway
from tests.dashboard.browsing import SHOTS, Browser, find_missing, open_browser
from tests.dashboard.samples import HOSTILE, fill_busy, image_block, log_calls, make_call, put

from mcp_mirror.stores.base import Store

if TYPE_CHECKING:
    from tests.end_to_end.conftest import Configured

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(find_missing()), reason=find_missing() or "-")]


@dataclass
class Opened:
    """A gateway without authentication, and a browser."""

    served: Served
    browser: Browser

    @property
    def store(self) -> Store:
        return self.served.application.gateway.services.writer.store

    @property
    def address(self) -> str:
        return self.served.url.removesuffix("mcp")

    async def open(self, route: str = "", **options: Any) -> None:
        await self.browser("open", url=f"{self.address}{route}", **options)
        await self.browser("wait", selector="main h1")

    async def shoot(self, name: str, **options: Any) -> None:
        if SHOTS:
            await self.browser("shot", path=str(Path(SHOTS) / f"{name}.png"), **options)

    async def check(self, name: str, route: str, selector: str = "main h1", **options: Any) -> None:
        """Open a route, save a screenshot, and find no problem of accessibility."""
        await self.open(route, csp=False, **options)
        await self.browser("wait", selector=selector)
        await self.shoot(name)
        assert await self.browser("axe") == []
        assert await self.browser("problems") == []


@asynccontextmanager
async def opening(config: Path) -> AsyncIterator[Opened]:
    async with serving_gateway(config) as served, open_browser() as browser:
        yield Opened(served, browser)


@pytest.fixture
def config(configured: Configured, raw: Any) -> Path:
    return configured({"raw": raw()})


SLOW_SEARCH = """(() => {
  const get = window.fetch;
  window.fetch = async (...given) => { await new Promise((done) => setTimeout(done, 400)); return get(...given); };
})()"""
"""Delays each request, so that a test can stop a search."""
EARLY_STOP = """(() => {
  const get = window.fetch;
  const click = () => [...document.querySelectorAll("main button")].find((one) => one.textContent === "Stop")?.click();
  window.fetch = (...given) => { if (given[0].includes("search=other")) click(); return get(...given); };
})()"""
"""Stops each search before its first response."""
ROUTES = ("calls", "values", "lineage", "savings", "why")


@pytest.mark.parametrize("route", ROUTES)
async def test_an_empty_page_says_what_to_do_next(config: Path, route: str) -> None:
    async with opening(config) as opened:
        await opened.check(f"empty-{route}", f"#/{route}", ".empty")
        [text] = await opened.browser("text", selector=".empty")
        assert text.endswith(".")


LOOKS: dict[str, dict[str, Any]] = {"light": {}, "dark": {"dark": True}, "narrow": {"width": 360, "height": 740}}


@pytest.mark.parametrize("look", LOOKS)
async def test_each_page_is_accessible_in_each_look(config: Path, look: str) -> None:
    async with opening(config) as opened:
        paths = await fill_busy(opened.store, time.time())
        for route in ROUTES:
            selector = {"savings": ".bars", "lineage": "svg a"}.get(route, "tbody tr")
            await opened.check(f"{look}-{route}", f"#/{route}", selector, **LOOKS[look])
        views = {"orders": "table", "log": ".lines", "image": ".picture", "report": ".tree", "number": ".lines"}
        for name, selector in views.items():
            await opened.check(f"{look}-value-{name}", f"#/value?path={paths[name]}", selector, **LOOKS[look])
        width = await opened.browser("evaluate", code="document.documentElement.scrollWidth - innerWidth")
        assert width <= 0


async def test_a_blank_key_opens_too(config: Path) -> None:
    async with opening(config) as opened:
        path = await put(opened.store, {"": "empty", "  ": "spaces"}, "tool", 1, created=time.time())
        for at, text in enumerate(("empty", "spaces"), 1):
            await opened.open(f"#/value?path={path}")
            await opened.browser("click", selector=f".tree li:nth-child({at}) a")
            await opened.browser("wait", selector=".lines", text=text)


async def test_a_call_opens_to_its_arguments_with_linked_paths(config: Path) -> None:
    async with opening(config) as opened:
        paths = await fill_busy(opened.store, time.time())
        await opened.open("#/calls")
        await opened.browser("wait", selector="tbody tr")
        await opened.browser("click", selector='button:text-is("build_report_mirrored")')
        await opened.browser("wait", selector="tr.detail pre a")
        await opened.browser("click", selector='button:text-is("Show the notice")')
        await opened.browser("wait", selector="tr.detail pre", text="build_report-")
        await opened.shoot("call-open")
        await opened.browser("click", selector="tr.detail pre a")
        await opened.browser("wait", selector="h1.path", text=paths["orders"])


async def test_the_lineage_is_drawn_and_its_boxes_open(config: Path) -> None:
    async with opening(config) as opened:
        paths = await fill_busy(opened.store, time.time())
        await opened.check("lineage-value", f"#/lineage?path={paths['orders']}", "svg a")
        drawn = await opened.browser(
            "evaluate", code="[...document.querySelectorAll('svg a')].map((a) => a.firstChild.textContent)"
        )
        assert any(one.startswith(f"Value {paths['report']}: object") for one in drawn)
        assert any(one.startswith("Call of send_mail_mirrored: mail") for one in drawn)
        assert not any("screenshot" in one for one in drawn)
        await opened.browser("evaluate", code="document.querySelector('svg a.call').focus()")
        await opened.browser("press", key="Enter")
        await opened.browser("wait", selector="main h1", text="_mirrored")
        await opened.browser("wait", selector="dl.facts")


async def test_new_calls_appear_and_are_announced(config: Path) -> None:
    async with opening(config) as opened:
        await opened.open("#/calls")
        await opened.browser("wait", selector=".empty")
        await log_calls(opened.store, [make_call(1, time.time(), "fresh_tool", "u")])
        await opened.browser("wait", selector="tbody tr", text="fresh_tool")
        assert await opened.browser("text", selector="#announcer") == ["1 new call: fresh_tool"]


async def test_the_keyboard_reaches_and_opens_everything(config: Path) -> None:
    async with opening(config) as opened:
        await fill_busy(opened.store, time.time())
        await opened.open("#/calls")
        await opened.browser("wait", selector="tbody tr")
        seen: list[str] = []
        for _ in range(40):
            await opened.browser("press", key="Tab")
            tag, text = await opened.browser("focused")
            seen.append(text.strip())
            outline = await opened.browser("evaluate", code="getComputedStyle(document.activeElement).outlineStyle")
            assert (outline != "none") or tag == "BODY", text
            if text == "memory_read":
                break
        assert seen[:6] == ["Skip to the content", "Calls", "Values", "Lineage", "Savings", "Why"]
        assert {"Pause", "memory_read"} <= set(seen)
        await opened.browser("press", key="Enter")
        await opened.browser("wait", selector="tr.detail:not([hidden]) dl")
        await opened.browser("press", key="Enter")
        assert await opened.browser("text", selector="tr.detail:not([hidden])") == []


async def test_ten_thousand_values_are_paged(config: Path) -> None:
    async with opening(config) as opened:
        for at in range(10_000):
            await put(opened.store, b"1", f"tool_{at % 7}", at, created=time.time() - 10_000 + at)
        begun = time.perf_counter()
        await opened.open("#/values")
        await opened.browser("wait", selector="tbody tr")
        took = time.perf_counter() - begun
        assert took < 10
        assert (await opened.browser("text", selector="main p.faint"))[0].startswith("10,000 values")
        assert len(await opened.browser("text", selector="tbody tr")) == 100
        await opened.shoot("ten-thousand-values")
        newest = await opened.browser("evaluate", code="document.querySelector('tbody a').href")
        await opened.browser("click", selector='button:text-is("Older")')
        await opened.browser("wait", selector='button:text-is("Newer")')
        await opened.browser("click", selector='button:text-is("Newer")')
        await opened.browser("gone", selector='button:text-is("Newer")')
        assert await opened.browser("evaluate", code="document.querySelector('tbody a').href") == newest


async def test_a_search_continues_until_it_finds_a_value_or_is_stopped(config: Path) -> None:
    async with opening(config) as opened:
        rare = await put(opened.store, b"1", "rare", 1, created=time.time() - 9)
        for at in range(8_000):
            await put(opened.store, b"1", "often", at + 10, created=time.time())
        await opened.open("#/values?search=RARE")
        await opened.browser("wait", selector="tbody tr")
        assert rare in (await opened.browser("evaluate", code="document.querySelector('tbody a').href"))
        assert "Compared with the filters: 8,001." in (await opened.browser("text", selector="main p.faint"))[0]
        assert await opened.browser("text", selector="main button") == []
        await opened.browser("evaluate", code=SLOW_SEARCH)
        await opened.browser("fill", selector="input[type=search]", text="nothing")
        await opened.browser("click", selector='button:text-is("Stop")')
        await opened.browser("wait", selector=".empty", text="Search further, or change a filter.")
        assert (await opened.browser("focused"))[1] == "Search further"
        await opened.shoot("search-stopped")
        await opened.browser("press", key="Enter")
        await opened.browser("wait", selector=".empty", text="No value passes these filters.")
        await opened.browser("fill", selector="input[type=search]", text="nothing more")
        await opened.browser("wait", selector='button:text-is("Stop"):enabled')
        await opened.browser("evaluate", code=EARLY_STOP)
        await opened.browser("fill", selector="input[type=search]", text="other")
        await opened.browser("wait", selector=".empty", text="Search further, or change a filter.")
        assert await opened.browser("problems") == []


async def test_a_value_is_downloaded_and_forgotten(config: Path) -> None:
    async with opening(config) as opened:
        path = await put(opened.store, "Grüße", "greet", 1, created=time.time())
        await opened.open(f"#/value?path={path}")
        found = await opened.browser("download", selector='button:text-is("Download")')
        assert (found["name"], Path(found["path"]).read_text()) == ("greet-000000000001.txt", "Grüße")
        await opened.browser("click", selector='button:text-is("Forget")')
        await opened.browser("click", selector='button:text-is("Forget for good: press again")')
        await opened.browser("wait", selector=".empty")
        assert (await opened.store.stats("local")).values == 0


async def test_an_unknown_path_is_an_error_with_a_next_step(config: Path) -> None:
    async with opening(config) as opened:
        await opened.open("#/value?path=nothing", csp=False)
        await opened.shoot("error-path")
        assert await opened.browser("axe") == []
        await opened.browser("wait", selector=".failure button", text="Try again")


async def test_a_gateway_that_ended_is_an_error_with_a_next_step(config: Path) -> None:
    async with opening(config) as opened:
        await opened.open("#/calls", csp=False)
        await opened.browser("wait", selector=".empty")
        opened.served.application.server.handlers.gateway.services.writer.store.events.read = _fail  # type: ignore[method-assign]
        await opened.browser("wait", selector=".failure")
        await opened.shoot("error-store")
        assert await opened.browser("axe") == []


async def _fail(*_: object, **__: object) -> Any:
    from mcp_mirror.errors import StoreError  # noqa: PLC0415

    raise StoreError("The store cannot be read: the disk is full.")


ATTACKS = (
    HOSTILE,
    "</td></tr></table><iframe srcdoc=\"<script>parent.document.title='owned'</script>\"></iframe>",
    "<svg onload=\"document.title='owned'\"><animate onbegin=alert(1) attributeName=x></svg>",
    "javascript:document.title='owned'",
    "\u202egnp.exe\u2066\u200b<b>",
    "{{constructor.constructor('document.title=1')()}}${document.title='owned'}",
)


async def test_stored_content_is_only_ever_text(config: Path) -> None:
    async with opening(config) as opened:
        paths = []
        for at, attack in enumerate(ATTACKS):
            now = time.time() - 60 + at
            values = (attack, {attack: attack}, [{attack: attack, "b": [attack]}], [attack, [attack]])
            for kind, value in enumerate(values):
                more: dict[str, Any] = {"label": "evil", "upstream": attack, "labels": {"sources": attack}}
                paths.append(await put(opened.store, value, attack, 10 * at + kind, created=now, **more))
            why = (("/x", attack, attack), ("", "", attack))
            facts: dict[str, Any] = {"reason": attack, "arguments": attack, "why": why, "inputs": (attack,)}
            call = make_call(at, now, attack, attack, attack, path=paths[-1], **facts)
            await log_calls(opened.store, [call])
        block = image_block(f"<svg xmlns='http://www.w3.org/2000/svg'>{HOSTILE}</svg>".encode(), "image/png")
        paths.append(await put(opened.store, block, "fake", 99, kind="binary", media_type=HOSTILE, created=time.time()))
        routes = [f"#/{route}" for route in ROUTES] + [f"#/value?path={path}" for path in paths]
        await opened.open()
        for route in (*routes, f"#/value?path={HOSTILE}", f"#/{HOSTILE}", f"#/calls?principal={HOSTILE}"):
            await opened.browser("go", hash=route)
            await opened.browser("wait", selector="main h1, main .failure")
            await opened.browser("evaluate", code="new Promise((done) => setTimeout(done, 120))")
            await opened.browser(
                "evaluate", code="document.querySelectorAll('main button.plain').forEach((b) => b.click())"
            )
            found = await opened.browser(
                "evaluate",
                code="[document.title.includes('owned'), document.querySelectorAll('main :is(script, iframe, object, "
                "embed, animate, b, img:not(.picture), [onerror], [onload])').length, "
                "[...document.links].filter((a) => !a.href.startsWith(location.origin)).length]",
            )
            assert found == [False, 0, 0], route
        problems = await opened.browser("problems")
        assert [one for one in problems if "status of 404" not in one] == []
        assert {url.split("/")[2] for url in await opened.browser("requests")} == {opened.address.split("/")[2]}
        await opened.shoot("hostile")


async def test_the_policy_stops_inline_scripts_and_other_origins(config: Path) -> None:
    async with opening(config) as opened:
        await opened.open()
        await opened.browser(
            "evaluate",
            code="{ const s = document.createElement('script'); s.textContent = \"document.title = 'owned'\"; "
            "document.body.append(s); const i = document.createElement('img'); i.src = 'http://127.0.0.1:9/x.png'; "
            "document.body.append(i); const d = document.createElement('div'); d.setAttribute('style', 'color: red'); "
            "document.body.append(d); }",
        )
        assert await opened.browser("evaluate", code="document.title.includes('owned')") is False
        problems = " ".join(await opened.browser("problems"))
        assert "script-src" in problems
        assert "img-src" in problems
        assert "style-src" in problems


async def test_a_token_is_asked_for_once_and_kept_in_the_tab(configured: Configured, raw: Any) -> None:
    config = configured({"raw": raw()}, auth={"tokens": HASHES})
    async with serving_gateway(config) as served, open_browser() as browser:
        opened = Opened(served, browser)
        await put(opened.store, [1], "mine", 1, namespace='["token", "alice"]', created=time.time())
        await opened.open("#/values", csp=False)
        await opened.shoot("sign-in")
        assert await browser("axe") == []
        await browser("fill", selector="#token", text="mcpm_wrong")
        await browser("press", key="Enter")
        await browser("wait", selector=".failure")
        await browser("fill", selector="#token", text=TOKENS["alice"])
        await browser("press", key="Enter")
        await browser("wait", selector="tbody tr", text="mine")
        await browser("reload")
        await browser("wait", selector="tbody tr", text="mine")
        traces = await browser("evaluate", code="[document.cookie, localStorage.length, location.href]")
        assert traces == ["", 0, f"{opened.address}#/values"]
        assert (await browser("text", selector="#scope"))[0] == "alice"


async def test_an_operator_without_data_learns_where_that_of_others_is(configured: Configured, raw: Any) -> None:
    tokens = {"alice": {"hash": HASHES["alice"], "scopes": ["operator"]}, "bob": HASHES["bob"]}
    config = configured({"raw": raw()}, auth={"tokens": tokens}, dashboard={"operator_scopes": ["operator"]})
    async with serving_gateway(config) as served, open_browser() as browser:
        opened, owner = Opened(served, browser), '["token", "bob"]'
        await put(opened.store, [1], "theirs", 1, namespace=owner, created=time.time())
        await log_calls(opened.store, [make_call(1, time.time(), "theirs", "crm")], owner)
        await opened.open("#/calls")
        await browser("fill", selector="#token", text=TOKENS["alice"])
        await browser("press", key="Enter")
        for section in ("Calls", "Values", "Lineage", "Savings", "Why"):
            await browser("click", selector=f'nav a:text-is("{section}")')
            await browser("wait", selector="main h1", text=section)
            await browser("wait", selector=".empty", text="Only the data of alice is shown: choose another principal")
        await browser("evaluate", code=f"location.hash = '#/calls?principal={quote(owner)}'")
        await browser("wait", selector="tbody tr", text="theirs")
        await browser("click", selector='nav a:text-is("Why")')
        await browser("wait", selector="main h1", text="Why")
        await browser("wait", selector=".empty")
        assert "alice" not in (await browser("text", selector=".empty"))[0]
