"""Raw HTTP clients that open many 2025-11-25 sessions, and the resources that the gateway uses for them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    import httpx2

VERSION = "2025-11-25"
HEADERS = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
NOT_FOUND = 404


def children(pid: int) -> list[int]:
    """Return the ids of a gateway's upstream processes."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == pid and b"raw.py" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:  # it has ended
            continue
    return found


def resident_bytes(pid: int) -> int:
    """Memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * next((int(line.split()[1]) for line in lines if line.startswith("VmRSS:")), 0)


def threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


@dataclass
class Session:
    """One client session."""

    http: httpx2.AsyncClient
    url: str
    headers: dict[str, str] = field(default_factory=dict)
    number: int = 0

    @classmethod
    async def open(cls, http: httpx2.AsyncClient, url: str, *, token: str = "") -> Self:
        session = cls(http, url, {**HEADERS, **({"authorization": f"Bearer {token}"} if token else {})})
        client = {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": {"name": "hand", "version": "0"}}
        answer = await session.post("initialize", client)
        assert answer.status_code == 200, answer.text
        session.headers |= {"mcp-session-id": answer.headers["mcp-session-id"], "mcp-protocol-version": VERSION}
        await session.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return session

    async def send(self, message: dict[str, Any]) -> httpx2.Response:
        return await self.http.post(self.url, headers=self.headers, json=message, timeout=60)

    async def post(self, method: str, params: dict[str, Any] | None = None) -> httpx2.Response:
        self.number += 1
        return await self.send({"jsonrpc": "2.0", "id": self.number, "method": method, "params": params or {}})

    async def result(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the result of a request, or its error."""
        answer = await self.post(method, params)
        assert answer.status_code == 200, answer.text
        lines = [line for line in answer.text.splitlines() if line.startswith("data: {")]
        message: dict[str, Any] = json.loads(lines[-1].removeprefix("data: ") if lines else answer.text)
        result: dict[str, Any] = message["result"] if "result" in message else message["error"]
        return result

    async def call(self, tool: str, **arguments: Any) -> str:
        """Return the text that the model reads."""
        result = await self.result("tools/call", {"name": tool, "arguments": arguments})
        return str(result["content"][0]["text"])

    async def delete(self) -> None:
        await self.http.delete(self.url, headers=self.headers)
