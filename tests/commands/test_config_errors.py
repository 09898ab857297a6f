"""The errors of configuration files: their texts, and that no text contains a secret."""

import logging
import os
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from mcp_mirror.config.loading import load_config
from mcp_mirror.errors import ConfigError
from mcp_mirror.settings.policies import Config

CANARY = "c4n4ry-5ecret"
NO_VARIABLES: Mapping[str, str] = {}

Load = Callable[..., Config]


@pytest.fixture
def problems(load: Load, tmp_path: Path) -> Callable[..., list[str]]:
    """The lines of the error that a file gives, without the folder."""

    def problems(text: str | bytes, environ: Mapping[str, str] = NO_VARIABLES) -> list[str]:
        with pytest.raises(ConfigError) as caught:
            load(text, environ)
        return str(caught.value).replace(f"{tmp_path}{os.sep}", "").splitlines()

    return problems


NEITHER = "expected 'command' (a program to start) or 'url' (an address), got"
PAUSE = "expected a duration of 0 or more in seconds, or with s, m, h or d, got"
SECONDS = "expected a duration above 0 in seconds, or with s, m, h or d, got"
SERVER = "expected a mapping with keys such as command, args and env, got"
SCALAR = 'expected text, a number or true/false (write "" for empty text), got'
BARE = "; a bare ~ means nothing in YAML, so put it in quotes"
VARIABLE = "expected ${VAR} or ${VAR:-default}, with nothing nested; write $${ for a literal ${"
INPUT = "the gateway cannot ask a person for ${input:...}; set an environment variable and write ${VAR}"
SIZE = "expected a size above 0 in bytes, or with KB, MB, GB, KiB, MiB or GiB, got"
TAG = "YAML tags (such as !name) are not used here; remove it"
FLOW = "a comma is missing inside { } or [ ]"
CHARACTER = "the text contains NUL or half of a surrogate pair; remove it"
RATE = "expected a whole number above 0, or none, got"
REDIS_ADDRESS = (
    "expected an address such as redis://127.0.0.1:6379/0, rediss:// for TLS, or unix:///PATH, with user and password "
    "percent-encoded (%40 for @), got"
)
WHOLE_NUMBER = "expected a whole number, 0 or more, got"
KEYS_OF_UPSTREAM = (
    "command, args, env, cwd, client_env, url, headers, client_headers, auth, allow_private, timeout, startup_timeout, "
    "required, tools, overrides, oldest_protocol, required_scopes, scope, repeat_read_only, progress_resets_timeout, "
    "max_request_bytes, lock, preview, labels, accepts, zone, may_lower, transport, enabled"
)

BAD_KEYS = [
    ("timeot: 5", "upstreams.a.timeot: unknown key; did you mean 'timeout'?"),
    ("disabled: true", "upstreams.a.disabled: unknown key; did you mean 'enabled'?"),
    ("includeTools: []", "upstreams.a.includeTools: unknown key; did you mean 'tools'?"),
    ("tools: {allwo: []}", "upstreams.a.tools.allwo: unknown key; did you mean 'allow'?"),
    ("tools: {zzz: []}", "upstreams.a.tools.zzz: unknown key; expected one of allow, deny"),
    ("overrides: {r: {captur: auto}}", "upstreams.a.overrides.r.captur: unknown key; did you mean 'capture'?"),
    ("timeout: soon", f"upstreams.a.timeout: {SECONDS} text"),
    ("timeout: 5 minutes", f"upstreams.a.timeout: {SECONDS} text"),
    ("timeout: ''", f"upstreams.a.timeout: {SECONDS} empty text"),
    ("timeout: 0", f"upstreams.a.timeout: {SECONDS} zero"),
    ("timeout: -1", f"upstreams.a.timeout: {SECONDS} a negative number"),
    ("timeout: .inf", f"upstreams.a.timeout: {SECONDS} infinity or not a number"),
    ("timeout: .nan", f"upstreams.a.timeout: {SECONDS} infinity or not a number"),
    ("timeout: 1e999", f"upstreams.a.timeout: {SECONDS} a number"),
    ("timeout: true", f"upstreams.a.timeout: {SECONDS} true or false"),
    ("timeout: null", f"upstreams.a.timeout: {SECONDS} nothing; there is always a limit"),
    ("timeout:", f"upstreams.a.timeout: {SECONDS} nothing; there is always a limit"),
    ("timeout: [1]", f"upstreams.a.timeout: {SECONDS} a list"),
    ("timeout: {a: 1}", f"upstreams.a.timeout: {SECONDS} a mapping"),
    ("timeout: 99999999999999999999", f"upstreams.a.timeout: {SECONDS} a number that is too large"),
    ("startup_timeout: 0", f"upstreams.a.startup_timeout: {SECONDS} zero"),
    ("enabled: 1", "upstreams.a.enabled: expected true or false, got a whole number"),
    ("enabled: 'no'", "upstreams.a.enabled: expected true or false, got text"),
    ("args: -y", "upstreams.a.args: expected a list, got text"),
    ("args: {a: b}", "upstreams.a.args: expected a list, got a mapping"),
    ("args: [a, ~]", f"upstreams.a.args.1: {SCALAR} nothing{BARE}"),
    ("args: [[a]]", f"upstreams.a.args.0: {SCALAR} a list"),
    ("env: [A=b]", "upstreams.a.env: expected a mapping from names to values, got a list"),
    ("env: {A=b: c}", "upstreams.a.env: expected names without '=' in them, got a mapping"),
    ("env: {A: }", f"upstreams.a.env: {SCALAR} nothing"),
    ("cwd: ~", f"upstreams.a.cwd: expected text that is not empty, got nothing{BARE}"),
    ("cwd: 5", "upstreams.a.cwd: expected text that is not empty, got a whole number; put it in quotes"),
    ("transport: sse", "upstreams.a.transport: with 'command' expected stdio; or leave it out"),
    ("transport: tcp", "upstreams.a.transport: expected one of stdio, streamable-http, sse, got another word"),
    ("headers: {A: b}", "upstreams.a.headers: this key belongs to 'url', not to 'command'; remove it"),
    ("tools: {allow: '*'}", "upstreams.a.tools.allow: expected a list, got text"),
    ("tools: []", "upstreams.a.tools: expected a mapping with keys such as allow and deny, got an empty list"),
    (
        "overrides: {r: 5}",
        (
            "upstreams.a.overrides.r: expected a mapping with keys such as capture, inline_budget and timeout, "
            "got a whole number"
        ),
    ),
    ("overrides: {r: {inline_budget: 1.5}}", f"upstreams.a.overrides.r.inline_budget: {WHOLE_NUMBER} a number"),
    ("overrides: {r: {inline_budget: -1}}", f"upstreams.a.overrides.r.inline_budget: {WHOLE_NUMBER} a negative number"),
    (
        "args: ['${NONE}']",
        (
            "upstreams.a.args.0: the environment variable NONE is not set; set it, or NONE_FILE to a file with its "
            "value, or write a default: ${NONE:-...}"
        ),
    ),
    ("args: ['${input:k}']", f"upstreams.a.args.0: {INPUT}"),
    ("args: ['${A:-${B}}']", f"upstreams.a.args.0: {VARIABLE}"),
    ("args: ['${}']", f"upstreams.a.args.0: {VARIABLE}"),
    ("args: ['${A']", f"upstreams.a.args.0: {VARIABLE}"),
    ("timeout: '${T:-soon}'", f"upstreams.a.timeout: {SECONDS} text"),
    ("timeout: !!python/name:os.system 5", f"upstreams.a.timeout: {TAG}"),
    ("env: !secret {}", f"upstreams.a.env: {TAG}"),
    ('args: ["\\0"]', f"upstreams.a.args.0: {CHARACTER}"),
    ('args: ["\\ud800"]', f"upstreams.a.args.0: {CHARACTER}"),
    ("<<: 5", "upstreams.a: expected a mapping to merge after '<<'"),
    (
        "capture: auto",
        "upstreams.a.capture: unknown key; did you mean 'mirror.capture' or 'upstreams.*.overrides.*.capture'?",
    ),
    (
        "allow: [r]",
        "upstreams.a.allow: unknown key; did you mean 'upstreams.*.tools.allow'?",
    ),
    (
        "args: ['${workspaceFolder}']",
        (
            "upstreams.a.args.0: the gateway does not know the client's variable workspaceFolder; write the path of "
            "the folder"
        ),
    ),
    (
        "overrides: {r: {inline_budget: '9'}}",
        f"upstreams.a.overrides.r.inline_budget: {WHOLE_NUMBER} text; remove the quotes",
    ),
    ("\u00a0cwd: x", "upstreams.a: unknown key; the line has a no-break space; replace it by an ordinary space"),
    ("[a]: 5", "upstreams.a: expected text as a key, got a list or a mapping; quote text that starts with [ or {"),
]


@pytest.mark.parametrize(("line", "message"), BAD_KEYS, ids=[line for line, _ in BAD_KEYS])
def test_an_error_names_file_line_key_and_expected_value(
    problems: Callable[..., list[str]], line: str, message: str
) -> None:
    assert problems(f"upstreams:\n  a:\n    command: x\n    {line}\n") == [f"mirror.yaml:4: {message}"]


NAMES = "names are of A-Z, a-z, 0-9, _, - and dots"
SUFFIX = 'mirror.suffix: expected up to 32 of A-Z, a-z, 0-9, _ and - ("" for none), got'

BAD_SECTIONS = [
    ("mirror: 5", "mirror: expected a mapping with keys such as suffix, capture and inline_budget, got a whole number"),
    (
        "flows: a -> a",
        "flows: expected a mapping with keys such as levels, default and allow, or a list for 'allow', got text",
    ),
    ("mirror: {suffix: a b}", f"{SUFFIX} text"),
    ("mirror: {suffix: ' '}", f"{SUFFIX} text"),
    ("mirror: {suffix:}", f"{SUFFIX} nothing"),
    ("mirror: {suffix: 5}", f"{SUFFIX} a whole number"),
    (f"mirror: {{suffix: {'x' * 33}}}", f"{SUFFIX} text"),
    (
        "mirror: {suffix: '', expose_originals: true}",
        "mirror.expose_originals: without a suffix twins have the originals' names; set 'suffix', or remove this",
    ),
    (
        "mirror: {provider: nobody}",
        (
            "mirror.provider: expected one of default, openai, anthropic, anthropic-4.6, google, llama, mistral, "
            "got another word"
        ),
    ),
    ("mirror: {notice: nice}", "mirror.notice: expected one of compact, paper, json, opaque, got another word"),
    ("mirror: {capture: 1}", "mirror.capture: expected one of auto, large, always, never, got a whole number"),
    ("mirror: {startup_wait: -1}", f"mirror.startup_wait: {PAUSE} a negative number"),
    ("store: {kind: redsi}", "store.kind: expected one of memory, disk, redis, got 'redsi'; did you mean 'redis'?"),
    ("store: {kind: Disk}", "store.kind: expected one of memory, disk, redis, got 'Disk'; did you mean 'disk'?"),
    ('store: {kind: "redi\\e"}', "store.kind: expected one of memory, disk, redis, got another word"),
    ("memory_tools: al", "memory_tools: expected one of minimal, standard, all, got 'al'; did you mean 'all'?"),
    ("store: {kind: valkey}", "store.kind: expected one of memory, disk, redis, got another word"),
    ("store: {max_bytes: 0}", f"store.max_bytes: {SIZE} zero"),
    ("store: {max_bytes: 5 bits}", f"store.max_bytes: {SIZE} text"),
    ("store: {max_bytes: 24h}", f"store.max_bytes: {SIZE} text"),
    ("store: {ttl: never}", "store.ttl: expected a duration above 0 in seconds, or with s, m, h or d, got text"),
    ("server: {path: mcp}", "server.path: expected a path such as /mcp, got text"),
    ("server: {name: }", "server.name: expected text that is not empty, got nothing"),
    (
        "server: {prot: 1}",
        (
            "server.prot: unknown key; expected one of name, instructions, path, answer_timeout, state_keys, "
            "session_idle, drain, allowed_hosts, allowed_origins, log_format, metrics"
        ),
    ),
    ("server: {drain: -1}", f"server.drain: {PAUSE} a negative number"),
    ("upstream: {}", "upstream: unknown key; did you mean 'upstreams'?"),
    ("metrics: 127.0.0.1:9464", "metrics: unknown key; did you mean 'server.metrics'?"),
    (
        "mirror: {timeout: 5}",
        (
            "mirror.timeout: unknown key; did you mean 'memory_tools.timeout' or 'upstreams.*.timeout' or "
            "'upstreams.*.overrides.*.timeout'?"
        ),
    ),
    (
        "server: {port: 80}",
        "server.port: unknown key; it is an option of the command: mcp-mirror serve --http HOST:PORT",
    ),
    (
        "upstreams: {a: {url: 'http://x/', transport: http}}",
        (
            "upstreams.a.transport: expected one of stdio, streamable-http, sse, got 'http'; did you mean "
            "'streamable-http'?"
        ),
    ),
    ("mcpServer: {}", "mcpServer: unknown key; did you mean 'mcpServers'?"),
    ("upstreams: []", "upstreams: expected a mapping from names to servers, got an empty list"),
    ("mcpServers: x", "mcpServers: expected a mapping from names to servers, got text"),
    ("upstreams: {a: }", f"upstreams.a: {SERVER} nothing"),
    ("upstreams: {a: {command: x, url: 'http://x'}}", f"upstreams.a: {NEITHER} both; keep one"),
    ("upstreams: {a: {}}", f"upstreams.a: {NEITHER} neither"),
    ("upstreams: {a b: {command: x}}", "upstreams.a b: expected a name of 1 to 64 of A-Z, a-z, 0-9, _, - and dots"),
    ("upstreams: {a: {command: ''}}", "upstreams.a.command: expected the name or path of a program, got empty text"),
    ("upstreams: {a: {command: [x]}}", "upstreams.a.command: expected the name or path of a program, got a list"),
    (
        "upstreams: {a: {url: 'http://x', env: {A: b}}}",
        "upstreams.a.env: this key belongs to 'command', not to 'url'; remove it",
    ),
    (
        "upstreams: {a: {url: 'http://x', transport: stdio}}",
        "upstreams.a.transport: with 'url' expected streamable-http or sse; or leave it out",
    ),
    (
        "upstreams: {a: {url: 'http://x', headers: {a b: c}}}",
        "upstreams.a.headers: expected names of HTTP headers, got a mapping",
    ),
    (
        "upstreams: {a: {url: 'http://x', client_env: {A: X-A}}}",
        "upstreams.a.client_env: this key belongs to 'command', not to 'url'; remove it",
    ),
    (
        "upstreams: {a: {url: 'http://x', client_headers: {A: X A}}}",
        "upstreams.a.client_headers.A: expected the name of an HTTP header, got text",
    ),
    *(
        (
            f"upstreams: {{a: {{command: x, client_env: {{A: {header}}}}}}}",
            (
                "upstreams.a.client_env.A: expected a header of its own, such as X-Crm-Authorization: this one is for "
                "the gateway"
            ),
        )
        for header in ("Authorization", "COOKIE", "host", "DPoP", "Mcp-Session-Id", "proxy-authorization")
    ),
    *(
        (
            f"upstreams: {{a: {{url: 'http://x', client_headers: {{{header}: X-A}}}}}}",
            f"upstreams.a.client_headers.{header}: expected another header: the gateway itself writes this one",
        )
        for header in ("host", "Content-Length", "MCP-Protocol-Version", "Transfer-Encoding")
    ),
    (
        "upstreams: {a: {url: 'http://x', client_headers: {X-A: X-B, x-a: X-C}}}",
        "upstreams.a.client_headers: expected each header once; case does not matter",
    ),
    (
        "upstreams: {a: {command: x, client_env: {A: X-A}, scope: shared}}",
        "upstreams.a.scope: clients with values of their own ('client_env') never share a connection",
    ),
    (
        "upstreams: {a: {url: 'https://x', client_headers: {X-A: X-B}, auth: {oauth: {}}}}",
        (
            "upstreams.a.client_headers: expected Authorization among them: 'auth' signs in for lists, and never for a "
            "client"
        ),
    ),
    (
        'upstreams: {a: {url: "http://x", headers: {a: "b\\r\\nc"}}}',
        "upstreams.a.headers.a: expected one line of ASCII text, got text",
    ),
    ("upstreams: {a: {command: x}, a: {command: y}}", "upstreams.a: the same key as on line 1; keep one"),
    (
        "{upstreams: {a: {command: x}}, mcpServers: {a: {command: x}}}",
        "mcpServers.a: line 1 has an upstream of the same name; rename one",
    ),
    (
        "mcpServers: {a b: {command: x}, a/b: {command: x}}",
        f"mcpServers.a/b: line 1 has an upstream of the same name: both become 'a_b', because {NAMES}; rename one",
    ),
    (
        "mcpServers: {a: {url: 'http://x', httpUrl: 'http://x'}}",
        "mcpServers.a.httpUrl: this key means the same as 'url'; keep one",
    ),
    (
        "mcpServers: {a: {command: x, autoAprove: []}}",
        f"mcpServers.a.autoAprove: unknown key; expected one of {KEYS_OF_UPSTREAM}",
    ),
    ("mcpServers: {a: {command: x, type: http}}", "mcpServers.a.type: with 'command' expected stdio; or leave it out"),
    ("mcpServers: {a: {command: x, disabled: maybe}}", "mcpServers.a.disabled: expected true or false, got text"),
    ("mcpServers: {a: {command: x, disabledTools: x}}", "mcpServers.a.disabledTools: expected a list, got text"),
    ("mcpServers: {a: 5}", f"mcpServers.a: {SERVER} a whole number"),
    *(
        (
            f"limits: {{calls_per_minute: {number}}}",
            f"limits.calls_per_minute: {RATE} text; write only digits, such as 1000",
        )
        for number in ("1 000", "1'000", "'1,000'", "1k", "60/min")
    ),
    *(
        (
            f"limits: {{calls_per_minute: {number}}}",
            f"limits.calls_per_minute: {RATE} a number; write only digits, such as 1000",
        )
        for number in ("1.000", "2.500")
    ),
    (
        "limits: {calls_per_day: 1,000}",
        "limits: unknown key; a comma inside { } begins the next key; write numbers without it",
    ),
    *(
        (f"{block}: {servers}", f"{block}: unknown key; servers belong below 'upstreams', each with a name")
        for block, servers in (
            ("mcp", "{servers: {a: {command: x}}}"),  # VS Code's settings
            ("mcp", "{a: {type: local, command: [x]}}"),  # OpenCode
            ("extensions", "{a: {cmd: x}}"),  # Goose
            ("files", "{command: x}"),
            ("search", "{url: 'http://x'}"),
        )
    ),
    ("upstream: {a: {command: x}}", "upstream: unknown key; did you mean 'upstreams'?"),
    ("upstreams: {a: command:x}", f"upstreams.a: {SERVER} text; write a space after the colon"),
    ("store: {kind: redis}", "store.kind: redis needs `store.url`, such as redis://127.0.0.1:6379/0"),
    *(
        (f"store: {{kind: redis, url: '{url}'}}", f"store.url: {REDIS_ADDRESS} text")
        for url in ("127.0.0.1:6379", "http://x", "redis://u:p/w@x", "redis://u:p#w@x")
    ),
    (
        "store: {kind: redis, url: 'redis://x', blobs: values}",
        "store.blobs: expected the address of a bucket, s3://BUCKET or s3://BUCKET/PREFIX, got text",
    ),
    ("lock: {mode: sometimes}", "lock.mode: expected one of off, warn, block, got another word"),
    ("store: {encryption: {}}", "store.encryption: expected 'keys', which is missing"),
    ("store: {encryption: }", "store.encryption: expected 'keys', which is missing"),
    (
        "store: {encryption: {keys: []}}",
        "store.encryption.keys: expected a list of one secret or more, got an empty list",
    ),
    (
        "store: {encryption: {keys: [short]}}",
        "store.encryption.keys.0: expected a secret of 32 characters or more, got a shorter one",
    ),
    (
        "upstreams: {a: {command: x, enabled: false, timeot: 1}}",
        "upstreams.a.timeot: unknown key; did you mean 'timeout'?",
    ),
]


@pytest.mark.parametrize(
    ("text", "key", "line"),
    [
        ("upstreams:\n  command: npx\n  args: [-y, server]\n", "command", 2),
        ("upstreams: {url: 'https://mcp.example.com/mcp'}", "url", 1),
        ("mcpServers: {command: npx}", "command", 1),
    ],
)
def test_an_upstream_without_a_name_is_an_error(
    problems: Callable[..., list[str]], text: str, key: str, line: int
) -> None:
    (message,) = problems(text)
    assert message.startswith(f"mirror.yaml:{line}: ")
    assert message.endswith(f".{key}: expected the name of a server, and {key!r} below the name")


def test_an_upstream_may_have_the_name_of_a_key(load: Load) -> None:
    config = load("upstreams: {command: {command: x}, url: {url: 'http://x/mcp'}}")
    assert [one.name for one in config.upstreams] == ["command", "url"]


@pytest.mark.parametrize(("text", "message"), BAD_SECTIONS, ids=[text for text, _ in BAD_SECTIONS])
def test_an_error_in_a_section_names_file_line_key_and_expected_value(
    problems: Callable[..., list[str]], text: str, message: str
) -> None:
    assert problems(text) == [f"mirror.yaml:1: {message}"]


@pytest.mark.parametrize(
    "url",
    [
        "example.com",
        "ftp://x",
        "http://",
        "http:///mcp",
        "http://x:99999",
        "http://[x",
        "http://a b",
        "file:///etc",
        "''",
        "https://ex\u00adample.com/mcp",
        "https://example.com\u200b/mcp",
        pytest.param(f"https://x/{'a' * 70_000}", id="long"),
    ],
)
def test_an_address_is_http_with_a_host(problems: Callable[..., list[str]], url: str) -> None:
    (message,) = problems(f"upstreams:\n  a:\n    url: {url}\n")
    assert message.startswith(
        "mirror.yaml:3: upstreams.a.url: expected an address such as https://example.com/mcp, got"
    )
    assert message.endswith(", which may be invisible") is not url.isascii()


UNREADABLE = [
    ("", 1, "the file is empty; begin with 'upstreams:'"),
    ("# only this\n", 1, "the file is empty; begin with 'upstreams:'"),
    ("- a\n", 1, "expected a mapping with 'upstreams:' at the top, got a list"),
    ("upstreams\n", 1, "expected a mapping with 'upstreams:' at the top, got text"),
    ("a:\n\tb: 1\n", 2, "YAML does not allow a tab here; use spaces"),
    ("a: 1\nb: [1, 2\n", 3, "a list in [ ] lacks a comma or the closing bracket"),
    ("a: {b: 1\n", 2, "a mapping in { } lacks a comma or the closing brace"),
    ("a: {b: Bearer ${T}}\n", 1, f"{FLOW}, or quotes around text with ${{VAR}}"),
    ("a: [${T}, x]\n", 1, f"{FLOW}, or quotes around text with ${{VAR}}"),
    ("a: {b: {c: 1} {d: 1}}\n", 1, f"{FLOW}, or quotes around text with ${{VAR}}"),
    ("a: 'x\n", 2, "a quote or bracket is not closed"),
    ("a: b: c\n", 1, "YAML does not allow a colon here; put the text in quotes or fix the indentation"),
    ("a: 1\nb\nc: 2\n", 3, "a key without a colon; write 'key: value', or put the text in quotes"),
    ("a:\n  b: 1\n c: 2\n", 3, "the indentation does not match the lines above, or a line lacks a colon"),
    ("a: *b\n", 1, "text that starts with * is read as an alias; put it in quotes, or define its anchor"),
    ("a: [*.txt]\n", 1, "text that starts with * is read as an alias; put it in quotes, or define its anchor"),
    ("a: [&.txt]\n", 1, "text that starts with & is read as an anchor; put it in quotes"),
    ('[mcp_servers.a]\ncommand = "x"\n', 2, "this is TOML; write the servers in YAML, below 'upstreams:'"),
    ("a: @b\n", 1, "text that starts with %, @ or a backtick must be in quotes"),
    ('a: 1\nb: "C:\\Users"\n', 2, "a backslash in double quotes starts an escape; use single quotes"),
    ('a: "\\d+"\n', 1, "a backslash in double quotes starts an escape; use single quotes"),
    ("a: - b\n", 1, "a list starts on the line after its key, or write it in [ ]"),
    ("a: 1\n---\nb: 2\n", 2, "a second document starts here; keep one and remove '---'"),
    ("a: 1\nb: \x07\n", 2, "there is a control character here; remove it"),
    ('a: "\\Uffffffff"\n', 1, 'an escape such as "\\U..." in quotes is not a character'),
    ("[" * 5000, 1, "nested deeper than 32 levels; a configuration needs fewer"),
    (b"a: 1\nb: \xff\n", 2, "the file is not UTF-8; save it as UTF-8"),
    ("a: 1".encode("utf-16"), 1, "the file is not UTF-8; save it as UTF-8"),
]


@pytest.mark.parametrize(("text", "line", "message"), UNREADABLE, ids=[str(row[0])[:20] for row in UNREADABLE])
def test_a_syntax_error_names_line_and_advice(
    problems: Callable[..., list[str]], text: str | bytes, line: int, message: str
) -> None:
    (only_problem,) = problems(text)
    assert only_problem.startswith(f"mirror.yaml:{line}: ")
    assert message in only_problem


TOKEN = "mcpm_4bXJk-ZpQ1f0aW7tLr_e2sYvNc8uGd3hMiKo5BxTzA9"


@pytest.mark.parametrize("value", ["alice", TOKEN, "5"])
def test_a_token_in_the_place_of_a_name_is_not_shown(problems: Callable[..., list[str]], value: str) -> None:
    (message,) = problems(f"auth: {{tokens: {{{TOKEN}: {value}}}}}")
    assert message.startswith("mirror.yaml:1: auth.tokens.<key>: expected sha256: and 64 hexadecimal digits")
    assert message.endswith(
        "this is a token itself, and it is not a secret any more: create another, and put its hash here"
    )


def test_an_alias_bomb_is_refused(problems: Callable[..., list[str]]) -> None:
    rows = ["x-0: &a0 [x, x, x, x, x, x, x, x, x]"]
    rows += [f"x-{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    (message,) = problems("\n".join(rows))
    assert "aliases repeat this file into more than 20000 values" in message


@pytest.mark.parametrize("text", ["x-a: &a [*a]", "x-a: &a {b: *a}", "x-a: &a {<<: *a}"])
def test_an_alias_of_itself_is_refused(problems: Callable[..., list[str]], text: str) -> None:
    assert problems(text)


def test_one_error_reports_all_problems_in_the_order_of_the_file(problems: Callable[..., list[str]]) -> None:
    text = """\
upstreams:
  web:
    timeot: 5
    timeout: soon
    url: "${NONE}"
  other: {}
mirror:
  suffix: 5
  suffix: 6
store: {ttl: x, kind: y}
"""
    keys = [line.split(" ")[0] for line in problems(text)]
    assert keys == [
        "mirror.yaml:3:",
        "mirror.yaml:4:",
        "mirror.yaml:5:",
        "mirror.yaml:6:",
        "mirror.yaml:8:",
        "mirror.yaml:9:",
        "mirror.yaml:10:",
        "mirror.yaml:10:",
    ]


def test_an_error_has_at_most_fifty_problems(problems: Callable[..., list[str]]) -> None:
    message = problems("\n".join(f"key{n}: 1" for n in range(80)))
    assert len(message) == 51
    assert message[-1] == "mirror.yaml: and 30 more problems"


@pytest.mark.parametrize("name", ["missing.yaml", ".", "a\0b"])
def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"the configuration cannot be read: .+; check the path"):
        load_config(tmp_path / name, {})


def test_a_huge_file_is_rejected(problems: Callable[..., list[str]]) -> None:
    (message,) = problems(b"#" * ((1 << 20) + 1))
    assert message == "mirror.yaml: larger than 1048576 bytes; this is not a configuration"


SECRET_FILES = [
    "upstreams: {a: {command: x, args: [CANARY], env: {A: CANARY}}, b: {url: 'http://x?CANARY', headers: {A: CANARY}}}",
    "upstreams: {a: {command: x, args: ['${S}'], env: {A: '${S}'}}, b: {url: 'http://x?${S}', headers: {A: '${S}'}}}",
    "upstreams: {a: {command: x, env: {A: [CANARY]}, args: CANARY}}",
    "upstreams: {a: {command: x, env: {CANARY}}}",
    "upstreams: {a: {command: x, env: {CANARY: }}}",
    "upstreams: {a: {command: x, env: {A=CANARY: b}}}",
    "upstreams: {a: {command: x, env: {A=CANARY: [], A=CANARY: {}}}}",
    "upstreams: {a: {command: x, env: [A=CANARY]}}",
    "upstreams: {a: {command: x, env: CANARY}}",
    "upstreams: {a: {command: x, args: [{--token=CANARY: x}]}}",
    "upstreams: {a: {command: x, A=CANARY: b}}",
    "upstreams: {a: {url: 'CANARY'}}",
    "upstreams: {a: {url: 'ftp://CANARY@x?k=CANARY'}}",
    "upstreams: {a: {url: 'http://x:CANARY'}}",
    "upstreams: {a: {url: 'http://x', headers: {'Authorization: CANARY': }}}",
    "upstreams: {a: {url: 'http://x', headers: {CANARY}}}",
    'upstreams: {a: {url: "http://x", headers: {A: "CANARY\\n"}}}',
    "upstreams: {a: {url: 'http://x?CANARY', env: {A: CANARY}, transport: CANARY}}",
    "upstreams: {a: {command: x, url: CANARY, env: {A: CANARY}}}",
    "upstreams: {a: {command: x, timeout: CANARY, enabled: CANARY, cwd: [CANARY]}}",
    "upstreams: {a: {command: x, timeout: '${S}', enabled: '${S}', transport: '${S}'}}",
    "upstreams: {a: {command: x, env: {A: '${S}${NONE}', B: '${NONE:CANARY}', C: '${input:CANARY'}}}",
    "upstreams: {a: {command: x, env: {A: '${N:-CANARY}'}}, timeout: 1}",
    "upstreams: {a: {command: x, env: {A: !CANARY b, B: *CANARY}}}",
    "upstreams: {a: {command: x, env: {A: !CANARY b}}}",
    "upstreams: {a: {command: x, env: {A: CANARY: b}}}",
    "upstreams:\n  a:\n    env:\n      A: CANARY\n     B: CANARY\n",
    "upstreams:\n  a:\n    env:\n      A: 'CANARY\n",
    'upstreams: {a: {command: x, env: {A: "\\uCANARY"}}}',
    "mcpServers: {a: {command: x, env: {A: CANARY}, headers: {A: CANARY}, autoApprove: [CANARY], oauth: {k: CANARY}}}",
    "mcpServers: {a: {url: 'http://x?CANARY', env: {A: CANARY}, type: CANARY}}",
    "mcpServers: {a: {url: 'http://x?CANARY', httpUrl: 'http://CANARY', timeout: 60000}}",
    "mirror: {suffix: ' CANARY ', notice: CANARY, inline_budget: CANARY}",
    "CANARY",
    "[CANARY]",
    b"upstreams: CANARY \xff",
]


@pytest.mark.parametrize("text", SECRET_FILES, ids=str)
def test_errors_warnings_and_reprs_contain_no_secret(
    load: Load, text: str | bytes, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    raw = text if isinstance(text, bytes) else text.encode()
    try:
        config = load(raw.replace(b"CANARY", CANARY.encode()), {"S": CANARY})
        shown = [repr(config), str(config), *config.warnings]
    except ConfigError as error:
        shown = [str(error), repr(error), "".join(traceback.format_exception(error))]
    out = capsys.readouterr()
    shown += [caplog.text, out.out, out.err]
    assert not [text for text in shown if CANARY in text]
