"""Addresses that are private to this machine, and requests that need a token."""

import pytest

from mcp_mirror.settings.access import (
    AuthPolicy,
    IssuerPolicy,
    TokenPolicy,
    is_confidential,
    is_local_host,
    is_loopback,
    is_public,
)


@pytest.mark.parametrize(
    ("auth", "required"),
    [
        (AuthPolicy(), False),
        (AuthPolicy(scopes=("tools",), resource="https://example.com/mcp"), False),
        (AuthPolicy(tokens=(TokenPolicy("alice", "00"),)), True),
        (AuthPolicy(issuers=(IssuerPolicy("https://example.com", ("x",), "jwks.json"),)), True),
    ],
)
def test_a_token_is_required_where_there_is_any_that_is_good(auth: AuthPolicy, *, required: bool) -> None:
    assert auth.is_required is required


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.9.10", True),
        ("::1", True),
        ("localhost", True),
        ("localhost.example.com", False),
        ("0.0.0.0", False),  # noqa: S104  # an address to be judged
        ("::", False),
        ("10.0.0.1", False),
        ("2130706433", False),
        ("", False),
    ],
)
def test_only_this_machine_is_loopback(host: str, *, loopback: bool) -> None:
    assert is_loopback(host) is loopback


@pytest.mark.parametrize(
    ("url", "private"),
    [
        ("https://example.com/x", True),
        ("http://example.com/x", False),
        ("http://127.0.0.1:8000/x", True),
        ("http://[::1]/x", True),
        ("http://localhost@example.com/", False),
        ("http:///x", False),
    ],
)
def test_https_and_loopback_urls_are_confidential(url: str, *, private: bool) -> None:
    assert is_confidential(url) is private


def test_no_policy_shows_a_secret() -> None:
    assert "c4nary" not in repr(TokenPolicy("alice", "c4nary"))


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True),
        ("2606:4700::1111", True),
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.1.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("168.63.129.16", False),
        ("::ffff:168.63.129.16", False),
        ("0.0.0.0", False),  # noqa: S104  # an address to be judged
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("::1", False),
        ("::", False),
        ("fe80::1%eth0", False),
        ("fd00:ec2::254", False),
        ("ff0e::1", False),
        ("::ffff:10.0.0.1", False),
        ("::ffff:93.184.216.34", True),
        ("64:ff9b::a9fe:a9fe", False),
        ("64:ff9b::5db8:d822", True),
        ("64:ff9b:1:fffe::5db8:d822", True),
        ("64:ff9b:1:fffe::a9fe:a9fe", False),
        ("64:ff9b:1:a9fe:a9:fe00:5db8:d822", False),  # 169.254.169.254 for a translator with a prefix of 48 bits
        ("::ffff:0:a9fe:a9fe", False),
        ("2002:7f00:1::", False),
        ("::7f00:1", False),
        ("192.0.0.8", False),
        ("fec0::1", False),
        ("3fff::1", False),
        ("5f00::1", False),
    ],
)
def test_only_the_whole_internets_addresses_are_public(address: str, *, public: bool) -> None:
    assert is_public(address) is public


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("10.0.0.1", True),
        ("::1", True),
        ("printer", True),
        ("NAS.local", True),
        ("db.internal.", True),
        ("a.localhost", True),
        ("example.com", False),
        ("local.example.com", False),
        ("0x7f.1", False),
    ],
)
def test_addresses_and_local_names_are_local_hosts(host: str, *, local: bool) -> None:
    assert is_local_host(host) is local
