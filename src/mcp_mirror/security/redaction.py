"""Takes the secrets that an upstream was given out of what is said about it.

A server that fails likes to quote its environment, its arguments or its URL. Which of them are secret is not known,
so all that could be one is taken for one.
"""

import json
import re
from base64 import b64encode
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Final
from urllib.parse import parse_qsl, quote, quote_plus, unquote, urlsplit

from mcp_mirror.settings.policies import HttpEndpoint, LocalEndpoint, StdioEndpoint

HIDDEN: Final = "***"
"""Stands for a secret."""
_SHORTEST: Final = 4
"""Characters: `1`, `yes` and `on` hide nothing."""
_SHORTEST_PART: Final = 8
"""Characters of a part of a value that may be a secret of its own, such as the token behind `Bearer`."""
_LEARNED: Final = 32
"""Secrets that were learned and are hidden still."""
MOST_QUOTED: Final = 1 << 18
"""Characters of a server's message that are passed on. A transport that shortens messages keeps more."""
_OMITTED: Final = "\n...\n"
_PARTS: Final = re.compile(r"[\s;,=]+")
_PATH: Final = re.compile(r"(?:~|\.{0,2}/|@|[A-Za-z]:\\).*")
_KEY_IN_PATH: Final = re.compile(r"(?=.*[0-9])[\w.~-]{16,}")
"""A segment of a URL's path that may be a key, as some hosts hand them out."""


class Redactor:
    """Hides the secrets of one upstream."""

    def __init__(self, endpoint: StdioEndpoint | HttpEndpoint | LocalEndpoint) -> None:
        self._learned: deque[str] = deque(maxlen=_LEARNED)
        self._given = tuple(secrets_of(endpoint))
        self._compile()

    def learn(self, secret: str) -> None:
        """Hide this too: a token that was had meanwhile. Of very many, those that came last are hidden."""
        if secret not in self._learned:
            self._learned.append(secret)
            self._compile()

    def _compile(self) -> None:
        secrets = (*self._given, *self._learned)
        forms = {form for secret in secrets for form in forms_of(secret) if len(form) >= _SHORTEST}
        longest_first = sorted(forms, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if forms else None
        self.longest = max(map(len, forms), default=0)
        """Characters of the longest text that is hidden."""

    def clean(self, text: str) -> str:
        """The text with three stars for each secret in it, however it is quoted."""
        return self._pattern.sub(HIDDEN, text) if self._pattern else text

    def clean_tree(self, value: Any) -> Any:
        """A JSON value, each text in it cleaned."""
        if isinstance(value, str):
            return self.clean(value)
        if isinstance(value, list):
            return [self.clean_tree(part) for part in value]
        return {key: self.clean_tree(part) for key, part in value.items()} if isinstance(value, dict) else value

    def quote(self, message: str, most: int = MOST_QUOTED) -> str:
        """A server's message without the secrets in it; of a longer one the beginning and the end.

        Args:
            message: What it wrote.
            most: Characters.
        """
        if len(message) <= most:
            return self.clean(message)
        raw = most // 2 + self.longest  # what is cut off again may be a part of a secret
        head, tail = self.clean(message[:raw]), self.clean(message[-raw:])
        return f"{head[: len(head) - self.longest]}{_OMITTED}{tail[self.longest :]}"


def forms_of(secret: str) -> Iterator[str]:
    """A secret as programs print it."""
    for part in (secret, *secret.splitlines()):
        yield from (part, part.strip(), repr(part)[1:-1], quote(part), quote(part, safe=""), quote_plus(part))
        yield from (json.dumps(part)[1:-1], json.dumps(part, ensure_ascii=False)[1:-1])


def secrets_of(endpoint: StdioEndpoint | HttpEndpoint | LocalEndpoint) -> Iterator[str]:
    """All that may be one of what an upstream is given."""
    if isinstance(endpoint, StdioEndpoint):
        yield from endpoint.env.values()
        yield from _of_arguments(endpoint.args)
    elif isinstance(endpoint, HttpEndpoint):
        for value in endpoint.headers.values():
            yield value
            yield from _parts(value)
        if endpoint.oauth and endpoint.oauth.client_secret:
            yield endpoint.oauth.client_secret
        yield from _of_url(endpoint.url)


def _of_arguments(args: Iterable[str]) -> Iterator[str]:
    """All but flags, paths and the first word, which names the program to run."""
    named = False
    for argument in args:
        flag, equals, value = argument.partition("=")
        if flag.startswith("-"):
            yield from (value,) if equals else ()
        elif named and not (_PATH.fullmatch(argument) and "://" not in argument):
            yield argument
            yield from _of_url(argument) if "://" in argument else ()
        else:
            named = True


def _of_url(url: str) -> Iterator[str]:
    try:
        parts = urlsplit(url)
    except ValueError:
        yield url
        return
    login, at, _ = parts.netloc.rpartition("@")
    if at:
        plain = unquote(login)
        yield from (login, plain, b64encode(plain.encode()).decode(), *login.split(":", 1), *plain.split(":", 1))
    yield from (parts.query, parts.fragment, *(value for _, value in parse_qsl(parts.query)))
    yield from (part.partition("=")[2] for part in parts.query.split("&"))
    yield from (segment for segment in parts.path.split("/") if _KEY_IN_PATH.fullmatch(segment))


def _parts(value: str) -> Iterator[str]:
    return (part for part in _PARTS.split(value) if len(part) >= _SHORTEST_PART)
