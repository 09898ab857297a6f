"""The dashboard over a store in this process, and over a real gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from tests.dashboard.samples import NOW, open_disk
from tests.end_to_end.conftest import configured, raw, run

from mcp_mirror.dashboard.api import DashboardApi
from mcp_mirror.dashboard.services import VIEWER_KEY, DashboardServices, Viewer
from mcp_mirror.observability.audit import Audit, AuditRecord
from mcp_mirror.payload.spool import Spool
from mcp_mirror.security.flows import Flows
from mcp_mirror.settings.policies import Config, WirePolicy
from mcp_mirror.settings.store import StorePolicy
from mcp_mirror.stores.base import Store
from mcp_mirror.system.child_watchdog import ChildWatchdog
from mcp_mirror.workers.frames import FrameScanner
from mcp_mirror.workers.queries import QueryRunner

__all__ = ["configured", "raw", "run"]


@dataclass
class Recorded:
    """An audit sink that keeps records; or one that cannot write."""

    records: list[AuditRecord] = field(default_factory=list)
    is_failing: bool = False

    def enqueue(self, record: AuditRecord) -> None:
        self.records.append(record)

    async def write(self, record: AuditRecord) -> bool:
        self.records.append(record)
        return not self.is_failing

    @property
    def counts(self) -> dict[str, int]:
        return {"written": len(self.records)}


@dataclass
class Page:
    """Requests of one viewer to the API in this process."""

    services: DashboardServices
    sink: Recorded
    viewer: Viewer = field(default_factory=lambda: Viewer("local"))

    @property
    def store(self) -> Store:
        return self.services.store

    def seen_by(self, **viewer: Any) -> Page:
        return Page(self.services, self.sink, Viewer(**{"namespace": "local", **viewer}))

    def with_services(self, **changes: Any) -> Page:
        return Page(msgspec.structs.replace(self.services, **changes), self.sink, self.viewer)

    async def send(
        self, method: str, endpoint: str, /, headers: dict[str, str] | None = None, **query: Any
    ) -> httpx2.Response:
        api = DashboardApi(self.services)

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await api({**scope, VIEWER_KEY: self.viewer}, receive, send)

        async with httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app=app), base_url="http://127.0.0.1:1", timeout=60
        ) as client:
            return await client.request(method, f"/api/{endpoint}", params=query, headers=headers)

    async def get(self, endpoint: str, /, **query: Any) -> Any:
        answer = await self.send("GET", endpoint, **query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def refuse(self, endpoint: str, /, **query: Any) -> tuple[int, str]:
        answer = await self.send("GET", endpoint, **query)
        return answer.status_code, answer.json()["error"]


@pytest.fixture
async def page(tmp_path: Path) -> AsyncIterator[Page]:
    """The dashboard of the local user over an empty disk store."""
    sink = Recorded()
    async with AsyncExitStack() as stack:
        watchdog = stack.enter_context(ChildWatchdog())
        spool = stack.enter_context(Spool(WirePolicy(), tmp_path / "spool"))
        store = await stack.enter_async_context(open_disk(tmp_path / "store", lambda: NOW))
        services = DashboardServices(
            store=store,
            scanner=await stack.enter_async_context(aclosing(FrameScanner(watchdog, spool))),
            queries=await stack.enter_async_context(aclosing(QueryRunner(watchdog, spool))),
            config=Config(),
            limits=StorePolicy(),
            read_flows=Flows,
            audit=Audit(sink),
        )
        yield Page(services, sink)
