"""The reference page and the example file, generated from the settings' classes."""

from collections.abc import Iterator
from textwrap import wrap
from typing import Final

from mcp_mirror.config.scalars import describe_expected, find_scalar_kind, write_default, write_value
from mcp_mirror.config.shape import Field, Value, list_alternatives, list_fields, list_keys, unwrap
from mcp_mirror.settings.declarations import Example, Text, Without
from mcp_mirror.settings.policies import Config
from mcp_mirror.settings.upstreams import HttpEndpoint, StdioEndpoint, UpstreamPolicy
from mcp_mirror.system.patterns import lazy_pattern

_WIDTH: Final = 116
_ACTIVE: Final = lazy_pattern(r"^(\s*)(?=[^\s#])")
"""The beginning of a line that is not a comment."""
_FORM: Final = lazy_pattern(r"(?<=^a scope):.*|(?<=^a level):.*| in (?:bytes|seconds), or with .*| such as https:.*")
"""The form of a value, which the head of the page describes once."""
_PAGE_HEAD: Final = """\
# All configuration keys

`make reference` generates this page from the settings; `mcp-mirror config reference` prints it.

The gateway reads one YAML or JSON file: `--config FILE`, else `$MCP_MIRROR_CONFIG`, else `./mcp-mirror.yaml`, else
`mcp-mirror.yaml` in the user's configuration folder, else the file there that `install --merge` wrote. All keys are
optional except where the table says *required*. Errors name the file, line, key and expected value.
`mcp-mirror config schema` prints the JSON Schema for editors, and `mcp-mirror config example` a commented file with
every key.

| value | form |
|---|---|
| a size | bytes, or with KB, MB, GB, KiB, MiB or GiB |
| a duration | seconds, or with s, m, h or d |
| a scope | ASCII text without spaces, quotes or backslashes |
| a level | a word of a-z, 0-9, _ and - |
| an address | a URL such as https://example.com/mcp |

Any value may contain variables:

| syntax | value |
|---|---|
| `${VAR}` | the environment variable `VAR`, or the text of the file that `VAR_FILE` names; an error if neither is set |
| `${VAR:-default}` | the same, or `default` if both are unset or empty |
| `$${` | a literal `${` |

Instead of `upstreams`, a block copied from a client works too: `mcpServers`, `servers`, `context_servers` or
`mcp_servers`. In such a block `"disabled": true` means `enabled: false`.
"""
_EXAMPLE_HEAD: Final = """\
# Every key of mcp-mirror with its documentation. Active lines show the defaults, except for the upstreams' own keys.
# Keys after a `#` without a space have no default, or one that the comment describes; their values are examples.
#
#   ${VAR}            the environment variable VAR, or the text of the file that VAR_FILE names
#   ${VAR:-default}   the same, or the default if both are unset or empty
#   $${               a literal ${
#
# `make reference` writes this file. `mcp-mirror config schema` prints its JSON Schema for editors.
"""
_SECOND_UPSTREAM: Final = """
  git:
    command: uvx
    args: [mcp-server-git, --repository, .]
    cwd: .
"""


def reference_page() -> str:
    """Return the reference of all keys as Markdown."""
    sections = [_PAGE_HEAD]
    for field in list_keys(Config):
        entry = _find_entry(field.value)
        section = entry or field.value
        rows = "\n".join(f"| {' | '.join(row)} |" for row in _list_rows(section, ""))
        head = f"## `{field.key}{'.NAME' if entry else ''}`\n\n{' '.join((section.kind.__doc__ or '').split())}"
        sections.append(f"{head}\n\n| key | value | default | meaning |\n|---|---|---|---|\n{rows}\n")
    return "\n".join(sections)


def _list_rows(section: Value, prefix: str) -> Iterator[tuple[str, str, str, str]]:
    for field in list_keys(section.kind, section.mark(Without)):
        path = prefix + ".".join(field.path)
        text = write_default(field)
        default = f"`{text}`" if text else ""
        if field.is_required:
            default = "*one required*" if field.key in list_alternatives(section.kind) else "*required*"
        inner = _find_section(field.value)
        yield f"`{path}`", _describe(field.value), "" if inner else default, field.documentation.replace("|", "\\|")
        if inner:
            yield from _list_rows(inner[0], f"{path}{inner[1]}.")


def _find_entry(value: Value) -> Value | None:
    """Return the section of a mapping's values; None for anything else."""
    entries = value.entries
    return entries if entries and entries.is_section else None


def _find_section(value: Value) -> tuple[Value, str] | None:
    """Return the section behind a key, and how names or positions continue the key's path."""
    if entry := _find_entry(value):
        return entry, ".NAME"
    if value.is_section:
        return value, ""
    if value.is_list and value.entries is None and value.items.is_section:
        return value.items, "[]"
    return None


def _describe(value: Value) -> str:
    if value.entries:
        return "a mapping" if _find_entry(value) else f"a mapping to {_describe(value.entries)}"
    if value.is_list:
        return "a list" if _find_section(value) else f"a list: {_describe(value.items)}"
    if value.is_section:
        return "a mapping"
    kind = find_scalar_kind(value)
    if isinstance(kind, Text) and kind.resolves in ("file", "file or URL"):
        return "a path" if kind.resolves == "file" else "a path or URL"
    if isinstance(kind, Text) and kind.expected.startswith("text"):
        return "text"
    return _FORM.sub("", describe_expected(value)).removeprefix("one of ")


def example_file() -> str:
    """Return a YAML file with every key, its documentation, and its default or an example."""
    lines = [_EXAMPLE_HEAD]
    for field in list_keys(Config):
        lines.append("")
        if _find_entry(field.value):
            lines += [*_format_comment(field.documentation, ""), f"{field.key}:", *_write_upstreams()]
        else:
            lines += _write_key(field, "")
    return "\n".join(lines).replace("\n\n\n", "\n\n") + "\n"


def _write_upstreams() -> Iterator[str]:
    remote = {field.path for field in list_keys(HttpEndpoint)}
    local = {field.path for field in list_keys(StdioEndpoint)}
    keys = list_keys(UpstreamPolicy)
    yield "  filesystem:"
    for field in keys:
        if field.path not in remote:
            yield from _write_key(field, "    ", is_upstream=field.path in local)
    yield _SECOND_UPSTREAM
    yield "  github:"
    for field in keys:
        if field.path in remote:
            yield from _write_key(field, "    ", is_upstream=field.path in (("url",), ("headers",)))
    yield "    enabled: false"


def _write_key(field: Field, indent: str, *, is_upstream: bool = False) -> list[str]:
    """Return the lines of one key; `is_upstream` makes its example active."""
    if field.group:
        return _write_group(field, indent)
    return [*_format_comment(field.documentation, indent), *_write_example_value(field, indent, is_active=is_upstream)]


def _write_group(field: Field, indent: str) -> list[str]:
    """Return the lines of all keys of a group at its first key."""
    group, inner = field.group, f"{indent}  "
    members = [other for other in list_fields(field.section) if other.group == group]
    if group is None or members[0] != field:
        return []
    lines: list[str] = []
    for each in members:
        lines += [*_format_comment(each.documentation, inner), *_write_example_value(each, inner)]
    return [*_format_comment(group.documentation, indent), *_add_head(group.name, lines, indent)]


def _write_example_value(field: Field, indent: str, *, is_active: bool = False) -> list[str]:
    example = field.value.mark(Example)
    if found := _find_section(field.value):
        return _write_inner_section(field, found[0], indent)
    default = write_default(field)
    if default and not is_active:
        return [f"{indent}{field.key}: {default}"]
    shown = write_value(field.value, example.value) if example else '""'
    return [f"{indent}{'' if is_active else '#'}{field.key}: {shown}"]


def _write_inner_section(field: Field, inner: Value, indent: str) -> list[str]:
    inner_indent = indent + ("  " if field.value.is_section else "    ")
    keys = list_keys(inner.kind, inner.mark(Without))
    lines = [line for key in keys for line in _write_key(key, inner_indent)]
    if _find_entry(field.value):
        example = field.value.mark(Example)
        name = example.value if example else "NAME"
        lines = _add_head(write_value(unwrap(str), name), _comment_out(lines), f"{indent}  ")
    elif not field.value.is_section:
        lines = [f"{indent}  #-", *_comment_out(lines)]
    elif field.value.is_optional:
        lines = _comment_out(lines)
    return _add_head(field.key, lines, indent)


def _add_head(key: str, lines: list[str], indent: str) -> list[str]:
    """Put a key above lines; it is a comment if no line is active."""
    is_active = any(_ACTIVE.match(line) for line in lines)
    return [f"{indent}{'' if is_active else '#'}{key}:", *lines]


def _comment_out(lines: list[str]) -> list[str]:
    """Turn active lines into comments."""
    return [_ACTIVE.sub(r"\1#", line) for line in lines]


def _format_comment(text: str, indent: str) -> list[str]:
    return [f"{indent}# {line}" for line in wrap(text, _WIDTH - len(indent), break_on_hyphens=False)]
