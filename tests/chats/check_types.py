"""Checks conversations on standard input against the request types that the `openai` and `anthropic` packages publish.

Runs in an environment of its own, which has those packages: `make chats`.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterable
from typing import Any

from anthropic.types import MessageParam
from openai.types.chat import ChatCompletionMessageParam
from openai.types.responses import ResponseInputItemParam
from pydantic import TypeAdapter

TYPES: dict[str, TypeAdapter[Any]] = {
    "openai": TypeAdapter(ChatCompletionMessageParam),
    "openai-responses": TypeAdapter(ResponseInputItemParam),
    "anthropic": TypeAdapter(MessageParam),
}


def read_through(value: object) -> None:
    """Look at all of it: lists are checked only as they are read."""
    if isinstance(value, dict):
        for inner in value.values():
            read_through(inner)
    elif isinstance(value, Iterable) and not isinstance(value, str | bytes):
        for inner in value:
            read_through(inner)


def main() -> None:
    """Prints how many there were of each format; a message that is not valid is an error."""
    seen: Counter[str] = Counter()
    for line in sys.stdin:
        conversation = json.loads(line)
        if (adapter := TYPES.get(conversation["provider"])) is None:
            continue
        for message in conversation["messages"]:
            read_through(adapter.validate_python(message))
        seen[conversation["provider"]] += 1
    for provider, count in sorted(seen.items()):
        sys.stdout.write(f"{count:,} conversations of {provider} fit the published types\n")
    if not seen:
        sys.exit("There were no conversations on standard input.")


if __name__ == "__main__":
    main()
