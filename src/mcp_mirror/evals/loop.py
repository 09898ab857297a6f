"""The tool-calling loop: query the model and make its calls until it answers or a limit is reached.

The loop must not know the checks of cases, endpoints or servers: the caller passes functions for them.
"""

import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import anyio
import msgspec

from mcp_mirror.errors import EndpointError, UpstreamError
from mcp_mirror.evals.cases import Limits
from mcp_mirror.evals.conversation import Call, End, Entry, MadeCall, Reply, Result, Tool, Transcript, Usage, User
from mcp_mirror.evals.dialects import Dialect, Message, write_messages
from mcp_mirror.evals.endpoint import Completion

Complete = Callable[[Sequence[Message], Mapping[str, Any]], Awaitable[Completion]]
"""Sends messages and the other members of a request to the model."""
MakeCall = Callable[[Call], Awaitable[MadeCall]]
"""Makes a call. An `UpstreamError` ends the conversation."""

_MAX_SAME_FAILURES: Final = 3
"""Failures of the same call that end the conversation."""
_MAX_MALFORMED: Final = 3
"""Replies that are neither call nor answer that end the conversation."""


class ConversationSetup(msgspec.Struct, frozen=True):
    """The beginning of a conversation, and its limits."""

    system: str
    tools: Sequence[Tool]
    entries: Sequence[Entry]
    dialect: Dialect
    sampling: Mapping[str, Any]
    """Members of each request: temperature, seed and the like."""
    limits: Limits
    with_images: bool = False
    """The model sees the images of results."""


class _Conversation(msgspec.Struct):
    """A running conversation."""

    setup: ConversationSetup
    complete: Complete
    make_call: MakeCall
    entries: list[Entry]
    made_calls: list[MadeCall] = msgspec.field(default_factory=list)
    usage: Usage = msgspec.field(default_factory=Usage)
    last_prompt: int = 0
    """Prompt tokens of the last request."""
    malformed: int = 0
    failures: Counter[str] = msgspec.field(default_factory=Counter)

    async def run(self) -> End:
        """Continue until the conversation ends."""
        while True:
            reply = await self._next_reply()
            if reply.answer is not None:
                return "answered"
            if self.usage.total > self.setup.limits.tokens:
                return "tokens"
            if reply.problem:
                self.malformed += 1
                self.entries.append(User(reply.problem))
                if self.malformed >= _MAX_MALFORMED:
                    return "malformed"
            if end := await self._make_calls(reply.calls):
                return end

    async def _next_reply(self) -> Reply:
        setup = self.setup
        system = "\n\n".join(part for part in (setup.system, setup.dialect.instructions(setup.tools)) if part)
        messages = write_messages(setup.dialect, system, self.entries, with_images=setup.with_images)
        completion = await self.complete(messages, {**setup.dialect.body(setup.tools), **setup.sampling})
        # Each request begins with the whole previous one, so that part is cached.
        cached = min(self.last_prompt, completion.usage.prompt)
        self.usage += msgspec.structs.replace(completion.usage, cached=cached, steps=1)
        self.last_prompt = completion.usage.prompt
        reply = setup.dialect.read(completion.message)
        self.entries.append(reply)
        return reply

    async def _make_calls(self, calls: Sequence[Call]) -> End | None:
        for call in calls:
            if len(self.made_calls) >= self.setup.limits.calls:
                return "calls"
            made = MadeCall(Result(call, call.problem, is_error=True)) if call.problem else await self.make_call(call)
            self.made_calls.append(made)
            self.entries.append(made.result)
            if made.result.is_error:
                key = f"{call.name} {json.dumps(call.arguments, sort_keys=True)}"
                self.failures[key] += 1
                if self.failures[key] >= _MAX_SAME_FAILURES:
                    return "repeated"
        return None


async def run_conversation(setup: ConversationSetup, complete: Complete, make_call: MakeCall) -> Transcript:
    """Run a conversation to its end."""
    conversation = _Conversation(setup, complete, make_call, list(setup.entries))
    started = time.perf_counter()
    end: End = "seconds"
    detail = ""
    try:
        with anyio.move_on_after(setup.limits.seconds):
            end = await conversation.run()
    except EndpointError as error:
        end, detail = ("overflow" if error.is_context_exceeded else "error"), str(error)
    except UpstreamError as error:
        end, detail = "error", str(error)
    last = conversation.entries[-1] if conversation.entries else None
    return Transcript(
        entries=tuple(conversation.entries),
        made_calls=tuple(conversation.made_calls),
        end=end,
        answer=(last.answer or "") if isinstance(last, Reply) else "",
        detail=detail,
        usage=conversation.usage,
        seconds=time.perf_counter() - started,
    )
