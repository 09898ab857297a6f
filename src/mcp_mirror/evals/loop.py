"""The tool-calling loop: ask the model, make its calls, go on until it answers or a limit is met.

It knows neither cases' checks nor how an endpoint or a server is reached: both are functions that it is given.
"""

import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import anyio

from mcp_mirror.errors import EndpointError, UpstreamError
from mcp_mirror.evals.cases import Limits
from mcp_mirror.evals.conversation import Call, End, Entry, Made, Reply, Result, Tool, Transcript, Usage, User
from mcp_mirror.evals.dialects import Dialect, Message, write_messages
from mcp_mirror.evals.endpoint import Completion

Ask = Callable[[Sequence[Message], Mapping[str, Any]], Awaitable[Completion]]
Make = Callable[[Call], Awaitable[Made]]

_SAME_FAILURES: Final = 3
"""Times that one and the same call may fail."""
_MALFORMED: Final = 3
"""Replies that may be neither call nor answer."""


@dataclass(frozen=True, slots=True)
class Talk:
    """What a conversation begins with."""

    system: str
    tools: Sequence[Tool]
    entries: Sequence[Entry]
    dialect: Dialect
    sampling: Mapping[str, Any]
    """Members of each request: temperature, seed and the like."""
    limits: Limits


@dataclass(slots=True)
class _Course:
    """A conversation under way."""

    talk: Talk
    ask: Ask
    make: Make
    entries: list[Entry]
    made: list[Made] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    malformed: int = 0
    failures: Counter[str] = field(default_factory=Counter)

    async def run(self) -> End:
        """Go on until something ends it."""
        while True:
            reply = await self._reply()
            if reply.answer is not None:
                return "answered"
            if self.usage.total > self.talk.limits.tokens:
                return "tokens"
            if end := self._told(reply) or await self._made_all(reply.calls):
                return end

    async def _reply(self) -> Reply:
        talk = self.talk
        system = "\n\n".join(part for part in (talk.system, talk.dialect.instructions(talk.tools)) if part)
        messages = write_messages(talk.dialect, system, self.entries)
        completion = await self.ask(messages, {**talk.dialect.body(talk.tools), **talk.sampling})
        self.usage += completion.usage
        reply = talk.dialect.read(completion.message)
        self.entries.append(reply)
        return reply

    def _told(self, reply: Reply) -> End | None:
        """Tell the model of a reply that is no use."""
        if not reply.problem:
            return None
        self.malformed += 1
        self.entries.append(User(reply.problem))
        return "malformed" if self.malformed >= _MALFORMED else None

    async def _made_all(self, calls: Sequence[Call]) -> End | None:
        for call in calls:
            if len(self.made) >= self.talk.limits.calls:
                return "calls"
            made = Made(Result(call, call.problem, is_error=True)) if call.problem else await self.make(call)
            self.made.append(made)
            self.entries.append(made.result)
            if made.result.is_error and self._fails_again(call):
                return "repeated"
        return None

    def _fails_again(self, call: Call) -> bool:
        self.failures[same := f"{call.name} {json.dumps(call.arguments, sort_keys=True)}"] += 1
        return self.failures[same] >= _SAME_FAILURES


async def converse(talk: Talk, ask: Ask, make: Make) -> Transcript:
    """Hold a conversation to its end.

    Args:
        talk: What it begins with.
        ask: Sends messages, with what else the request holds, to the model.
        make: Makes a call and tells what came of it; an UpstreamError of it ends the conversation.
    """
    course = _Course(talk, ask, make, list(talk.entries))
    started = time.perf_counter()
    end: End = "seconds"
    detail = ""
    try:
        with anyio.move_on_after(talk.limits.seconds):
            end = await course.run()
    except EndpointError as error:
        end, detail = ("overflow" if error.is_context_exceeded else "error"), str(error)
    except UpstreamError as error:
        end, detail = "error", str(error)
    last = course.entries[-1] if course.entries else None
    return Transcript(
        entries=tuple(course.entries),
        made=tuple(course.made),
        end=end,
        answer=(last.answer or "") if isinstance(last, Reply) else "",
        detail=detail,
        usage=course.usage,
        seconds=time.perf_counter() - started,
    )
