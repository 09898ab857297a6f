"""A configuration file becomes settings; the examples load; the JSON Schema describes the file."""

import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import jsonschema_rs
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from mcp_mirror.config import config_json_schema, find_config, load_config
from mcp_mirror.config.reference import example_file, reference_page
from mcp_mirror.errors import ConfigError
from mcp_mirror.settings.policies import (
    Config,
    ContextPolicy,
    LockPolicy,
    MemoryToolsPolicy,
    MirrorPolicy,
    ServerPolicy,
    WirePolicy,
)
from mcp_mirror.settings.store import EncryptionPolicy, StorePolicy
from mcp_mirror.settings.upstreams import HttpEndpoint, StdioEndpoint, ToolPolicy, UpstreamPolicy

CONFIGS = Path(__file__).parents[2] / "configs"
NO_VARIABLES: Mapping[str, str] = {}

Load = Callable[..., Config]


def default(folder: Path) -> Config:
    """The configuration of an empty file in a folder: the lock file is beside it."""
    return Config(lock=LockPolicy(file=str(folder / "mirror.lock.json")))


def only(config: Config) -> UpstreamPolicy:
    (upstream,) = config.upstreams
    return upstream


def stdio(config: Config) -> StdioEndpoint:
    endpoint = only(config).endpoint
    assert isinstance(endpoint, StdioEndpoint)
    return endpoint


def http(config: Config) -> HttpEndpoint:
    endpoint = only(config).endpoint
    assert isinstance(endpoint, HttpEndpoint)
    return endpoint


WHOLE = """
upstreams:
  files:
    command: npx
    args: [-y, "@scope/server", "${HOME}/docs"]
    env: {TOKEN: "${TOKEN}"}
    cwd: sub/folder
    timeout: 120
    startup_timeout: 7.5
    enabled: true
    tools: {allow: ["*_file"], deny: ["write_*"]}
    overrides:
      "read_*": {inline_budget: 200, capture: always, timeout: 10, description: "Read it."}
      "*": {capture: never}
  web:
    url: https://example.com/mcp?key=${TOKEN}
    headers: {Authorization: "Bearer ${TOKEN}"}
    transport: sse
mirror:
  suffix: _twin
  inline_budget: 1
  answer_budget: 2
  error_budget: 3
  notice: paper
  provider: anthropic
  expose_originals: yes
  capture: never
  startup_wait: 0
store: {kind: disk, path: kept, max_bytes: 1.5GiB, ttl: 2h}
server: {name: gate, instructions: Be brief., path: /x/mcp, drain: 0}
limits: {max_message_bytes: 5MB, spool_bytes: 1KiB, max_key_bytes: 100}
"""


def test_every_key_reaches_its_policy(load: Load, tmp_path: Path) -> None:
    assert load(WHOLE, {"HOME": "/home/ann", "TOKEN": "t"}) == Config(
        upstreams=(
            UpstreamPolicy(
                name="files",
                endpoint=StdioEndpoint(
                    "npx", ("-y", "@scope/server", "/home/ann/docs"), {"TOKEN": "t"}, str(tmp_path / "sub" / "folder")
                ),
                timeout=120,
                startup_timeout=7.5,
                allow=("*_file",),
                deny=("write_*",),
                overrides=(
                    ("read_*", ToolPolicy(capture="always", inline_budget=200, timeout=10, description="Read it.")),
                    ("*", ToolPolicy(capture="never")),
                ),
            ),
            UpstreamPolicy(
                name="web",
                endpoint=HttpEndpoint("https://example.com/mcp?key=t", {"Authorization": "Bearer t"}, legacy_sse=True),
            ),
        ),
        mirror=MirrorPolicy(
            "_twin", "never", 1, 2, 3, "paper", expose_originals=True, provider="anthropic", startup_wait=0
        ),
        store=StorePolicy("disk", str(tmp_path / "kept"), max_bytes=3 << 29, ttl=7200),
        server=ServerPolicy("gate", "Be brief.", "/x/mcp", drain=0),
        limits=WirePolicy(5_000_000, 1024, 100),
        lock=default(tmp_path).lock,
    )


@pytest.mark.parametrize(
    ("section", "policy"),
    [
        ("{}", ContextPolicy(None, 0.2)),
        ("{window: 200000, reserve: 20 %}", ContextPolicy(200_000, 0.2)),
        ("{window: '${W}', reserve: 7.5%}", ContextPolicy(8192, 0.075)),
        ("{window: 1, reserve: '0 %'}", ContextPolicy(1, 0.0)),
    ],
)
def test_a_context_window_and_its_reserve_are_read(load: Load, section: str, policy: ContextPolicy) -> None:
    assert load(f"upstreams: {{}}\ncontext: {section}", {"W": "8192"}).context == policy
    assert in_schema(f"upstreams: {{}}\ncontext: {section}")


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("{window: 0}", "context.window: expected a number of tokens above 0"),
        ("{window: 1.5}", "context.window: expected a number of tokens above 0"),
        ("{reserve: 20}", "context.reserve: expected a part below 100 %, such as 20 %"),
        ("{reserve: 100 %}", "context.reserve: expected a part below 100 %"),
        ("{windows: 5}", "context.windows: unknown key; did you mean 'window'?"),
    ],
)
def test_a_wrong_context_window_is_an_error(load: Load, section: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(f"upstreams: {{}}\ncontext: {section}")
    assert message in str(caught.value)
    assert not in_schema(f"upstreams: {{}}\ncontext: {section}")


def test_memory_tool_folders_are_relative_to_the_file(load: Load, tmp_path: Path) -> None:
    section = (
        "{set: minimal, allow: ['memory_*'], deny: [memory_forget], roots: [in, /out, '${R}'], timeout: 5, "
        "read_characters: 900, query_bytes: 1MiB}"
    )
    config = load(f"upstreams: {{}}\nmirror: {{read_budget: 100}}\nmemory_tools: {section}", {"R": "../x"})
    roots = (str(tmp_path / "in"), "/out", str(tmp_path.parent / "x"))
    assert config.memory_tools == MemoryToolsPolicy(
        "minimal", ("memory_*",), ("memory_forget",), roots, 5.0, 900, 1 << 20
    )
    assert config.mirror.read_budget == 100


@pytest.mark.parametrize(
    ("section", "policy"),
    [
        ("all", MemoryToolsPolicy("all")),
        ("minimal", MemoryToolsPolicy("minimal")),
        ("{}", MemoryToolsPolicy("standard")),
        ("{allow: []}", MemoryToolsPolicy(allow=())),
    ],
)
def test_a_name_is_short_for_the_set_of_memory_tools(load: Load, section: str, policy: MemoryToolsPolicy) -> None:
    text = f"upstreams: {{}}\nmemory_tools: {section}"
    assert load(text).memory_tools == policy
    assert in_schema(text)


@pytest.mark.parametrize(
    "section",
    [
        "{timeout: 0}",
        "{roots: x}",
        "{allow: 1}",
        "{query_bytes: none}",
        "{root: [x]}",
        "{roots: [[x]]}",
        "{set: few}",
        "most",
    ],
)
def test_wrong_settings_of_memory_tools_are_errors(load: Load, section: str) -> None:
    with pytest.raises(ConfigError, match="memory_tools"):
        load(f"upstreams: {{}}\nmemory_tools: {section}")


@pytest.mark.parametrize(
    ("mirror", "suffix", "transparent"),
    [
        ('{suffix: ""}', "", False),
        ("{suffix: '', expose_originals: false}", "", False),
        ('{suffix: "${NONE:-}", capture: never}', "", True),
        ("{suffix: -x, capture: never}", "-x", False),
    ],
)
def test_a_suffix_may_be_empty(load: Load, mirror: str, suffix: str, transparent: object) -> None:
    config = load(f"upstreams: {{a: {{command: x}}}}\nmirror: {mirror}", {})
    assert (config.mirror.suffix, config.is_transparent) == (suffix, transparent)


def test_originals_can_be_listed_if_twins_have_a_suffix(load: Load) -> None:
    text = "upstreams:\nmirror: {suffix: '${SUFFIX}', expose_originals: true}"
    assert load(text, {"SUFFIX": "_twin"}).mirror.expose_originals
    with pytest.raises(ConfigError, match=r"mirror\.expose_originals: without a suffix"):
        load(text, {"SUFFIX": ""})


@pytest.mark.parametrize(
    "text",
    [
        "upstreams: {}",
        "upstreams:\nmirror:\nstore:\nserver:\n",
        "mcpServers:",
        "\ufeffupstreams: {}",
        "x-mine: [1, 2]",
        "{}",
    ],
)
def test_a_file_without_upstreams_has_the_defaults(load: Load, text: str, tmp_path: Path) -> None:
    assert load(text) == default(tmp_path)


def test_the_default_lock_file_is_beside_the_configuration(load: Load, tmp_path: Path) -> None:
    config = load("lock: {mode: off, file: ../pins.json}\nupstreams: {a: {command: x, lock: warn}}")
    assert (config.lock, only(config).lock) == (LockPolicy("off", str(tmp_path.parent / "pins.json")), "warn")
    assert load("upstreams: {}", name="my.mirror.yml").lock.file == str(tmp_path / "my.mirror.lock.json")


def test_encryption_keys_are_read_and_not_shown(load: Load) -> None:
    environment = {"NEW": "n" * 32, "OLD": "o" * 44}
    config = load("store: {encryption: {keys: ['${NEW}', '${OLD}'], enabled: no, clear: refuse}}", environment)
    assert config.store.encryption == EncryptionPolicy(("n" * 32, "o" * 44), enabled=False, clear="refuse")
    assert "nnn" not in repr(config)
    assert load("store: {encryption: {keys: ['${NEW}']}}", environment).store.encryption == EncryptionPolicy(
        ("n" * 32,)
    )
    (message,) = load("store: {kind: memory, encryption: {keys: ['${NEW}']}}", environment).warnings
    assert message.endswith("encryption: values in memory are not encrypted; this applies to the kinds disk and redis")


def test_a_bucket_needs_redis(load: Load) -> None:
    redis = "store: {kind: redis, url: 'redis://x', blobs: 's3://values/a'}"
    assert load(redis).store.blobs == "s3://values/a"
    for kind in ("", "kind: disk, "):
        with pytest.raises(ConfigError, match=r"store\.blobs: expected 'kind: redis' too: the bucket has only"):
            load(f"store: {{{kind}blobs: 's3://values'}}")


def test_an_address_of_redis_needs_the_kind(load: Load) -> None:
    with pytest.raises(ConfigError, match=r"store\.url: expected 'kind: redis' too: without it"):
        load("store: {url: 'redis://x'}")
    (message,) = load("store: {kind: disk, url: 'redis://x'}").warnings
    assert message.endswith("store.url: with 'kind: disk' the address has no effect; write 'kind: redis', or remove it")
    assert load("store: {kind: redis, url: 'redis://x'}").warnings == ()


@pytest.mark.parametrize(
    ("sections", "has_warning"),
    [
        ("auth: {tokens: {a: TOKEN}}", True),
        ("server: {allowed_hosts: tools.example.com}", True),
        ("server: {allowed_hosts: tools.example.com, state_keys: ['${KEY}']}", False),
        ("mirror: {}", False),
    ],
)
def test_redis_over_http_without_state_keys_is_a_warning(load: Load, sections: str, *, has_warning: bool) -> None:
    given = sections.replace("TOKEN", "'sha256:" + "0" * 64 + "'")
    warnings = load(f"store: {{kind: redis, url: 'redis://x'}}\n{given}", {"KEY": "k" * 32}).warnings
    expected = "store.kind: gateways that share this store need the same 'server.state_keys': otherwise a call that "
    assert [expected in one for one in warnings if "state_keys" in one] == has_warning * [True]


def test_a_required_audit_log_needs_a_file(load: Load) -> None:
    with pytest.raises(ConfigError, match=r"audit\.required: expected 'path' too: without it"):
        load("audit: {required: true}")
    assert not load("audit: {required: false}").audit.required
    assert load("audit: {required: true, path: audit.jsonl}").audit.required


@pytest.mark.parametrize("key", ["bytes", "values"])
def test_a_share_larger_than_the_store_is_a_warning(load: Load, key: str) -> None:
    alice = f"auth: {{tokens: {{alice: 'sha256:{'0' * 64}'}}, principals: {{alice: {{namespace_{key}: 101}}}}}}"
    config = load(f"store: {{max_{key}: 100, namespace_{key}: 101}}\n{alice}")
    warnings = [one for one in config.warnings if one not in config.exposures]
    reason = f"larger than 'store.max_{key}', which applies first"
    assert [one.partition(": ")[2] for one in warnings] == [
        f"store.namespace_{key}: {reason}",
        f"auth.principals.alice.namespace_{key}: {reason}",
    ]
    assert load(f"store: {{max_{key}: 100, namespace_{key}: 100}}").warnings == ()


def test_a_missing_folder_for_files_is_a_warning(load: Load, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (message,) = load("memory_tools: {roots: [there, missing]}").warnings
    assert message.endswith("roots.1: the folder does not exist; create it, or correct the path")


@pytest.mark.parametrize(
    ("tools", "expected"),
    [
        (
            "allow: [memory_read, memory_grpe]",
            "allow.1: 'memory_grpe' matches no memory tool; did you mean 'memory_grep'?",
        ),
        ("deny: [memory_exprot]", "deny.0: 'memory_exprot' matches no memory tool; did you mean 'memory_export'?"),
        ("deny: ['x*']", "deny.0: 'x*' matches no memory tool; expected one of retrieve_final_answer_from_memory, "),
        ("allow: [memory_run]", "allow.0: 'memory_run' needs an extra: pip install 'mcp-mirror[code]'"),
    ],
)
def test_a_name_of_no_served_memory_tool_is_a_warning(
    load: Load, monkeypatch: pytest.MonkeyPatch, tools: str, expected: str
) -> None:
    monkeypatch.setattr("mcp_mirror.config.checks.find_spec", lambda _name: None)
    (message,) = load(f"memory_tools: {{{tools}}}").warnings
    assert f"memory_tools.{expected}" in message


def test_names_and_globs_of_memory_tools_are_accepted(load: Load) -> None:
    tools = "{allow: ['*', memory_read, memory_import], deny: [memory_run, 'memory_e*']}"
    assert load(f"memory_tools: {tools}").warnings == ()


@pytest.mark.parametrize("text", ["$TOKEN", "Bearer $TOKEN", "$HOME/documents", "%USERPROFILE%\\documents"])
def test_a_variable_without_braces_is_a_warning(load: Load, text: str) -> None:
    config = load(f"upstreams: {{a: {{command: x, args: ['{text}']}}}}")
    assert only(config).endpoint == StdioEndpoint("x", (text,))
    (message,) = config.warnings
    assert message.endswith("args.0: read as text, not as a variable; write ${VAR} for the environment variable")


def test_json_may_have_comments_trailing_commas_and_tabs(load: Load) -> None:
    config = load(
        """\
{
\t// of the project
\t"mcpServers": {
\t\t"a": {"command": "x", "args": ["https://a.example//b", "/* c */",],}, /* two
\t\tlines */
\t},
}
"""
    )
    assert only(config).endpoint == StdioEndpoint("x", ("https://a.example//b", "/* c */"))


def test_an_error_in_json_with_comments_names_its_line(load: Load) -> None:
    with pytest.raises(ConfigError, match=r"mirror\.yaml:3: mcpServers\.a\.timeout: expected"):
        load('{ // one\n"mcpServers": { /* two\n*/ "a": {"command": "x", "timeout": "soon"}}}')


def test_an_upstream_has_defaults_for_all_but_its_endpoint(load: Load) -> None:
    config = load("upstreams: {a: {command: x, args: , env: , tools: , overrides: }}")
    assert only(config) == UpstreamPolicy("a", StdioEndpoint("x"))
    assert only(config).timeout == 60


def test_scalars_of_args_env_and_headers_stay_as_written(load: Load) -> None:
    written = "{a: 8080, b: true, c: yes, d: 1e3, e: 0x10, f: 007, g: 1:30, h: 2024-01-01, i: 1.50, j: ''}"
    texts = ["8080", "true", "yes", "1e3", "0x10", "007", "1:30", "2024-01-01", "1.50", ""]
    config = load(f"upstreams: {{a: {{command: x, args: [-p, 007, no], env: {written}}}}}")
    assert list(stdio(config).env.values()) == texts
    assert stdio(config).args == ("-p", "007", "no")
    config = load(f"upstreams: {{a: {{url: 'http://x', headers: {written}}}}}")
    assert list(http(config).headers.values()) == texts


@pytest.mark.parametrize(
    ("written", "environ", "text"),
    [
        ("${A}", {"A": "x"}, "x"),
        ("${env:A}", {"A": "x"}, "x"),
        ("-${A}-${A}-", {"A": "x"}, "-x-x-"),
        ("${A}", {"A": ""}, ""),
        ("${A:-d}", {}, "d"),
        ("${A:-d}", {"A": ""}, "d"),
        ("${A:-d}", {"A": "x"}, "x"),
        ("${A:-}", {}, ""),
        ("${A:-a b:-c}", {}, "a b:-c"),
        ("$${A}", {"A": "x"}, "${A}"),
        ("$$${A}", {"A": "x"}, "$${A}"),
        ("$A $$ $(A) {A}", {"A": "x"}, "$A $$ $(A) {A}"),
        ("${A}", {"A": "${B}", "B": "no"}, "${B}"),
        ("${A}", {"A": "[1, {a: *b}]\n# no"}, "[1, {a: *b}]\n# no"),
    ],
)
def test_variables_are_replaced_once_and_not_parsed(
    load: Load, written: str, environ: dict[str, str], text: str
) -> None:
    assert stdio(load(f"upstreams: {{a: {{command: x, args: ['{written}']}}}}", environ)).args == (text,)


@pytest.mark.parametrize(
    ("written", "environ", "text"),
    [
        ("${A}", {}, "from the file"),
        ("-${env:A}-${A}-", {}, "-from the file-from the file-"),
        ("${A:-d}", {}, "from the file"),
        ("${A}", {"A": ""}, "from the file"),
        ("${A}", {"A": "x"}, "x"),
        ("${A_FILE:-d}", {"A_FILE": ""}, "d"),
        ("${A:-d}", {"A_FILE": ""}, "d"),
        ("${A}", {"A": "", "A_FILE": ""}, ""),
    ],
)
def test_a_variable_may_be_in_a_file_that_another_names(
    load: Load, tmp_path: Path, written: str, environ: dict[str, str], text: str
) -> None:
    (tmp_path / "a").write_bytes(b"from the file\r\n\n")
    config = load(f"upstreams: {{a: {{command: x, args: ['{written}']}}}}", {"A_FILE": str(tmp_path / "a"), **environ})
    assert stdio(config).args == (text,)


def test_a_file_of_a_variable_is_neither_parsed_nor_searched(load: Load, tmp_path: Path) -> None:
    (tmp_path / "a").write_text(" [1, {a: *b}]\n${B} ")
    config = load("upstreams: {a: {command: x, args: ['${A}']}}", {"A_FILE": str(tmp_path / "a"), "B": "no"})
    assert stdio(config).args == (" [1, {a: *b}]\n${B} ",)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"\xff", "is not UTF-8"),
        (b"s3cret\0", "is not text"),
        (b"s3cret" * 200_000, "is larger than 1048576 bytes"),
        (b"\n", "is empty"),
    ],
)
def test_an_unusable_file_of_a_variable_is_named_by_its_variable(
    load: Load, tmp_path: Path, content: bytes | None, problem: str
) -> None:
    if content is not None:
        (tmp_path / "a").write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load("upstreams: {a: {command: x, args: ['${A:-d}']}}", {"A_FILE": str(tmp_path / "a")})
    assert str(caught.value).endswith(
        f"args.0: the file that the environment variable A_FILE names {problem}; check its path and its permissions"
    )


@pytest.mark.skipif(sys.platform == "win32", reason="needs a named pipe")
def test_a_pipe_as_the_file_of_a_variable_is_an_error(load: Load, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a")
    with pytest.raises(ConfigError, match="A_FILE names is not a regular file"):
        load("upstreams: {a: {command: x, args: ['${A}']}}", {"A_FILE": str(tmp_path / "a")})


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("90", 90), ("1_0", 10), (".5", 0.5), ("90s", 90), ("1.5m", 90), ("2 h", 7200), ("'60'", 60)],
)
def test_times_have_units_or_are_seconds(load: Load, written: str, seconds: float) -> None:
    text = f"""
    upstreams: {{a: {{command: x, timeout: {written}}}}}
    mirror: {{startup_wait: {written}}}
    """
    config = load(text)
    assert (only(config).timeout, config.mirror.startup_wait) == (seconds, seconds)
    assert in_schema(text)


@pytest.mark.parametrize("written", ["0", "0s", "0.0"])
def test_some_times_may_be_zero(load: Load, written: str) -> None:
    text = f"server: {{drain: {written}}}"
    assert load(text).server.drain == 0
    assert in_schema(text)


def test_a_variable_may_give_a_number_or_a_boolean(load: Load) -> None:
    text = """
    upstreams:
      a: {command: x, timeout: "${T:-90}", enabled: "${ON:-true}"}
      b: {command: x, enabled: "${OFF}"}
    mirror: {inline_budget: "${BUDGET}", expose_originals: "${SHOW}", capture: "${CAPTURE}"}
    store: {max_bytes: "${SIZE}", ttl: "${TTL}"}
    """
    environ = {"OFF": "no", "BUDGET": "5", "SHOW": "True", "CAPTURE": "always", "SIZE": "2KiB", "TTL": "1.5m"}
    config = load(text, environ)
    assert only(config).timeout == 90
    assert config.mirror == MirrorPolicy(inline_budget=5, expose_originals=True, capture="always")
    assert config.store == StorePolicy(max_bytes=2048, ttl=90)


def test_python_is_the_running_interpreter_by_default(load: Load) -> None:
    text = 'upstreams: {a: {command: "${PYTHON}"}}'
    assert stdio(load(text)).command == sys.executable
    assert stdio(load(text, {"PYTHON": "pypy"})).command == "pypy"


def test_values_of_a_disabled_upstream_are_not_checked(load: Load, tmp_path: Path) -> None:
    without = replace(default(tmp_path), disabled=("a",))
    assert load("upstreams: {a: {command: '${NONE}', timeout: '${NONE}', enabled: false}}") == without
    assert load("mcpServers: {a: {command: '${NONE}', disabled: true}}") == without


def test_relative_folders_start_at_the_file_and_tilde_is_home(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    monkeypatch.setenv("USERPROFILE", "/home/ann")
    monkeypatch.chdir("/")
    for cwd, folder in (("work", tmp_path / "work"), (".", tmp_path), ("/srv", "/srv"), ("~/a", "/home/ann/a")):
        assert stdio(load(f"upstreams: {{a: {{command: ~/run, cwd: {cwd}}}}}")) == StdioEndpoint(
            "/home/ann/run", cwd=str(folder)
        )


def test_anchors_and_merge_keys_work(load: Load) -> None:
    config = load("""
        x-env: &env {A: 1, B: 2}
        x-more: &more {B: 3, C: 4}
        upstreams:
          a:
            command: x
            env:
              <<: [*env, *more]
              A: 0
        """)
    assert stdio(config).env == {"A": "0", "B": "2", "C": "4"}


def test_json_may_have_tabs_and_escaped_pairs(load: Load) -> None:
    servers = {"mcpServers": {"a": {"command": "x", "args": ["\U0001f600", "a\tb", "a/b"]}}}
    config = load(json.dumps(servers, indent="\t").replace("a/b", "a\\/b"), name="claude.json")
    assert stdio(config).args == ("\U0001f600", "a\tb", "a/b")


@pytest.mark.parametrize(
    ("name", "upstreams", "warnings"),
    [("demo.yaml", 2, 0), ("example.yaml", 2, 0), ("pasted.json", 2, 3)],
)
def test_an_example_file_loads(name: str, upstreams: int, warnings: int) -> None:
    config = load_config(CONFIGS / name, NO_VARIABLES)
    assert (len(config.upstreams), len(config.warnings)) == (upstreams, warnings)


def test_the_full_example_shows_the_defaults() -> None:
    config = load_config(CONFIGS / "example.yaml", NO_VARIABLES)
    assert (config.mirror, config.store, config.server) == (MirrorPolicy(), StorePolicy(), ServerPolicy())
    assert config.context == ContextPolicy()


def test_the_full_example_has_every_key() -> None:
    text = (CONFIGS / "example.yaml").read_text(encoding="utf-8")
    schema = config_json_schema()
    keys = {key for section in schema["$defs"].values() for key in section["properties"]}
    assert [key for key in sorted(keys) if f"{key}:" not in text] == []


def test_the_demo_runs_on_this_python() -> None:
    for upstream in load_config(CONFIGS / "demo.yaml", NO_VARIABLES).upstreams:
        assert upstream.endpoint == StdioEndpoint(sys.executable, ("-m", f"mcp_mirror.demo.{upstream.name}"))


def in_schema(text: str) -> bool:
    return jsonschema_rs.validator_for(config_json_schema()).is_valid(yaml.safe_load(text))


@pytest.mark.parametrize("name", ["demo.yaml", "example.yaml", "pasted.json"])
def test_the_schema_accepts_the_examples(name: str) -> None:
    assert in_schema((CONFIGS / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("text", "admitted"),
    [
        (WHOLE, True),
        ("upstreams: {a: {command: x, timeout: '${T:-60}', enabled: '${ON}', args: [8080, true]}}", True),
        ("mirror: {capture: '${C}', inline_budget: '${B}'}", True),
        ("store: {max_bytes: 100, ttl: 1.5h}", True),
        ("x-env: {A: 1}", True),
        ("upstreams: {a: {command: x, timeot: 60}}", False),
        ("upstreams: {a: {command: x, timeout: null}}", False),
        ("upstreams: {a: {command: x, timeout: 0}}", False),
        ("upstreams: {a: {command: x, timeout: 0s}}", False),
        ("server: {drain: -1}", False),
        ("upstreams: {a: {command: x, cwd: null}}", False),
        ("upstreams: {a b: {command: x}}", False),
        ("store: {kind: valkey}", False),
        ("store: {max_bytes: lots}", False),
        ("mirror: {notice: nice}", False),
        ("mirror: {provider: llama}", True),
        ("mirror: {provider: nobody}", False),
        ("upstream: {}", False),
    ],
)
def test_the_schema_accepts_and_rejects_files(text: str, *, admitted: bool) -> None:
    assert in_schema(text) is admitted


def test_the_schema_documents_every_key_and_closes_every_mapping() -> None:
    schema = config_json_schema()
    jsonschema_rs.meta.validate(schema)
    for section in (schema, *schema["$defs"].values()):
        assert section["additionalProperties"] is False
        assert [key for key, field in section["properties"].items() if not field.get("description")] == []


@pytest.fixture
def user_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's configuration folder; the current folder is another one."""
    (here := tmp_path / "here").mkdir()
    (user := tmp_path / "user").mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr("mcp_mirror.config.loading.user_config_path", lambda _app: user)
    return user


def test_a_named_configuration_wins_over_the_default_ones(user_folder: Path) -> None:
    (user_folder / "mcp-mirror.yaml").touch()
    Path("mcp-mirror.yaml").touch()
    environ = {"MCP_MIRROR_CONFIG": "named.yaml"}
    assert find_config(Path("explicit.yaml"), environ).path == Path("explicit.yaml")
    assert find_config(None, environ).path == Path("named.yaml")
    assert find_config(None, environ).notice is None


def test_the_error_without_a_configuration_lists_the_paths(user_folder: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        find_config(None, {"MCP_MIRROR_CONFIG": ""})
    for place in ("--config", "$MCP_MIRROR_CONFIG", "./mcp-mirror.yaml", str(user_folder / "mcp-mirror.yaml")):
        assert place in str(caught.value)
    assert "mcp-mirror install" in str(caught.value)


def test_a_configuration_that_cannot_be_reached_is_an_error_of_reading(
    user_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = user_folder / ("x" * 300)  # the system refuses it, like a folder of another user
    monkeypatch.setattr("mcp_mirror.config.loading.user_config_path", lambda _app: long)
    found = find_config(None, {})
    with pytest.raises(ConfigError, match="the configuration cannot be read: "):
        load_config(found.path, {})


def test_the_only_installed_configuration_is_found(user_folder: Path) -> None:
    (user_folder / "cursor.yaml").touch()
    assert (found := find_config(None, {})).path == user_folder / "cursor.yaml"
    assert found.notice is None


def test_several_installed_configurations_are_listed(user_folder: Path) -> None:
    (user_folder / "cursor.yaml").touch()
    (user_folder / "vscode.yaml").touch()
    with pytest.raises(ConfigError, match=r"cursor\.yaml, vscode\.yaml\. Choose one with --config .*cursor\.yaml"):
        find_config(None, {})


def test_a_default_name_is_preferred_and_the_others_are_reported(user_folder: Path) -> None:
    (user_folder / "cursor.yaml").touch()
    (user_folder / "mcp-mirror.yaml").touch()
    found = find_config(None, {})
    assert found.path == user_folder / "mcp-mirror.yaml"
    assert found.notice == (
        f"Reading {found.path}. Also found: {user_folder / 'cursor.yaml'}. "
        "Choose with --config FILE or $MCP_MIRROR_CONFIG."
    )
    Path("mcp-mirror.yaml").touch()
    found = find_config(None, {})
    assert found.path == Path("mcp-mirror.yaml")
    others = f"{user_folder / 'mcp-mirror.yaml'}, {user_folder / 'cursor.yaml'}"
    assert (
        found.notice
        == f"Reading mcp-mirror.yaml. Also found: {others}. Choose with --config FILE or $MCP_MIRROR_CONFIG."
    )


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("config") / "mirror.yaml"


@given(value=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
def test_the_text_of_a_variable_is_unchanged(scratch: Path, value: str) -> None:
    scratch.write_text("upstreams: {a: {command: x, env: {V: '<${V}>'}}}", encoding="utf-8")
    assert stdio(load_config(scratch, {"V": value})).env == {"V": f"<{value}>"}


def test_the_example_fits_the_schema_with_every_key_active() -> None:
    text = re.sub(r"^( *)#(?! |$)", r"\1", example_file(), flags=re.MULTILINE)
    validator = jsonschema_rs.validator_for(config_json_schema())
    assert [f"{error.instance_path}: {error.message}" for error in validator.iter_errors(yaml.safe_load(text))] == []


def test_every_key_of_the_settings_is_documented() -> None:
    rows = re.findall(r"^\| `[^`]+` \|.*\| (.*) \|$", reference_page(), flags=re.MULTILINE)
    assert len(rows) > 150
    assert all(rows)
