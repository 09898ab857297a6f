"""A LangChain agent (a LangGraph graph) with tools that keep their results in memory.

OPENAI_BASE_URL=http://127.0.0.1:11434/v1 OPENAI_API_KEY=none MODEL=qwen3 python langchain_agent.py
"""

import asyncio
import os
from typing import Any

from langchain.agents import create_agent
from langchain_core.tools import BaseTool
from langchain_openai import ChatOpenAI

from measurements import QUESTION, mirror


class MirrorTool(BaseTool):
    """A tool of the mirror.

    Its arguments are one parameter: a `StructuredTool` passes them by name, and loses those named `config`,
    `run_manager` and `self`.
    """

    def _to_args_and_kwargs(self, tool_input: Any, _tool_call_id: str | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (tool_input,), {}

    def _run(self, _arguments: dict[str, Any]) -> str:
        raise NotImplementedError("The mirror is asynchronous: use `ainvoke`.")

    async def _arun(self, arguments: dict[str, Any]) -> str:
        return str(await mirror.call(self.name, arguments))


def as_tool(definition: dict[str, Any]) -> MirrorTool:
    return MirrorTool(
        name=definition["name"], description=definition.get("description", ""), args_schema=definition["inputSchema"]
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
