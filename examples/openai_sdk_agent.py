"""An agent without a framework: a loop with the OpenAI SDK and tools that keep their results in memory.

OPENAI_BASE_URL=http://127.0.0.1:11434/v1 OPENAI_API_KEY=none MODEL=qwen3 python openai_sdk_agent.py
"""

import asyncio
import os
from typing import Any

from openai import AsyncOpenAI

from measurements import QUESTION, mirror


async def answer(client: AsyncOpenAI, question: str) -> str | None:
    messages: list[Any] = [{"role": "system", "content": mirror.instructions}, {"role": "user", "content": question}]
    while True:
        completion = await client.chat.completions.create(
            model=os.environ.get("MODEL", "gpt-5-mini"), messages=messages, tools=mirror.tools("openai")
        )
        message = completion.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return message.content
        for call in message.tool_calls:
            if call.type == "function":
                reply = await mirror.call(call.function.name, call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": reply.text})


async def main() -> None:
    async with mirror:
        print(await answer(AsyncOpenAI(), QUESTION))


asyncio.run(main())
