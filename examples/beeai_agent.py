"""A BeeAI agent that calls the tools of `measurements.py` over MCP, because its MCP client needs another SDK version.

MIRROR_PYTHON is a Python with mcp-mirror; this program runs in a Python with beeai-framework[mcp]:

MIRROR_PYTHON=../.venv/bin/python OPENAI_API_BASE=http://127.0.0.1:11434/v1 OPENAI_API_KEY=none MODEL=qwen3 \
python beeai_agent.py
"""

import asyncio
import os
from pathlib import Path

from beeai_framework.adapters.openai import OpenAIChatModel
from beeai_framework.agents.requirement import RequirementAgent
from beeai_framework.tools.mcp import MCPTool
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

QUESTION = "How warm was Bonn on average, and in how many hours was it above 12 degrees?"
SERVER = StdioServerParameters(
    command=os.environ["MIRROR_PYTHON"], args=[str(Path(__file__).with_name("measurements.py"))]
)


async def main() -> None:
    async with stdio_client(SERVER) as (read, write), ClientSession(read, write) as session:
        greeting = await session.initialize()
        agent = RequirementAgent(
            llm=OpenAIChatModel(os.environ.get("MODEL", "gpt-5-mini")),
            tools=await MCPTool.from_session(session),
            instructions=greeting.instructions,
        )
        print((await agent.run(QUESTION)).last_message.text)


asyncio.run(main())
