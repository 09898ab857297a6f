"""The members of a request's `_meta` that upstreams get."""

from time import thread_time
from typing import Any

import pytest

from mcp_mirror.callers import LOCAL, Caller, ClientHeaders
from mcp_mirror.server.request_context import select_relayed_meta

CALLER = Caller(LOCAL)
SECRET = "s3cr3t-token"  # of nothing


@pytest.mark.parametrize(
    "meta",
    [
        {"note": f"use {SECRET}"},
        {SECRET: 1},
        {"deep": [{"a": [SECRET]}]},
        {"example.org/cookie": 1},
        {"progressToken": 1},
    ],
)
def test_members_with_credentials_and_of_the_gateway_are_not_relayed(meta: dict[str, Any]) -> None:
    headers = {"authorization": f"Bearer {SECRET}"}
    assert select_relayed_meta({**meta, "kept": "x"}, headers, CALLER) == {"kept": "x"}


def test_own_headers_of_a_client_are_credentials_too() -> None:
    caller = Caller(LOCAL, client_headers=ClientHeaders({"x-key": SECRET}))
    assert select_relayed_meta({"a": SECRET, "b": 1}, {}, caller) == {"b": 1}


def test_long_members_are_not_searched_for_very_many_words() -> None:
    headers = {"cookie": " ".join(f"{number:08x}" for number in range(7_000))}
    began = thread_time()
    assert select_relayed_meta({"long": "x" * 250_000}, headers, CALLER) == {}
    assert thread_time() - began < 1  # before: 4
    assert select_relayed_meta({"short": "x"}, headers, CALLER) == {"short": "x"}
