"""Tools that read parts of a value: its description, a window of it, and the matches of a pattern."""

from typing import Final, cast

from mcp_mirror.core.amounts import format_bytes, format_time
from mcp_mirror.core.value_sizes import count_value_tokens
from mcp_mirror.memory.tools.lookup import count_shown_bytes, find_argument, is_media, query_value
from mcp_mirror.memory.tools.tool import Arguments, Content, ToolInput, build_answer_content, build_text_content
from mcp_mirror.query.grep import Search, list_forms
from mcp_mirror.query.lines import measure_pattern
from mcp_mirror.query.shape import Shape
from mcp_mirror.query.windows import Unit, Window
from mcp_mirror.security.sanitize import as_json_string, sanitize
from mcp_mirror.system.slices import has_few_parts
from mcp_mirror.workers.queries import INLINE_BYTES

_PROVENANCE: Final = 600
"""Characters reserved for the origin of the value."""
_MAX_CONTEXT: Final = 20
"""Maximum lines before and after a match."""
_DEFAULT_MATCHES: Final = 30
"""Matches per answer, unless the call sets `limit`."""
_MAX_MATCHES: Final = 1000
_ESCAPE_COST: Final = 8
"""How many times as long it takes to read JSON with many escapes of characters."""
_STEP_COST: Final = 256
"""Bytes that are searched as fast as one step of a pattern is compiled."""


async def describe(call: ToolInput) -> Content:
    """Return the size, shape and origin of a value."""
    found_value = await find_argument(call)
    memory = call.memory
    shape = await query_value(call, found_value, Shape(memory.budget.without(_PROVENANCE)))
    tokens = count_value_tokens(found_value.blob, memory.estimate)
    size = format_bytes(await count_shown_bytes(call, found_value))
    kind = "binary " if is_media(found_value) else ""
    described = found_value.descriptor
    provenance, labels = described.provenance, memory.flows.read_labels(described)
    media = f" {as_json_string(described.media_type, 80)}" if described.media_type else ""
    inputs = f", given {', '.join(sanitize(path[:200]) for path in provenance.inputs[:3])}" if provenance.inputs else ""
    return build_text_content(
        f"{kind}{size}, about {tokens:,} tokens\n{shape}\n"
        f"from {as_json_string(provenance.tool, 80)} of {provenance.upstream!r}{media}{inputs}; "
        f"stored {format_time(described.created)}, expires {format_time(described.expires)}; "
        f"{labels.integrity}, {labels.confidentiality}"
    )


async def read(call: ToolInput) -> Content:
    """Return a window of a value: lines, items, keys or characters."""
    arguments = call.arguments
    limit = _read_limit(arguments)
    by = cast("Unit", arguments.text("by")) if arguments.has("by") else None
    window = Window(by, arguments.number("offset"), limit, call.memory.budget, call.memory.can_query)
    found_value = await find_argument(call)
    cost = len(found_value.blob)
    if found_value.kind != "text" and cost <= INLINE_BYTES and b"\\u" in bytes(found_value.blob):
        cost *= _ESCAPE_COST
    return build_answer_content(await query_value(call, found_value, window, cost))


async def grep(call: ToolInput) -> Content:
    """Return the parts of a value that match a pattern."""
    arguments = call.arguments
    found_value, limit = await find_argument(call), _read_limit(arguments, _DEFAULT_MATCHES)
    ignores_case = arguments.flag("ignore_case") or not arguments.flag("case_sensitive", default=True)
    search = Search(
        pattern=f"(?i){arguments.text('pattern')}" if ignores_case else arguments.text("pattern"),
        context=min(max(arguments.number("context"), 0), _MAX_CONTEXT),
        offset=max(arguments.number("offset"), 0),
        limit=_MAX_MATCHES if limit is None else min(limit, _MAX_MATCHES),
        budget=call.memory.budget,
        path=str(found_value.path),
    )
    # Without a match, it is searched once more in other case, and in other Unicode forms.
    cost = (1 + len(list_forms(search.pattern))) * (
        len(found_value.blob) + _STEP_COST * measure_pattern(search.pattern)
    )
    if found_value.kind != "text" and cost <= INLINE_BYTES and not has_few_parts(found_value.blob):
        cost = INLINE_BYTES + 1  # the location of each match is found through all objects and arrays around it
    return build_answer_content(await query_value(call, found_value, search, cost))


def _read_limit(arguments: Arguments, default: int | None = None) -> int | None:
    """The limit of a call; None for 0 or less, which models write for no limit."""
    limit = arguments.number("limit") if arguments.has("limit") else default
    return None if limit is None or limit <= 0 else limit
