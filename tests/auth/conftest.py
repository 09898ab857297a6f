"""Gateways that require a token, and clients with a token."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
from tests.end_to_end.conftest import Configured, configured, connect, open_lines, raw, run, serve

from mcp_mirror.app import Application, open_application
from mcp_mirror.config import load_config

__all__ = ["Configured", "configured", "connect", "open_lines", "raw", "run", "serve"]

TOKENS = {name: f"mcpm_{name}-0123456789abcdef0123456789abcdef" for name in ("alice", "bob")}
HASHES = {name: f"sha256:{hashlib.sha256(token.encode()).hexdigest()}" for name, token in TOKENS.items()}


@dataclass
class Served:
    """A gateway in this process, over real HTTP."""

    url: str
    application: Application


@asynccontextmanager
async def serving_gateway(config: Path, host: str = "127.0.0.1") -> AsyncIterator[Served]:
    """Start a gateway on a free port."""
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    leaving = anyio.Event()
    async with open_application(load_config(config, {})) as application, anyio.create_task_group() as tasks:
        tasks.start_soon(application.serve_http, host, 0, url.set_result, leaving)
        yield Served(await url, application)
        leaving.set()
