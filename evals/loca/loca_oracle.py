"""The oracle: a scripted model that makes the shortest sensible calls, with a tokenizer that counts what it reads.

A script is a generator. It yields the calls of one reply and gets the texts that the model reads: the results of tools
in this arm. It must not know anything else.
"""

import inspect
import json
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loca_arms import CLAIM, OpenArm
from loca_reading import is_stored, path_in
from mcp_mirror.errors import EndpointError
from mcp_mirror.evals.conversation import Usage
from mcp_mirror.evals.dialects import Message
from mcp_mirror.evals.endpoint import Completion


@dataclass(frozen=True, slots=True)
class Ask:
    """A call as a script writes it."""

    server: str
    """Empty for tools of the gateway."""
    tool: str
    arguments: Mapping[str, Any]


Step = Sequence[Ask]
Script = Generator[Step, list[str], None]


def ask(tool: str, **arguments: Any) -> Ask:
    """A call of `server.tool`, or of a tool of the gateway."""
    server, _, name = tool.rpartition(".")
    return Ask(server, name, arguments)


def source_of(*functions: Callable[..., Any]) -> str:
    """The source of functions with their imports, as a part of a script that a model writes."""
    return "\n\n".join(["import re\nfrom typing import Any", *(inspect.getsource(one).strip() for one in functions)])


def read_whole(text: str) -> Generator[Step, list[str], str]:
    """Read a stored result as a whole; a result that is shown is read already."""
    if not is_stored(text):
        return text
    (whole,) = yield [ask("retrieve_final_answer_from_memory", memory_path=path_in(text))]
    return whole


def read_each(texts: Sequence[str]) -> Generator[Step, list[str], list[str]]:
    """Read each stored result as a whole, in one reply."""
    stored = [path_in(text) for text in texts if is_stored(text)]
    if not stored:
        return [*texts]
    whole = iter((yield [ask("retrieve_final_answer_from_memory", memory_path=path) for path in stored]))
    return [next(whole) if is_stored(text) else text for text in texts]


@dataclass(slots=True)
class Oracle:
    """A scripted model."""

    script: Script
    arm: OpenArm
    count_tokens: Callable[[str], int]
    _messages: int = 0
    """Messages that are counted."""
    _tokens: int = 0
    _definitions: int = 0
    _calls: int = 0

    async def complete(self, messages: Sequence[Message], body: Mapping[str, Any]) -> Completion:
        """The next reply of the script."""
        if not self._messages:
            self._definitions = self.count_tokens(_written(body.get("tools", [])))
        fresh = messages[self._messages :]
        self._tokens += sum(self.count_tokens(_written(message)) for message in fresh)
        results = [message["content"] for message in fresh if message["role"] == "tool"]
        try:
            message = self._reply(results)
        except (LookupError, ValueError, TypeError) as error:
            raise EndpointError(f"The script cannot continue: {type(error).__name__}: {error}") from error
        prompt = self._tokens + self._definitions
        written = self.count_tokens(_written(message))
        self._messages = len(messages)
        return Completion(message, Usage(prompt, written))

    def _reply(self, results: list[str]) -> Message:
        try:
            step = self.script.send(results) if self._calls else next(self.script)
        except StopIteration:
            step = [ask(f"{CLAIM}.{CLAIM}")]
        calls = []
        for one in step:
            self._calls += 1
            name = self.arm.find_name(one.server, one.tool) if one.server else one.tool
            function = {"name": name, "arguments": json.dumps(one.arguments, ensure_ascii=False)}
            calls.append({"id": f"call_{self._calls}", "type": "function", "function": function})
        return {"role": "assistant", "content": None, "tool_calls": calls}


def _written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
