"""An agent of the OpenAI Agents SDK with tools that keep their results in memory.

OPENAI_BASE_URL=http://127.0.0.1:11434/v1 OPENAI_API_KEY=none MODEL=qwen3 python openai_agents_agent.py
"""

import asyncio
import os
from typing import Any

from agents import Agent, FunctionTool, Runner, set_default_openai_api, set_tracing_disabled

from measurements import QUESTION, mirror


def as_tool(definition: dict[str, Any]) -> FunctionTool:
    name = definition["name"]

    async def call(_: Any, arguments: str) -> str:
        return str(await mirror.call(name, arguments))

    return FunctionTool(
        name,
        definition.get("description", ""),
        definition["inputSchema"],
        on_invoke_tool=call,
        strict_json_schema=False,
    )


async def main() -> None:
    set_tracing_disabled(True)
    set_default_openai_api("chat_completions")  # what other servers than OpenAI's own have
    async with mirror:
        agent = Agent(
            "assistant",
            instructions=mirror.instructions,
            model=os.environ.get("MODEL", "gpt-5-mini"),
            tools=[as_tool(definition) for definition in mirror.tools("mcp")],
        )
        print((await Runner.run(agent, QUESTION)).final_output)


asyncio.run(main())
