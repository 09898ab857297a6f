"""The log of a reload names changed keys by their places in the file, without their values."""

from pathlib import Path

import pytest

from mcp_mirror.config import parse_config
from mcp_mirror.config.changes import list_changes

ISSUER = "{issuer: 'https://a.example', jwks: 'https://a.example/keys', audience: b}"


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("{}", "mirror: {suffix: _twin}", ["mirror.suffix"]),
        ("{}", "limits: {calls_per_day: 7, spool_bytes: 1KiB}", ["limits.spool_bytes", "limits.calls_per_day"]),
        ("upstreams: {a: {command: x}}", "upstreams: {a: {command: y}}", ["upstreams.a.command"]),
        ("upstreams: {a: {command: x}}", "upstreams: {a: {url: 'https://a.example'}}", ["upstreams.a"]),
        (
            "upstreams: {a: {command: x}}",
            "upstreams: {b: {command: x, env: {K: v}}}",
            ["upstreams.b (added)", "upstreams.a (removed)"],
        ),
        (
            "upstreams: {a: {command: x, tools: {allow: [q]}, overrides: {q: {capture: never}}}}",
            "upstreams: {a: {command: x, labels: {integrity: trusted}, overrides: {q: {capture: always}}}}",
            ["upstreams.a.tools.allow", "upstreams.a.overrides.q.capture", "upstreams.a.labels.integrity"],
        ),
        (f"auth: {{issuers: [{ISSUER}]}}", "{}", ["auth.issuers"]),
        ("limits: {calls_per_upstream: 5}", "{}", ["limits.calls_per_upstream"]),
        ("{}", "store: {kind: memory, encryption: {keys: ['" + 32 * "ab" + "']}}", ["store.kind", "store.encryption"]),
    ],
)
def test_changed_keys_are_named_by_their_places(before: str, after: str, expected: list[str]) -> None:
    old, new = (parse_config(text, Path(), {}) for text in (before, after))
    assert list(list_changes(old, new)) == expected
    assert list(list_changes(new, new)) == []
