"""The `Host` and `Origin` headers with which a web page could reach the gateway through the user's browser."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_mirror.server.http.hosts import AddressCheck
from mcp_mirror.settings.policies import ServerPolicy

POLICY = ServerPolicy(
    allowed_hosts=("tools.example.com", "10.0.0.5:*", "pinned.example.com:8443", "[2001:db8::5]:*"),
    allowed_origins=("https://app.example.com", "http://10.0.0.5:*", "https://pinned.example.com:8443"),
)
HOSTS: dict[str, bool] = {
    "127.0.0.1:8000": True, "127.0.0.1": True, "localhost:8000": True, "LOCALHOST:8000": True, "[::1]:8000": True,
    "[0:0::1]:8000": True, "127.0.0.1:": True, "tools.example.com": True, "TOOLS.example.COM": True,
    "10.0.0.5:1": True, "pinned.example.com:8443": True, "[2001:DB8::5]:9": True,
    "127.0.0.1:8000.evil.com": False, "127.0.0.1:80:evil.com": False, "127.0.0.1.evil.com": False,
    "127.0.0.1.evil.com:80": False, "localhost.evil.com:80": False, "localhost:80@evil.com": False,
    "user@127.0.0.1:80": False, "127.0.0.1:80/": False, "127.0.0.1:80#evil.com": False, "127.0.0.1.:80": False,
    "localhost.": False, "127.0.0.1:99999": False, "127.0.0.1:-1": False, "127.0.0.1:+80": False,
    "127.0.0.1:*": False, "*": False, "": False, " 127.0.0.1:80": False, "127.0.0.1:80 ": False, "127.1:80": False,
    "0x7f.1:80": False, "2130706433:80": False, "127.0.0.1:\uff18\uff10": False, "\uff4cocalhost:80": False,
    "[::1": False,
    "[::1]evil.com": False, "[::1]:80.evil.com": False, "[::1%lo]:80": False, "[::ffff:127.0.0.1]:80": False,
    "::1": False, "tools.example.com:80": False, "tools.example.com.evil.com": False, "xtools.example.com": False,
    "tools.example.com\t": False, "pinned.example.com": False, "pinned.example.com:8444": False,
    "evil.com": False, "127.0.0.1,evil.com": False, "127.0.0.1:80,evil.com": False,
}  # fmt: skip
ORIGINS: dict[str, bool] = {
    "http://localhost:3000": True, "http://localhost": True, "HTTP://LOCALHOST:3000": True,
    "http://127.0.0.1:1": True, "http://[::1]:3000": True, "https://app.example.com": True,
    "https://app.example.com:443": True, "http://10.0.0.5:99": True, "https://pinned.example.com:8443": True,
    "http://localhost:3000.evil.com": False, "http://localhost.evil.com": False, "http://localhost:80@evil.com": False,
    "http://localhost:3000/": False, "http://user@localhost:3000": False, "http://localhost.:3000": False,
    "null": False, "NULL": False, "": False, "localhost:3000": False, "//localhost:3000": False,
    "https://localhost:3000": False, "file://localhost": False, "http://localhost:3000 http://evil.com": False,
    "http://localhost:3000, http://evil.com": False, "http://localhost:*": False, "http://evil.com": False,
    "https://app.example.com.evil.com": False, "http://app.example.com": False, "https://app.example.com:8443": False,
    "https://app.example.com:": True, "https://xapp.example.com": False, "http://\uff4cocalhost:3000": False,
    "http://localhost:\uff13000": False, "javascript://localhost": False, "http://[::1]evil.com": False,
    "http://127.0.0.1:3000#http://localhost": False, "http://localhost\\.evil.com": False,
    "https://pinned.example.com": False,
}  # fmt: skip


def status_of(**headers: str | list[str]) -> int:
    pairs = [(name, one) for name, given in headers.items() for one in ([given] if isinstance(given, str) else given)]
    raw = [(name.encode(), value.encode("utf-8")) for name, value in pairs]
    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/mcp", "headers": raw}
    refusal = AddressCheck(POLICY).refuse(scope)
    return refusal.status_code if refusal else 200


@pytest.mark.parametrize("host", HOSTS)
def test_only_named_hosts_are_served(host: str) -> None:
    assert status_of(host=host) == (200 if HOSTS[host] else 421)


@pytest.mark.parametrize("origin", ORIGINS)
def test_only_pages_of_named_origins_are_served(origin: str) -> None:
    assert status_of(host="127.0.0.1:80", origin=origin) == (200 if ORIGINS[origin] else 403)


def test_missing_and_repeated_headers() -> None:
    assert status_of() == 421
    assert status_of(host=["127.0.0.1:80", "evil.com"]) == 421
    assert status_of(host=["127.0.0.1:80", "127.0.0.1:80"]) == 421
    assert status_of(host="127.0.0.1:80") == 200
    assert status_of(host="127.0.0.1:80", origin=["http://localhost:1", "http://evil.com"]) == 403
