"""The tools that look into a value: what it is, a window on it, and where in it something stands."""

from datetime import UTC, datetime
from typing import Final, TypeVar, cast

from mcp_mirror.core.preview import human_bytes
from mcp_mirror.errors import ToolError
from mcp_mirror.memory.tools.lookup import find_given
from mcp_mirror.memory.tools.tool import Content, ToolInput, text_content
from mcp_mirror.memory.value_lookup import FoundValue
from mcp_mirror.query.grep import Search
from mcp_mirror.query.shape import Shape
from mcp_mirror.query.windows import Unit, Window
from mcp_mirror.security.flows import Flows
from mcp_mirror.security.sanitize import as_json_string, sanitize
from mcp_mirror.types import Descriptor
from mcp_mirror.workers.queries import Query

Answer = TypeVar("Answer")

_PROVENANCE: Final = 600
"""Characters kept for where a value came from."""
_CONTEXT: Final = 20
"""Lines around a hit that are shown at most."""
_HITS: Final = 30
"""Hits that are shown where nothing else is asked for."""
_MOST_HITS: Final = 1000


async def describe(call: ToolInput) -> Content:
    """What a value is, and where it came from."""
    found_value = await find_given(call)
    memory = call.memory
    shape = await ask(call, found_value, Shape(memory.budget.without(_PROVENANCE)))
    tokens = memory.estimate(found_value.blob)
    described = await memory.store.describe(call.namespace, found_value.path.base)
    source = _source(described, memory.flows) if isinstance(described, Descriptor) else ""
    size = human_bytes(len(found_value.blob))
    kind = "binary " if found_value.kind == "binary" else ""
    return text_content(f"{kind}{size}, about {tokens:,} tokens\n{shape}{source}")


def _source(described: Descriptor, flows: Flows) -> str:
    made, labels = described.provenance, flows.labels_of(described)
    inputs = f", given {', '.join(sanitize(one[:200]) for one in made.inputs[:3])}" if made.inputs else ""
    media = f" {as_json_string(described.media_type, 80)}" if described.media_type else ""
    return (
        f"\nfrom {as_json_string(made.tool, 80)} of {made.upstream!r}{media}{inputs}; "
        f"stored {_time(described.created)}, expires {_time(described.expires)}; "
        f"{labels.integrity}, {labels.confidentiality}"
    )


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


async def read(call: ToolInput) -> Content:
    """A window on a value."""
    given = call.given
    limit = given.number("limit") if given.has("limit") else None
    if limit is not None and limit < 1:
        raise ToolError(
            "`limit` must be 1 or more; leave it out for as much as fits. For the end give a negative `offset`."
        )
    by = cast("Unit", given.text("by")) if given.has("by") else None
    window = Window(by, given.number("offset"), limit, call.memory.budget)
    return text_content(await ask(call, await find_given(call), window))


async def grep(call: ToolInput) -> Content:
    """Where in a value a pattern matches."""
    given = call.given
    found_value = await find_given(call)
    search = Search(
        pattern=given.text("pattern"),
        context=min(max(given.number("context"), 0), _CONTEXT),
        offset=max(given.number("offset"), 0),
        limit=min(max(given.number("limit", _HITS), 1), _MOST_HITS),
        budget=call.memory.budget,
        path=str(found_value.path),
    )
    return text_content(await ask(call, found_value, search))


async def ask(call: ToolInput, found_value: FoundValue, query: Query[Answer]) -> Answer:
    """Look into a value, wherever that is best done."""
    memory = call.memory
    return await memory.queries.run(found_value.blob, found_value.file, query, memory.tools.timeout, call.namespace)
