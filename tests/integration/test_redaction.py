"""Redaction of an upstream's secrets in messages and output."""

import base64
import json
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest

from mcp_mirror.security.redaction import Redactor
from mcp_mirror.settings.upstreams import HttpEndpoint, StdioEndpoint
from mcp_mirror.upstreams.transports.server_output import ServerOutput

SECRET = 'gräße "quoted"\\&=/+ end'
FORMS = [
    SECRET, repr(SECRET), json.dumps(SECRET), json.dumps(SECRET, ensure_ascii=False), quote(SECRET),
    quote(SECRET, safe=""), quote_plus(SECRET), f"KEY={SECRET}; next",
]  # fmt: skip

LOG = " can be found in: /home/a/.npm/_logs/debug-0.log"
LOG_LINE = f"npm error A complete log of this run{LOG}\n"
NPM_404 = (
    "npm error code E404\nnpm error 404 Not Found - GET https://registry.npmjs.org/server-nope - Not found\n"
    "npm error 404\nnpm error 404  'server-nope@*' is not in this registry.\nnpm error 404\n"
    "npm error 404 Note that you can also install from a\nnpm error 404 tarball, folder, http url, or git url.\n"
    f"{LOG_LINE}"
)


@pytest.mark.parametrize("form", FORMS)
def test_a_secret_is_redacted_in_every_quoted_form(form: str) -> None:
    redactor = Redactor(StdioEndpoint("x", env={"KEY": SECRET}))
    cleaned = redactor.clean(f"before {form} after")
    assert "***" in cleaned
    assert "quoted" not in cleaned
    assert cleaned.startswith("before ")
    assert cleaned.endswith(" after")


@pytest.mark.parametrize("before", range(35, 52))
def test_shortening_leaves_no_part_of_a_secret(before: int) -> None:
    redactor = Redactor(StdioEndpoint("x", env={"KEY": "0123456789"}))
    for message in (f"{'x' * before}0123456789{'x' * 500}", f"{'x' * 500}0123456789{'x' * before}"):
        cleaned = redactor.quote(message, 100)
        assert "\n...\n" in cleaned
        assert not set("0123456789") & set(cleaned)
        assert 80 <= len(cleaned) <= 130


def test_only_values_with_secret_names_of_an_environment_are_redacted() -> None:
    env = {"HOME": "/home/anna", "LANG": "en_US.UTF-8", "GITHUB_TOKEN": "ghp_0123456789", "API_KEY": "short"}
    redactor = Redactor(StdioEndpoint("x", env=env, is_wrapped=True))
    text = "/home/anna en_US.UTF-8 short ghp_0123456789"
    assert redactor.clean(text) == "/home/anna en_US.UTF-8 short ***"


def test_the_working_directory_in_a_whole_environment_is_not_a_secret() -> None:
    env = {"PWD": "/home/anna/shop", "OLDPWD": "/home/anna", "DB_PWD": "correct horse"}
    redactor = Redactor(StdioEndpoint("x", env=env, is_wrapped=True))
    assert redactor.clean("/home/anna/shop/a.json: not correct horse") == "/home/anna/shop/a.json: not ***"


def test_a_variable_with_the_path_of_a_file_is_not_a_secret(tmp_path: Path) -> None:
    program, missing, odd = (str(tmp_path / name) for name in ("browser", "absent.json", "no/such/folder"))
    (tmp_path / "browser").touch()
    env = {"BROWSER": program, "DATA_FILE": missing, "ODD": odd, "WORD": "/x9Kq+71hT3w", "LONG": f"/{'a' * 5000}"}
    env["KEY_FILE"] = str(tmp_path)
    redactor = Redactor(StdioEndpoint("x", env=env))
    assert redactor.clean(f"{missing}: not found") == "***/absent.json: not found"  # below the value of KEY_FILE
    text = f"{program} {missing} {odd} /x9Kq+71hT3w"
    assert Redactor(StdioEndpoint("x", env=env | {"KEY_FILE": ""})).clean(text) == f"{program} {missing} *** ***"


@pytest.mark.parametrize(
    ("secret", "errors"), [("pass\udce9word", "surrogateescape"), ("pass\ud800word", "surrogatepass")]
)
@pytest.mark.parametrize(
    "endpoint",
    [
        lambda secret: StdioEndpoint("x", env={"KEY": secret}),
        lambda secret: HttpEndpoint(f"https://me:{secret}@host.example/mcp", {"x-key": secret}),
    ],
)
def test_a_variable_that_is_not_valid_unicode_is_redacted(endpoint: Any, secret: str, errors: str) -> None:
    redactor = Redactor(endpoint(secret))
    printed = secret.encode(errors=errors)
    for form in (secret, printed.decode(errors="replace"), quote(printed)):
        assert redactor.clean(f"wrong: {form}") == "wrong: ***"


def test_long_tokens_are_learned_without_a_stall() -> None:
    redactor = Redactor(StdioEndpoint("x", env={"KEY": "token7"}))
    tokens = [f"token{number}" + "x" * 16_000 for number in range(33)]
    start = time.process_time()
    for token in tokens:
        redactor.learn(token)
    assert time.process_time() - start < 1  # before: 8
    assert redactor.clean(f"{tokens[-1]}, {tokens[7]}, token7, token8") == "***, ***, ***, token8"


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
def test_arguments_are_redacted_except_flags_and_paths(args: tuple[str, ...], hidden: str, shown: str) -> None:
    cleaned = Redactor(StdioEndpoint("x", args)).clean(f"usage: {' '.join(args)}")
    assert hidden not in cleaned
    assert shown in cleaned


URL = "https://me:pa%73sword@host.example/v1/0123456789abcdef0123/mcp?api_key=query%20secret&x=1#fragment"


@pytest.mark.parametrize(
    "hidden",
    ["pa%73sword", "password", base64.b64encode(b"me:password").decode(), "0123456789abcdef0123", "query%20secret",
     "query secret", "fragment", "Bearer token-token", "token-token", "cookie-value"],
)  # fmt: skip
def test_secrets_of_urls_and_headers_are_redacted(hidden: str) -> None:
    headers = {"authorization": "Bearer token-token", "cookie": "a=cookie-value; b=2"}
    redactor = Redactor(HttpEndpoint(URL, headers))
    assert redactor.clean(f"failed with {hidden}!") == "failed with ***!"
    assert redactor.clean("no route to host.example") == "no route to host.example"


@pytest.mark.parametrize(
    ("login", "hidden"),
    [
        ("analyst:hunter22", ("hunter22", "analyst:hunter22")),
        ("an%61lyst:hunter%32%32", ("hunter22", "hunter%32%32", "analyst:hunter22")),
        ("ghp_0123456789abcdef:x-oauth-basic", ("ghp_0123456789abcdef", "x-oauth-basic")),
        ("long-token", ("long-token",)),
        ("long-token:", ("long-token",)),
    ],
)
def test_a_user_name_is_redacted_only_if_it_may_be_a_token(login: str, hidden: tuple[str, ...]) -> None:
    url = f"postgres://{login}@db.example/shop"
    for redactor in (Redactor(StdioEndpoint("x", ("run.py", url))), Redactor(HttpEndpoint(url))):
        for secret in hidden:
            assert redactor.clean(f"{secret} failed for analyst at db") == "*** failed for analyst at db"


@pytest.mark.parametrize("is_wrapped", [False, True])
def test_the_password_of_an_address_in_a_variable_is_redacted(*, is_wrapped: bool) -> None:
    env = {"DATABASE_URL": "postgres://analyst:hunter22@db.example/shop", "ODD": "x://[a:b@"}
    redactor = Redactor(StdioEndpoint("x", env=env, is_wrapped=is_wrapped))
    assert redactor.clean("hunter22 failed for analyst at db.example") == "*** failed for analyst at db.example"
    assert redactor.clean("postgres://analyst:hunter22@db.example/other") == "postgres://***@db.example/other"


def test_short_and_empty_values_are_not_redacted() -> None:
    assert Redactor(StdioEndpoint("x", env={"DEBUG": "1", "ON": "yes", "NO": ""})).clean("1 yes") == "1 yes"


@pytest.mark.parametrize("size", range(8450, 8750, 7))
def test_a_secret_cut_by_the_output_limit_is_redacted(size: int) -> None:
    secret = "s3cr3t" * 20
    output = ServerOutput(Redactor(StdioEndpoint("x", env={"KEY": secret})))
    output.add(b"x" * 20_000 + secret.encode() + b"y" * size)
    assert "s3cr3t" not in str(output.lines)
    output.add(f"\n\x1b[31mlast {secret[:9]}\u200b{secret[9:]}\x07 line\n\n".encode())
    assert output.lines[-1] == "last *** line"


def test_output_can_be_empty_or_binary() -> None:
    output = ServerOutput(Redactor(StdioEndpoint("x")))
    assert (output.lines, output.summary, output.stray) == ((), "", None)
    output.add(b"\xff\xfe\n\n")
    assert output.lines == ("\ufffd\ufffd",)


def test_the_last_twenty_lines_of_output_are_kept() -> None:
    output = ServerOutput(Redactor(StdioEndpoint("x")))
    output.add("".join(f"line {number}\r\n\n" for number in range(100)).encode())
    assert output.lines == tuple(f"line {number}" for number in range(80, 100))


@pytest.mark.parametrize(
    ("printed", "summary"),
    [
        ("[eval]:1\nError: Missing key\n    at [eval]:1:7\n\nNode.js v22.23.3\n", "Error: Missing key"),
        ("Traceback:\n  File 'x'\nRuntimeError: no key\n", "RuntimeError: no key"),
        ("error: bad flag\n{\n  code: 'X'\n}\n", "error: bad flag"),
        ("first\nlast\n", "last"),
        (NPM_404, "npm error 404  'server-nope@*' is not in this registry."),
        (
            NPM_404.replace("npm error", "npm ERR!").replace(LOG, ":\nnpm ERR!     /home/a/.npm/_logs/debug-0.log"),
            "npm ERR! 404  'server-nope@*' is not in this registry.",
        ),
        (
            (
                "npm error code ETARGET\nnpm error notarget No matching version found for a@99.\n"
                f"npm error notarget In most cases you are requesting a package version that doesn't exist.\n{LOG_LINE}"
            ),
            "npm error notarget No matching version found for a@99.",
        ),
        (
            (
                "npm error code ENOTFOUND\nnpm error errno ENOTFOUND\nnpm error network request to https://a.example "
                "failed, reason: getaddrinfo ENOTFOUND a.example\nnpm error network This is a problem related to "
                f"network connectivity.\n{LOG_LINE}"
            ),
            "npm error network request to https://a.example failed, reason: getaddrinfo ENOTFOUND a.example",
        ),
        (
            (
                "npm error code ECONNREFUSED\nnpm error errno ECONNREFUSED\nnpm error FetchError: request failed\n"
                f"npm error     at emitErrorEvent (node:_http_client:101:11) {{\nnpm error   type: 'error'\n{LOG_LINE}"
            ),
            "npm error FetchError: request failed",
        ),
        (
            "npm warn EBADENGINE   required: { node: '>=22' },\nno key\nnpm notice New version: no such thing\n",
            "no key",
        ),
        (
            (
                "error: No solution found when resolving tool dependencies\n"
                "  cause: Because nope was not found in the package registry and you require nope, it fails.\n"
            ),
            "cause: Because nope was not found in the package registry and you require nope, it fails.",
        ),
        (
            (
                "  \u00d7 No solution found when resolving tool dependencies:\n"
                "  \u2570\u2500\u25b6 Because nope was not found in the package registry and\n"
                "      you require nope, we can conclude that your requirements\n      are unsatisfiable.\n"
            ),
            "Because nope was not found in the package registry and",
        ),
        (
            (
                "Installed 31 packages in 199ms\nAn executable named `a` is not provided by package `b`.\n"
                "The following executables are available:\n- b\n"
            ),
            "An executable named `a` is not provided by package `b`.",
        ),
        (
            (
                "  + Exception Group Traceback (most recent call last):\n  |   File 'x', line 1, in error\n"
                "  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)\n"
                "  +-+---------------- 1 ----------------\n    | Traceback (most recent call last):\n"
                "    |   File 'y', line 1, in error\n    | ValueError: x is wrong\n    +------------------\n"
            ),
            "ValueError: x is wrong",
        ),
        (
            (
                "Traceback (most recent call last):\nKeyError: 'a'\n\nDuring handling of the above exception, another "
                "exception occurred:\n\nTraceback (most recent call last):\nRuntimeError: no config\nin two lines\n"
            ),
            "RuntimeError: no config",
        ),
        (
            (
                "TypeError: fetch failed\n    at x.js:1:1 {\n  [cause]: Error: connect ECONNREFUSED 127.0.0.1:1\n"
                "      at error.js:1:1\n}\n\nNode.js v20.20.2\n"
            ),
            "[cause]: Error: connect ECONNREFUSED 127.0.0.1:1",
        ),
        (
            (
                "Usage: foo [OPTIONS]\nTry 'foo --help' for help.\n\u256d\u2500 Error \u2500\u2500\u256e\n"
                "\u2502 Got 1 argument     \u2502\n\u2570\u2500\u2500\u2500\u2500\u256f\n"
            ),
            "Got 1 argument",
        ),
        ("Error: API key is required.\nUsage: foo --key KEY\n", "Error: API key is required."),
        ("Usage: foo --key KEY\n  --key KEY  required\nmore\n", "Usage: foo --key KEY"),
        (
            (
                "error: the following arguments were not provided:\n  --token <TOKEN>\n\nUsage: r --token <TOKEN>\n\n"
                "For more information, try '--help'.\n"
            ),
            "error: the following arguments were not provided: --token <TOKEN>",
        ),
        (
            (
                "thread 'main' panicked at r.rs:1:71:\nbad config\nstack backtrace:\n   0: std::panicking\n"
                "note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace\n"
            ),
            "thread 'main' panicked at r.rs:1:71: bad config",
        ),
        (
            "Error: failed to load config\n\nCaused by:\n    No such file or directory (os error 2)\n",
            "Caused by: No such file or directory (os error 2)",
        ),
        (
            (
                "Error: Invalid vault path: /opt/a\nFor security reasons, vault paths cannot:\n"
                "- Point to system folders\n- Be hidden\nPlease choose a dedicated folder\n"
            ),
            "Error: Invalid vault path: /opt/a",
        ),
        ("Server 1.0\nThese options are required:\n- --token\n", "These options are required: - --token"),
        ("Error: 2 problems\nIt cannot start: port in use\n- hint\n", "It cannot start: port in use"),
        (
            "panic: open /nope: no such file or directory\n\ngoroutine 1 [running]:\n"
            + 40 * "github.com/a/errors.(*E).Fatal(0xc00001, {0x1, 0x2})\n\t/go/errors.go:9 +0x1d\n"
            + "created by main.handleError in goroutine 1\n\t/go/main.go:9 +0x1d\nexit status 2\n",
            "panic: open /nope: no such file or directory",
        ),
    ],
)
def test_the_summary_of_output_is_its_most_useful_line(printed: str, summary: str) -> None:
    output = ServerOutput(Redactor(StdioEndpoint("x")))
    output.add(printed.encode())
    assert output.summary == summary


def test_the_first_stray_line_is_kept_without_secrets() -> None:
    output = ServerOutput(Redactor(StdioEndpoint("x", env={"KEY": "s3cr3t"})))
    output.add_stray(b"listening with s3cr3t\x07")
    output.add_stray(b"more")
    assert output.stray == "listening with ***"
