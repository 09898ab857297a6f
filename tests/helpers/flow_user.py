"""A user of a gateway with labels and flow rules, and upstreams that return and receive values."""

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mcp_mirror.app import Application, open_application
from mcp_mirror.callers import LOCAL, Caller, NullChannel
from mcp_mirror.config import load_config
from mcp_mirror.functions.reply import Reply, read_reply
from mcp_mirror.memory.tools.lookup import find_value
from mcp_mirror.types import Descriptor

RAW: Final = str(Path(__file__).parents[1] / "end_to_end" / "servers" / "raw.py")
BOUND: Final = 60.0
"""Seconds that a call may take."""
SECRET: Final = "c4nary-of-a-customer"
ROWS: Final = {"rows": [SECRET] * 3, SECRET: 1}
PATH: Final = re.compile(r"[A-Za-z_]+-[0-9a-f]{8}-[0-9a-f-]{27}")


def upstream(name: str, log: Path, **keys: Any) -> dict[str, Any]:
    """Return the configuration of an upstream that writes the methods of its requests to a log."""
    return {"command": sys.executable, "args": ["-S", RAW, "ok", "--log", str(log / f"{name}.log")], **keys}


@dataclass
class Desk:
    """The local user of a gateway in this process, with real upstreams `crm`, `web` and `mail`."""

    application: Application
    folder: Path

    async def reply(self, tool: str, **arguments: Any) -> Reply:
        """Call a tool."""
        gateway = self.application.gateway
        call = gateway.new_call(NullChannel(Caller(LOCAL)), tool, json.dumps(arguments).encode())
        return read_reply(await asyncio.wait_for(gateway.state.answer(call), BOUND))

    async def text(self, tool: str, **arguments: Any) -> str:
        reply = await self.reply(tool, **arguments)
        assert not reply.is_error, reply.text
        return reply.text

    async def refused(self, tool: str, **arguments: Any) -> str:
        reply = await self.reply(tool, **arguments)
        assert reply.is_error, reply.text
        assert SECRET not in reply.text
        return reply.text

    async def say(self, name: str, value: object = None, **more: Any) -> str:
        """Let an upstream return a value, and return its path."""
        result = {"content": [], "structuredContent": ROWS if value is None else value, **more}
        return path_in(await self.text(f"{name}_say_mirrored", result=json.dumps(result)))

    async def labels(self, path: str) -> Mapping[str, str]:
        known = await self.application.gateway.services.writer.store.describe(LOCAL, path)
        assert isinstance(known, Descriptor)
        return known.labels

    async def stored(self, path: str) -> Any:
        """Read a value that the model may not see, too."""
        found = await find_value(self.application.gateway.memory, LOCAL, path, "test", to=None)
        return json.loads(bytes(found.blob))

    def calls(self, name: str) -> int:
        log = self.folder / f"{name}.log"
        return log.read_text().count(" tools/call\n") if log.exists() else 0


def path_in(text: str) -> str:
    found = PATH.search(text)
    assert found, text
    return found[0]


STRICT: Final = {
    "crm": {"labels": {"integrity": "trusted", "confidentiality": "private"}},
    "web": {"labels": {"integrity": "untrusted", "confidentiality": "public"}},
    "mail": {"accepts": {"integrity": "trusted", "confidentiality": "internal"}},
}
SELF: Final = {"model": {"labels": {"integrity": "trusted", "confidentiality": "public"}}}
"""The model's own text is trusted and public."""
HIDING: Final = {"model": {"accepts": {"confidentiality": "internal"}}}
"""The model may not see what is private, such as values of `crm`."""


@asynccontextmanager
async def open_desk(
    configured: Callable[..., Path],
    folder: Path,
    upstreams: Mapping[str, dict[str, Any]] | None = None,
    **sections: Any,
) -> AsyncIterator[Desk]:
    """Open a gateway, with keys for each upstream and sections of the configuration."""
    servers = {name: upstream(name, folder, **(upstreams or {}).get(name, {})) for name in ("crm", "web", "mail")}
    (folder / "exchange").mkdir(exist_ok=True)
    tools = {"roots": [str(folder / "exchange")], **sections.pop("memory_tools", {})}
    store = sections.pop("store", {"kind": "memory", "path": None})
    path = configured(servers, memory_tools=tools, store=store, **sections)
    async with open_application(load_config(path, {})) as application:
        await application.upstreams.wait_for_attempts(BOUND)
        yield Desk(application, folder)
