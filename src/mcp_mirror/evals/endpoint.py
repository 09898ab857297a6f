"""A model behind an OpenAI-compatible endpoint: one chat completion, asked for again where asking again can help."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
import httpx2

from mcp_mirror.errors import EndpointError
from mcp_mirror.evals.conversation import Usage
from mcp_mirror.evals.dialects import Message

_PAUSES: Final = (0.5, 2.0, 8.0)
"""Seconds before each further attempt."""
_LONGEST_PAUSE: Final = 30.0
"""Seconds that an endpoint may have us wait."""
_PASSING: Final = frozenset({408, 409, 425, 429})
"""Status codes, beside those from 500 on, that another attempt may not meet."""
_REFUSALS: Final = frozenset({400, 413, 422})
"""Status codes with which endpoints answer a conversation that is too long."""
_FULL: Final = re.compile(r"context|too (?:long|large|many tokens)|maximum .*tokens", re.IGNORECASE)
_JSON: Final = {"Content-Type": "application/json"}
_SHOWN: Final = 300
_SERVER_ERROR: Final = 500
_FINE: Final = 200


@dataclass(frozen=True, slots=True)
class Completion:
    """What an endpoint answered."""

    message: Mapping[str, Any]
    usage: Usage


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a model answers, and how it is asked."""

    client: httpx2.AsyncClient
    base_url: str
    model: str
    api_key: str | None = field(default=None, repr=False)
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Members of each request, which win over ours."""
    pauses: Sequence[float] = _PAUSES

    async def complete(self, messages: Sequence[Message], body: Mapping[str, Any]) -> Completion:
        """One completion.

        Raises:
            EndpointError: There was none within the attempts; `is_context_exceeded` where the conversation is too long.
        """
        request = {"model": self.model, "messages": list(messages), **body, **self.extra}
        for pause in (*self.pauses, None):
            try:
                return await self._attempt(request)
            except EndpointError as error:
                if pause is None or error.retry_after is None:
                    raise
                await anyio.sleep(min(max(pause, error.retry_after), _LONGEST_PAUSE))
        raise AssertionError

    async def _attempt(self, request: Mapping[str, Any]) -> Completion:
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        url = f"{self.base_url.rstrip('/')}/chat/completions"
        try:
            response = await self.client.post(url, content=json.dumps(request), headers={**_JSON, **headers})
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise EndpointError(
                f"{url} cannot be reached: {type(error).__name__} {error}".strip(), retry_after=0
            ) from None
        if response.status_code != _FINE:
            raise _refusal(url, response)
        return _read(url, response)


def _refusal(url: str, response: httpx2.Response) -> EndpointError:
    status, said = response.status_code, response.text[:_SHOWN]
    passing = status in _PASSING or status >= _SERVER_ERROR
    is_full = status in _REFUSALS and _FULL.search(response.text) is not None
    again = response.headers.get("retry-after", "")
    wait = (float(again) if again.isdecimal() else 0.0) if passing else None
    return EndpointError(f"{url} answered with status {status}: {said}", retry_after=wait, is_context_exceeded=is_full)


def _read(url: str, response: httpx2.Response) -> Completion:
    try:
        body = response.json()
        message = body["choices"][0]["message"]
        usage = body.get("usage") or {}
        counted = Usage(int(usage.get("prompt_tokens") or 0), int(usage.get("completion_tokens") or 0))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise EndpointError(
            f"{url} answered with no chat completion: {response.text[:_SHOWN]}", retry_after=0
        ) from None
    if not isinstance(message, dict):
        raise EndpointError(f"{url} answered with no message: {response.text[:_SHOWN]}", retry_after=0)
    return Completion(message, counted)
