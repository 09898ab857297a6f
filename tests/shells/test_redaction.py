"""What an upstream was told in confidence is hidden wherever it stands, and what is none of it stays readable."""

import base64
import json
from urllib.parse import quote, quote_plus

import pytest

from mcp_mirror.policies import HttpEndpoint, StdioEndpoint
from mcp_mirror.upstreams.redaction import Redactor
from mcp_mirror.upstreams.stdio import LastWords

SECRET = 'gräße "quoted"\\&=/+ end'
FORMS = [
    SECRET, repr(SECRET), json.dumps(SECRET), json.dumps(SECRET, ensure_ascii=False), quote(SECRET),
    quote(SECRET, safe=""), quote_plus(SECRET), f"KEY={SECRET}; next",
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_a_secret_is_hidden_however_it_is_quoted(form: str) -> None:
    redactor = Redactor(StdioEndpoint("x", env={"KEY": SECRET}))
    said = redactor.clean(f"before {form} after")
    assert "***" in said
    assert "quoted" not in said
    assert said.startswith("before ")
    assert said.endswith(" after")


def test_each_line_of_a_key_is_a_secret() -> None:
    redactor = Redactor(StdioEndpoint("x", env={"KEY": "-----BEGIN-----\nfirstline\r\nsecondline\n"}))
    assert redactor.clean("error near secondline, after firstline") == "error near ***, after ***"


@pytest.mark.parametrize(
    ("args", "hidden", "shown"),
    [
        (("-m", "server", "--key", "verysecret"), "verysecret", "server --key"),
        (("--key=verysecret",), "verysecret", "--key"),
        (("run.py", "postgres://me:verysecret@db/x"), "verysecret", "run.py"),
        (("-y", "@scope/server", "/home/me/files"), "***", "@scope/server /home/me/files"),
    ],
)
def test_arguments_are_hidden_but_for_flags_paths_and_the_programs_name(
    args: tuple[str, ...], hidden: str, shown: str
) -> None:
    said = Redactor(StdioEndpoint("x", args)).clean(f"usage: {' '.join(args)}")
    assert hidden not in said
    assert shown in said


URL = "https://me:pa%73sword@host.example/v1/0123456789abcdef0123/mcp?api_key=query%20secret&x=1#fragment"


@pytest.mark.parametrize(
    "hidden",
    ["pa%73sword", "password", base64.b64encode(b"me:password").decode(), "0123456789abcdef0123", "query%20secret",
     "query secret", "fragment", "Bearer token-token", "token-token", "cookie-value"],
)  # fmt: skip
def test_what_may_be_secret_in_a_url_and_in_headers_is_hidden(hidden: str) -> None:
    headers = {"authorization": "Bearer token-token", "cookie": "a=cookie-value; b=2"}
    redactor = Redactor(HttpEndpoint(URL, headers))
    assert redactor.clean(f"failed with {hidden}!") == "failed with ***!"
    assert redactor.clean("no route to host.example") == "no route to host.example"


def test_short_values_and_no_values_hide_nothing() -> None:
    assert Redactor(StdioEndpoint("x", env={"DEBUG": "1", "ON": "yes", "NO": ""})).clean("1 yes") == "1 yes"


@pytest.mark.parametrize("size", range(1900, 2200, 7))
def test_a_secret_that_is_cut_by_the_bound_of_last_words_is_hidden_too(size: int) -> None:
    secret = "s3cr3t" * 20
    words = LastWords(Redactor(StdioEndpoint("x", env={"KEY": secret})))
    words.add(b"x" * 5000 + secret.encode() + b"y" * size)
    assert "s3cr3t" not in str(words)
    words.add(f"\n\x1b[31mlast {secret}\x07 line\n\n".encode())
    assert str(words) == " [31mlast ***  line"


def test_last_words_may_be_none_or_no_text() -> None:
    words = LastWords(Redactor(StdioEndpoint("x")))
    assert str(words) == ""
    words.add(b"\xff\xfe\n\n")
    assert str(words) == "\ufffd\ufffd"
