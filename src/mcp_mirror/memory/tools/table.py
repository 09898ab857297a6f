"""The table of the gateway's own tools: their definitions and their functions."""

from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace

from mcp_mirror.memory.tools.edit import edit, put
from mcp_mirror.memory.tools.files import export_file, import_file
from mcp_mirror.memory.tools.listing import forget, list_values
from mcp_mirror.memory.tools.lookup import PATH, retrieve
from mcp_mirror.memory.tools.query import query
from mcp_mirror.memory.tools.read import describe, grep, read
from mcp_mirror.memory.tools.sql import with_sql
from mcp_mirror.memory.tools.tool import ADDS, DESTROYS, MemoryTool
from mcp_mirror.paths import PRUNED_SLUG
from mcp_mirror.query.windows import UNITS
from mcp_mirror.settings.policies import MemoryToolsPolicy

RETRIEVE: Final = "retrieve_final_answer_from_memory"
QUERY: Final = "memory_query"
RUN: Final = "memory_run"
"""The tool of `memory/code/run.py`, which is not in `TOOLS`: only some installations can serve it."""

_ANY_SIZE: Final = {"anthropic/maxResultSizeChars": 500_000}
"""Raises the client's limit on results, because `answer_budget` limits them."""

_KEPT: Final = "{kept}"
"""The placeholder in descriptions for the lifetime of values."""

_TEXT: Final[Mapping[str, Any]] = {"type": "string"}
_NUMBER: Final[Mapping[str, Any]] = {"type": "integer"}
_FLAG: Final[Mapping[str, Any]] = {"type": "boolean"}
_OBJECT: Final[Mapping[str, Any]] = {"type": "object"}
_OBJECTS: Final[Mapping[str, Any]] = {"type": "array", "items": _OBJECT}
_VALUE: Final[Mapping[str, Any]] = {"anyOf": [_TEXT, _OBJECT, _OBJECTS]}
"""Any JSON value, in the part of JSON Schema that every provider accepts. Numbers and booleans are accepted too."""

TOOLS: Final[Mapping[str, MemoryTool]] = {
    tool.name: tool
    for tool in (
        MemoryTool(
            RETRIEVE,
            "Show the user a whole stored value, if the user asks to see it.",
            {PATH: {"type": "string", "description": "a memory path, to the letter"}},
            (PATH,),
            retrieve,
            meta=_ANY_SIZE,
        ),
        MemoryTool(
            "memory_describe",
            "Type, size, length, keys or fields, and source of a stored value.",
            {PATH: _TEXT},
            (PATH,),
            describe,
        ),
        MemoryTool(
            "memory_read",
            "Look at part of a stored value, to answer a question about it.",
            {
                PATH: _TEXT,
                "by": {"type": "string", "enum": list(UNITS)},
                "offset": {"type": "integer", "description": "from 0; -1: the last"},
                "limit": _NUMBER,
            },
            (PATH,),
            read,
        ),
        MemoryTool(
            "memory_grep",
            "Lines of a stored text, or strings in stored JSON, that match an RE2 pattern.",
            {PATH: _TEXT, "pattern": _TEXT, "context": _NUMBER, "offset": _NUMBER, "limit": _NUMBER},
            (PATH, "pattern"),
            grep,
            unlisted={
                "ignore_case": _FLAG,
                "case_sensitive": _FLAG,
                "line_numbers": _FLAG,  # matches have their numbers anyway
                "output_mode": {"type": "string", "enum": ["content"]},
            },
        ),
        MemoryTool(
            QUERY,
            f"Filter, sort or group stored JSON with JMESPath. A large result is stored, {_KEPT}.",
            {PATH: _TEXT, "expression": _TEXT},
            (PATH, "expression"),
            query,
            ADDS,
            extras={"sql": "sql", "inputs": "sql"},
        ),
        MemoryTool(
            "memory_edit",
            "Store a changed copy: patch is JSON Patch, merge a merge patch, old_text becomes new_text. "
            f"Copies are {_KEPT}.",
            {PATH: _TEXT, "patch": _OBJECTS, "merge": _OBJECT, "old_text": _TEXT, "new_text": _TEXT, "all": _FLAG},
            (PATH,),
            edit,
            ADDS,
            may_be_empty=("new_text",),
        ),
        MemoryTool(
            "memory_put",
            f"Store text or JSON of yours, {_KEPT}, and get its memory path.",
            {"value": _VALUE},
            ("value",),
            put,
            ADDS,
        ),
        MemoryTool(
            "memory_list",
            f"Your stored values, newest first; {_KEPT}.",
            {"tool": _TEXT, "after": _TEXT},
            (),
            list_values,
        ),
        MemoryTool("memory_forget", "Delete a stored value.", {PATH: _TEXT}, (PATH,), forget, DESTROYS),
        MemoryTool(
            "memory_import",
            f"Store a local file as text, JSON or base64, {_KEPT}.",
            {"file": _TEXT, "base64": _FLAG},
            ("file",),
            import_file,
            ADDS,
        ),
        MemoryTool(
            "memory_export",
            "Write a stored value to a local file; base64 decodes it.",
            {PATH: _TEXT, "file": _TEXT, "base64": _FLAG, "overwrite": _FLAG},
            (PATH, "file"),
            export_file,
            DESTROYS,
        ),
    )
}

SLUGS: Final = frozenset({QUERY, RUN, "memory_edit", "memory_put", "memory_import", PRUNED_SLUG})
"""The slugs of paths of values that the gateway's own tools made, or that were pruned from a conversation."""

_NEED_ROOTS: Final = frozenset({"memory_import", "memory_export"})
_UNITS: Final = ((86_400, "day"), (3600, "hour"), (60, "minute"), (1, "second"))


def own_tools(
    policy: MemoryToolsPolicy, lifetime: float, *, has_sql: bool = False, has_run: bool = False
) -> Mapping[str, MemoryTool]:
    """Return the tools that the configuration admits, by name, without `memory_run`.

    `lifetime` is how many seconds after its last use a value is kept. `has_sql`: the extra `sql` is installed.
    `has_run`: `memory_run` is served beside them.
    """
    scale, unit = next(((scale, unit) for scale, unit in _UNITS if lifetime >= 2 * scale), _UNITS[-1])
    amount = f"{lifetime / scale:.3g}"
    kept = f"kept {amount} {unit}{'' if amount == '1' else 's'} after last use"
    tools = {**TOOLS, QUERY: with_sql(TOOLS[QUERY], has_run=has_run)} if has_sql else TOOLS
    return {
        name: replace(tool, description=tool.description.replace(_KEPT, kept))
        for name, tool in tools.items()
        if policy.admits(name) and (policy.roots or name not in _NEED_ROOTS)
    }


def accepts_sql(tools: Mapping[str, MemoryTool]) -> bool:
    """Whether `memory_query` is served and accepts SQL."""
    return QUERY in tools and "sql" in tools[QUERY].properties


def explain_unserved(name: str, policy: MemoryToolsPolicy, elsewhere: str = "") -> str | None:
    """Return why a memory tool is not served, and the key that serves it; None for other names.

    `elsewhere` is a sentence that says where all memory tools are served, if this client never gets all of them.
    """
    if name not in (*TOOLS, RUN):
        return None
    if elsewhere:
        reason = elsewhere
    elif name == RUN and policy.admits(name):
        reason = "It needs the extra `code`: pip install 'mcp-mirror[code]'."
    elif name in _NEED_ROOTS and policy.admits(name):
        reason = "It needs folders in `memory_tools.roots` of the gateway's configuration."
    elif replace(policy, deny=()).admits(name) and not policy.admits(name):
        reason = "`memory_tools.deny` in the gateway's configuration excludes it."
    elif policy.allow is not None:
        reason = "`memory_tools.allow` in the gateway's configuration does not name it."
    else:
        reason = "`memory_tools: all` in the gateway's configuration serves it."
    return f"Unknown tool {name!r}: this memory tool is not served. {reason}"
