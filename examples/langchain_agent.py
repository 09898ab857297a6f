"""A LangChain agent (a LangGraph graph) with tools that keep their results in memory.

OPENAI_BASE_URL=http://127.0.0.1:11434/v1 OPENAI_API_KEY=none MODEL=qwen3 python langchain_agent.py
"""

import asyncio
import os
from typing import Any

from langchain.agents import create_agent
from langchain_core.tools import StructuredTool
from langchain_openai import ChatOpenAI

from measurements import QUESTION, mirror


def as_tool(definition: dict[str, Any]) -> StructuredTool:
    name = definition["name"]

    async def call(**arguments: Any) -> str:
        return str(await mirror.call(name, arguments))

    return StructuredTool(
        name=name, description=definition["description"], args_schema=definition["inputSchema"], coroutine=call
    )


async def main() -> None:
    async with mirror:
        agent = create_agent(
            ChatOpenAI(model=os.environ.get("MODEL", "gpt-5-mini")),
            [as_tool(definition) for definition in mirror.tools("mcp")],
            system_prompt=mirror.instructions,
        )
        answer = await agent.ainvoke({"messages": [("user", QUESTION)]})
        print(answer["messages"][-1].content)


asyncio.run(main())
