"""A client for OpenAI-compatible endpoints: one chat completion, with retries after temporary failures."""

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
"""Seconds before each retry."""
_LONGEST_PAUSE: Final = 30.0
"""Maximum seconds before a retry, even if `Retry-After` asks for more."""
_TEMPORARY: Final = frozenset({408, 409, 425, 429})
"""Status codes of temporary failures, besides those from 500 on."""
_TOO_LONG: Final = frozenset({400, 413, 422})
"""Status codes of endpoints for a conversation that is too long."""
_CONTEXT_EXCEEDED: Final = re.compile(r"context|too (?:long|large|many tokens)|maximum .*tokens", re.IGNORECASE)
_SHOWN: Final = 300


@dataclass(frozen=True, slots=True)
class Completion:
    """A response of an endpoint."""

    message: Mapping[str, Any]
    usage: Usage


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A model at an endpoint."""

    client: httpx2.AsyncClient
    base_url: str
    model: str
    api_key: str | None = field(default=None, repr=False)
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Additional members of each request; they override our members."""
    pauses: Sequence[float] = _PAUSES

    async def complete(self, messages: Sequence[Message], body: Mapping[str, Any]) -> Completion:
        """Request one completion; EndpointError if all attempts failed."""
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
            response = await self.client.post(
                url, content=json.dumps(request), headers={"Content-Type": "application/json", **headers}
            )
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise EndpointError(
                f"{url} cannot be reached: {type(error).__name__} {error}".strip(), retry_after=0
            ) from None
        if response.status_code != httpx2.codes.OK:
            raise _status_error(url, response)
        return _read(url, response)


def _status_error(url: str, response: httpx2.Response) -> EndpointError:
    status = response.status_code
    message = f"{url} answered with status {status}: {response.text[:_SHOWN]}"
    is_exceeded = status in _TOO_LONG and _CONTEXT_EXCEEDED.search(response.text) is not None
    retry_after = None
    if status in _TEMPORARY or response.is_server_error:
        header = response.headers.get("retry-after", "")
        retry_after = float(header) if header.isdecimal() else 0.0
    return EndpointError(message, retry_after=retry_after, is_context_exceeded=is_exceeded)


def _read(url: str, response: httpx2.Response) -> Completion:
    try:
        body = response.json()
        message = body["choices"][0]["message"]
        usage = body.get("usage") or {}
        counted = Usage(int(usage.get("prompt_tokens") or 0), int(usage.get("completion_tokens") or 0))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise EndpointError(
            f"{url} did not return a chat completion: {response.text[:_SHOWN]}", retry_after=0
        ) from None
    if not isinstance(message, dict):
        raise EndpointError(f"{url} returned a completion without a message: {response.text[:_SHOWN]}", retry_after=0)
    return Completion(message, counted)
