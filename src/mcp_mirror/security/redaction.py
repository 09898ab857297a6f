"""Redacts the secrets of an upstream in messages about it.

A failing server often quotes its environment, its arguments or its URL. The gateway cannot know which values are
secret, so it redacts every value that may be one.
"""

import json
import re
from base64 import b64encode
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, quote, quote_plus, unquote, urlsplit

from mcp_mirror.settings.upstreams import HttpEndpoint, LocalEndpoint, StdioEndpoint
from mcp_mirror.system.patterns import lazy_pattern

HIDDEN: Final = "***"
"""The replacement of a secret."""
_SHORTEST: Final = 4
"""Characters of the shortest redacted value, so that `1`, `yes` and `on` stay."""
_SHORTEST_PART: Final = 8
"""Characters of the shortest part of a value that is redacted by itself, such as the token after `Bearer`."""
_LEARNED: Final = 32
"""Number of learned secrets that are redacted, the latest ones."""
_MAX_QUOTED: Final = 1 << 18
"""Characters of a server's message that are passed on. A transport that shortens messages keeps more."""
_OMITTED: Final = "\n...\n"
SECRET_NAMES: Final = lazy_pattern(
    r"auth|token|secret|key|passw|pwd|credential|cookie|session|signature", re.IGNORECASE
)
"""Names of headers and variables whose values are secrets."""
_FOLDERS: Final = frozenset({"PWD", "OLDPWD"})
"""Variables of shells whose names look secret; their values are the folders in which a server works."""
_PARTS: Final = lazy_pattern(r"[\s;,=]+")
_PATH: Final = lazy_pattern(r"(?:~|\.{0,2}/|@|[A-Za-z]:\\).*")
_PATH_OF_URL: Final = lazy_pattern(r"[/?#]")
"""Begins what follows the host of a URL."""
_KEY_IN_URL: Final = lazy_pattern(r"(?=.*[0-9])[\w.~-]{16,}")
"""A segment of a URL's path, or a user name, that may be an API key."""


class Redactor:
    """Redacts the secrets of one upstream."""

    def __init__(self, endpoint: StdioEndpoint | HttpEndpoint | LocalEndpoint) -> None:
        self._learned: deque[tuple[str, ...]] = deque(maxlen=_LEARNED)
        self._given = list_secret_forms(find_secrets(endpoint), _SHORTEST)
        self._collect()

    def learn(self, secret: str) -> None:
        """Redact another secret, such as a new token. Only the latest learned secrets are redacted."""
        if not any(secret in forms for forms in self._learned):
            self._learned.append(list_secret_forms((secret,), _SHORTEST))
            self._collect()

    def _collect(self) -> None:
        """Set the forms, the longest first, and `longest`, the number of characters of the longest."""
        self._forms = sorted(chain(self._given, *self._learned), key=len, reverse=True)
        self.longest = len(self._forms[0]) if self._forms else 0

    def clean(self, text: str) -> str:
        """Redact each secret in a text, in any quoted form."""
        return redact(text, self._forms)

    def clean_tree(self, value: Any) -> Any:
        """Redact each text of a JSON value."""
        if isinstance(value, str):
            return self.clean(value)
        if isinstance(value, list):
            return [self.clean_tree(part) for part in value]
        return {key: self.clean_tree(part) for key, part in value.items()} if isinstance(value, dict) else value

    def quote(self, message: str, most: int = _MAX_QUOTED) -> str:
        """Redact a server's message, and shorten it to its beginning and end if it has more than `most` characters."""
        if len(message) <= most:
            return self.clean(message)
        raw = most // 2 + self.longest  # the extra characters may be a part of a secret and are cut off
        head, tail = self.clean(message[:raw]), self.clean(message[-raw:])
        return f"{head[: len(head) - self.longest]}{_OMITTED}{tail[self.longest :]}"


def list_secret_forms(secrets: Iterable[str], shortest: int) -> tuple[str, ...]:
    """All forms of secrets with `shortest` characters or more, the longest first."""
    forms = {form for secret in secrets for form in _list_forms_of(secret) if len(form) >= shortest}
    return tuple(sorted(forms, key=len, reverse=True))


def redact(text: str, forms: Iterable[str]) -> str:
    """Replace all forms of secrets in a text; the longest must come first.

    One pattern of all forms would take longer to compile than other calls may wait: 0.5 s for 32 tokens of 16 kB.
    """
    for form in forms:
        text = text.replace(form, HIDDEN)
    return text


def _list_forms_of(secret: str) -> Iterator[str]:
    """The forms in which programs print a secret."""
    for part in (secret, *secret.splitlines()):
        data = encode_secret(part)
        yield from (part, part.strip(), repr(part)[1:-1], data.decode(errors="replace"))
        yield from (quote(data), quote(data, safe=""), quote_plus(data))
        yield from (json.dumps(part)[1:-1], json.dumps(part, ensure_ascii=False)[1:-1])


def encode_secret(text: str) -> bytes:
    """The bytes of a secret, also of a variable that is not valid UTF-8 (POSIX) or UTF-16 (Windows)."""
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return text.encode(errors="surrogatepass")


def find_secrets(endpoint: StdioEndpoint | HttpEndpoint | LocalEndpoint) -> Iterator[str]:
    """All values of an upstream's configuration that may be secrets."""
    if isinstance(endpoint, StdioEndpoint):
        is_secret = _is_secret if endpoint.is_wrapped else _may_be_secret
        yield from (value for name, value in endpoint.env.items() if is_secret(name, value))
        for value in endpoint.env.values():
            if "://" in value:
                yield from _secrets_of_login(value)
        yield from _secrets_of_arguments(endpoint.args)
    elif isinstance(endpoint, HttpEndpoint):
        for value in endpoint.headers.values():
            yield value
            yield from (part for part in _PARTS.split(value) if len(part) >= _SHORTEST_PART)
        if endpoint.oauth and endpoint.oauth.client_secret:
            yield endpoint.oauth.client_secret
        yield from _secrets_of_url(endpoint.url)


def _is_secret(name: str, value: str) -> bool:
    """Whether a variable of a whole environment, which contains more words and paths than secrets, may be a secret."""
    return name not in _FOLDERS and len(value) >= _SHORTEST_PART and SECRET_NAMES.search(name) is not None


def _may_be_secret(name: str, value: str) -> bool:
    """Whether a variable that the configuration sets may be a secret: any but the path of a file.

    Random characters may look like a path, so its folder must exist.
    """
    if SECRET_NAMES.search(name) or not _PATH.fullmatch(value):
        return True
    path = Path(value)
    try:
        return not (path.exists() or (path.parent != Path(path.anchor) and path.parent.is_dir()))
    except OSError:  # too long a name
        return True


def _secrets_of_arguments(args: Iterable[str]) -> Iterator[str]:
    """All arguments except flags, paths and the first word, which names the program."""
    named = False
    for argument in args:
        flag, equals, value = argument.partition("=")
        if flag.startswith("-"):
            if equals:
                yield value
        elif named and not (_PATH.fullmatch(argument) and "://" not in argument):
            yield argument
            if "://" in argument:
                yield from _secrets_of_url(argument)
        else:
            named = True


def _secrets_of_login(address: str) -> Iterator[str]:
    """The password of an address such as `scheme://user:password@host`, and a user name that may be a token."""
    login, at, _ = _PATH_OF_URL.split(address.partition("://")[2], 1)[0].rpartition("@")
    if not at:
        return
    plain = unquote(login)
    yield from (login, plain, b64encode(encode_secret(plain)).decode())
    for user, _, password in (login.partition(":"), plain.partition(":")):
        yield password
        if not password or _KEY_IN_URL.fullmatch(user):  # without a password, the user name is a token
            yield user


def _secrets_of_url(url: str) -> Iterator[str]:
    try:
        parts = urlsplit(url)
    except ValueError:
        yield url
        return
    yield from _secrets_of_login(url)
    yield from (parts.query, parts.fragment, *(value for _, value in parse_qsl(parts.query)))
    yield from (part.partition("=")[2] for part in parts.query.split("&"))
    yield from (segment for segment in parts.path.split("/") if _KEY_IN_URL.fullmatch(segment))
