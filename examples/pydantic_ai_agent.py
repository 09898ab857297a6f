"""A pydantic-ai agent with tools that keep their results in memory.

OPENAI_BASE_URL=http://127.0.0.1:11434/v1 OPENAI_API_KEY=none MODEL=qwen3 python pydantic_ai_agent.py
"""

import asyncio
import os
from typing import Any

from pydantic_ai import Agent, Tool
from pydantic_ai.models.openai import OpenAIChatModel

from measurements import QUESTION, mirror


def as_tool(definition: dict[str, Any]) -> Tool:
    name = definition["name"]

    async def call(**arguments: Any) -> str:
        return str(await mirror.call(name, arguments))

    return Tool.from_schema(call, name, definition.get("description", ""), definition["inputSchema"])


async def main() -> None:
    async with mirror:
        agent = Agent(
            OpenAIChatModel(os.environ.get("MODEL", "gpt-5-mini")),
            instructions=mirror.instructions,
            tools=[as_tool(definition) for definition in mirror.tools("mcp")],
        )
        print((await agent.run(QUESTION)).output)


asyncio.run(main())
