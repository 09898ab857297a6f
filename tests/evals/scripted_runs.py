"""Runs of the cases in `evals/cases` with a scripted model."""

from pathlib import Path
from typing import Any

import httpx2
from scripted import ScriptedServer

from mcp_mirror.evals.cases import Case
from mcp_mirror.evals.dialects import ToolsMode
from mcp_mirror.evals.endpoint import Endpoint
from mcp_mirror.evals.log import Record
from mcp_mirror.evals.matrix import PLAIN, Model, Setting, merge
from mcp_mirror.evals.servers import Servers
from mcp_mirror.evals.single_run import run_on

CASES = Path(__file__).parents[2] / "evals" / "cases"


def setting_of(case: Case, model: Model, **changes: Any) -> Setting:
    chosen = {"style": "compact", "variant": PLAIN, "changes": {}, "few_shot": False, "gateway": True, **changes}
    return Setting(case=case, model=model, repeat=0, seed=1, **chosen)


def joined(cases: list[Case]) -> dict[str, Any]:
    """The servers of all these cases with all their tools, and all memory tools."""
    config: dict[str, Any] = {"store": {"kind": "memory"}}
    for case in cases:
        config = merge(config, case.servers)
    config["memory_tools"] = {"set": "all"}
    for upstream in config["upstreams"].values():
        upstream.pop("tools", None)
    return config


async def run_script(
    servers: Servers, server: ScriptedServer, case: Case, kind: str, tools: ToolsMode = "native", **changes: Any
) -> Record:
    async with httpx2.AsyncClient(timeout=30) as client:
        endpoint = Endpoint(client, server.url, f"{case.name}/{kind}", pauses=())
        return await run_on(servers, setting_of(case, Model("scripted", server.url, tools=tools), **changes), endpoint)
