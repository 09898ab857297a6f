"""One run of BeeAI's RequirementAgent in the environment of BeeAI.

The agent is an MCP client of the real gateway. Standard input is a job: JSON with the members of `Job`. Standard output
is the outcome: JSON with `calls` (each with tool, arguments, text, is_error, seconds, and `lines`: the lines of the
witness file after it), `answer`, `end`, `detail`, `prompt_tokens`, `completion_tokens`, `steps` and `seconds`.
"""

import asyncio
import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from beeai_framework.adapters.openai import OpenAIChatModel
from beeai_framework.agents import AgentError
from beeai_framework.agents.requirement import RequirementAgent
from beeai_framework.backend import ChatModelParameters
from beeai_framework.errors import FrameworkError
from beeai_framework.tools.mcp import MCPTool
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.types import CallToolResult, TextContent


@dataclass(frozen=True)
class Job:
    """The settings of the run."""

    command: list[str]
    """The command that starts the gateway."""
    env: dict[str, str]
    cwd: str
    witness: str
    """The file in which upstreams record the calls that they receive."""
    log: str
    """The file for the gateway's standard error."""
    base_url: str
    model: str
    system: str
    prompt: str
    temperature: float
    seed: int
    max_tokens: int
    max_calls: int
    max_seconds: float


@dataclass
class CallRecorder:
    """Records the calls of the agent."""

    witness: Path
    calls: list[dict[str, Any]] = field(default_factory=list)

    def add(self, name: str, arguments: dict[str, Any], result: CallToolResult, seconds: float) -> None:
        """Record a completed call."""
        self.calls.append(
            {
                "tool": name,
                "arguments": arguments,
                "text": "\n".join(block.text for block in result.content if isinstance(block, TextContent)),
                "is_error": bool(result.isError),
                "seconds": seconds,
                "lines": len(self.witness.read_bytes().splitlines()) if self.witness.exists() else 0,
            }
        )


class RecordedSession(ClientSession):
    """A session that records its calls."""

    recorder: CallRecorder

    async def call_tool(self, name: str, arguments: dict[str, Any] | None = None, **options: Any) -> CallToolResult:
        """Call a tool and record the call."""
        started = time.perf_counter()
        result = await super().call_tool(name, arguments, **options)
        self.recorder.add(name, arguments or {}, result, time.perf_counter() - started)
        return result


async def run(job: Job) -> dict[str, Any]:
    """Run the agent and return the outcome."""
    recorder, started = CallRecorder(Path(job.witness)), time.perf_counter()
    server = StdioServerParameters(command=job.command[0], args=job.command[1:], env=job.env, cwd=job.cwd)
    with Path(job.log).open("w") as log:
        async with stdio_client(server, errlog=log) as streams, RecordedSession(*streams) as session:
            session.recorder = recorder
            initialized = await session.initialize()
            agent = await make_agent(job, session, initialized.instructions or "")
            outcome = await run_agent(agent, job)
    return {"calls": recorder.calls, **outcome, "seconds": time.perf_counter() - started}


async def make_agent(job: Job, session: ClientSession, instructions: str) -> RequirementAgent:
    """Create the agent with all tools that the gateway lists."""
    model = OpenAIChatModel(
        job.model,
        base_url=job.base_url,
        api_key="none",
        tool_call_fallback_via_response_format=True,
        parameters=ChatModelParameters(temperature=job.temperature, max_tokens=job.max_tokens, seed=job.seed),
    )
    texts = [part for part in (job.system, instructions) if part]
    return RequirementAgent(llm=model, tools=await MCPTool.from_client(session), instructions=texts)


async def run_agent(agent: RequirementAgent, job: Job) -> dict[str, Any]:
    """Return the agent's answer, or the reason of its end without an answer."""
    outcome = {"answer": "", "end": "answered", "detail": "", "prompt_tokens": 0, "completion_tokens": 0, "steps": 0}
    try:
        done = await asyncio.wait_for(agent.run(job.prompt, max_iterations=job.max_calls), job.max_seconds)
    except TimeoutError:
        return outcome | {"end": "seconds"}
    except FrameworkError as error:
        end = "calls" if isinstance(error, AgentError) and "iterations" in str(error) else _end_of(error)
        return outcome | {"end": end, "detail": error.explain()[:500]}
    usage = done.state.usage
    tokens = {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens}
    return outcome | {"answer": done.last_message.text, "steps": done.state.iteration} | tokens


def _end_of(error: BaseException | None) -> str:
    """Return `error` for a failure of the endpoint, and `malformed` for a failure of the model."""
    while error is not None:
        if type(error).__module__.partition(".")[0] in {"litellm", "openai", "httpx"}:
            return "error"
        error = error.__cause__
    return "malformed"


def main() -> None:
    """Read a job, run it, and write the outcome."""
    outcome = asyncio.run(run(Job(**json.load(sys.stdin))))
    print(json.dumps(outcome))


if __name__ == "__main__":
    main()
