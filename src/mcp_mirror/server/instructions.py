"""The instructions that clients get in the handshake: of the configuration, the gateway and the upstreams."""

from collections.abc import Iterator, Mapping
from typing import Final

from mcp_mirror.callers import Caller
from mcp_mirror.gateway.gateway import Gateway
from mcp_mirror.gateway.tool_search import CALL_TOOL, FIND_TOOLS
from mcp_mirror.memory.tools.table import QUERY, RUN, accepts_sql
from mcp_mirror.memory.tools.tool import MemoryTool
from mcp_mirror.security.pins import Pins
from mcp_mirror.security.sanitize import sanitize_lines
from mcp_mirror.system.slices import finish
from mcp_mirror.upstreams.registry import Upstream, explain_missing

_MAX_INSTRUCTIONS: Final = 3900
"""Characters of the instructions; some clients cut them at 4,096."""
_MAX_UPSTREAM_INSTRUCTIONS: Final = 600
"""Characters of the instructions of one upstream."""
_OWN_INSTRUCTIONS: Final = (
    "Begin with the tool that gets the data. Tools {which} answer with a memory path in place of a large result: give "
    "the next tool the path, or path/key, as its argument."
)
_MEMORY_INSTRUCTIONS: Final = (
    "Results of tools of other servers can be memory paths: give the next tool the path. The tools here work on the "
    "values."
)
_SEARCH_INSTRUCTIONS: Final = (
    f"Most tools are not listed: find one with {FIND_TOOLS}, then call it by the name found with {CALL_TOOL}."
)
_ABOUT_READING: Final = "{tools} only for questions about what a value says."
_ABOUT_WHOLE_VALUES: Final = (
    "Questions that need all rows of a table or all lines of a text (a sum, a count, the largest, a join) are for "
    "{tool}."
)
_ABOUT_EDIT: Final = "memory_edit makes a changed copy, which has a path of its own."


def write_instructions(gateway: Gateway, caller: Caller, configured: str) -> str:
    """Return the instructions of the configuration, the gateway and the upstreams that a caller may see."""
    state, upstreams = gateway.state, gateway.upstreams
    only = gateway.find_only_upstream(caller)
    suffix = "" if caller.upstream else state.config.mirror.suffix
    listing = finish(gateway.listing_for(caller))
    search = _SEARCH_INSTRUCTIONS if listing.is_search else ""
    own = ""
    if not state.config.is_transparent:
        which = f"whose name ends with {suffix}" if suffix else "here"
        has_tools = bool(upstreams.visible_to(caller))
        about_paths = _OWN_INSTRUCTIONS.format(which=which) if has_tools else _MEMORY_INSTRUCTIONS
        own = " ".join((about_paths, *_write_tool_instructions(listing.own_tools)))
    if only is not None:  # its instructions come first, as without the gateway
        own = _join(search, own)
        room = _MAX_INSTRUCTIONS - len(own) - 2
        of_upstream = _read_instructions(only, state.pins, room) or explain_missing([only], caller)
        return _join(_cut(of_upstream, room), own)
    visible = upstreams.visible_to(caller)
    of_upstreams = (_write_upstream_instructions(one, state.pins) for one in visible)
    return _cut(_join(configured, search, own, explain_missing(visible, caller), *of_upstreams), _MAX_INSTRUCTIONS)


def _join(*parts: str) -> str:
    """Return the parts that are not empty as paragraphs."""
    return "\n\n".join(part for part in parts if part)


def _write_tool_instructions(tools: Mapping[str, MemoryTool]) -> Iterator[str]:
    """Yield the instructions for the own tools that a client sees.

    Questions about whole values are for `memory_run`, and without it for SQL: small models that have both answer more
    of them with a script (docs/evaluation/wording.md).
    """
    if "memory_read" in tools:
        names = "memory_read and memory_grep are" if "memory_grep" in tools else "memory_read is"
        yield _ABOUT_READING.format(tools=names)
    if RUN in tools or accepts_sql(tools):
        yield _ABOUT_WHOLE_VALUES.format(tool=RUN if RUN in tools else QUERY)
    if "memory_edit" in tools:
        yield _ABOUT_EDIT


def _write_upstream_instructions(upstream: Upstream, pins: Pins) -> str:
    """Return the instructions of an upstream; empty if it cannot be called, or if they must not be shown.

    While an upstream starts, the instructions of its last run apply: a call waits for it.
    """
    name = upstream.policy.name
    if upstream.status.state == "down":
        return ""
    text = _read_instructions(upstream, pins, _MAX_UPSTREAM_INSTRUCTIONS)
    return f"Server {name}: {_cut(text, _MAX_UPSTREAM_INSTRUCTIONS)}" if text else ""


def _read_instructions(upstream: Upstream, pins: Pins, limit: int) -> str:
    """Return the sanitized instructions of an upstream; empty if it has none, or they must not be shown."""
    instructions = upstream.listing.instructions if upstream.listing else None
    finding = pins.check_instructions(upstream.policy, instructions)
    if (finding and finding.is_blocked) or not upstream.policy.preview or not (text := (instructions or "").strip()):
        return ""
    return sanitize_lines(text, 4 * limit)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 4]} ..."
