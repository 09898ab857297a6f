"""Stored values as MCP resources, `memory://<path>`, so that a person can attach one in a client."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from mcp_mirror.core.amounts import format_bytes
from mcp_mirror.core.results.media import locate_content
from mcp_mirror.errors import ToolError
from mcp_mirror.memory.memory import Memory
from mcp_mirror.memory.tools.lookup import encode_json_string, find_value
from mcp_mirror.memory.value_lookup import FoundValue
from mcp_mirror.paths import SCHEME, URI_TEMPLATE, parse_uri
from mcp_mirror.payload.json_rpc import array_of, object_of
from mcp_mirror.payload.json_spans import Miss, locate
from mcp_mirror.payload.spool import Spool
from mcp_mirror.security.flows import Flows
from mcp_mirror.security.sanitize import strip_invisible
from mcp_mirror.system.fair_threads import run_fairly
from mcp_mirror.system.slices import INLINE_BYTES
from mcp_mirror.types import Buffer, Descriptor, Segments, media_type_of

PAGE: Final = 100

MAX_BYTES: Final = 10_000_000
"""The largest value that can be read as a resource. Common clients drop messages over 10 MiB."""

_NAME_BYTES: Final = 120
"""Bytes of a tool's name in a list."""

TEMPLATE: Final[Mapping[str, Any]] = {
    "uriTemplate": URI_TEMPLATE,
    "name": "memory",
    "title": "Stored value",
    "description": "A value in memory, or a part of it, by its memory path.",
}


async def list_values(memory: Memory, namespace: str, after: str | None) -> tuple[list[bytes], str | None]:
    """Return a page of a namespace's values as resources, the newest first, and the `after` of the next page.

    `after` is the base of the last value of a page; None for the first page, and after the last one. ToolError if its
    value has been deleted.
    """
    try:
        stored = await memory.store.list(namespace, after=after, limit=PAGE + 1)
    except LookupError:
        raise ToolError("The value of this cursor has been deleted. List again without a cursor.") from None
    page = stored[:PAGE]
    resources = [msgspec.json.encode(_describe(descriptor, memory.flows)) for descriptor in page]
    return resources, page[-1].base if stored[PAGE:] else None


def _describe(descriptor: Descriptor, flows: Flows) -> dict[str, Any]:
    """A value as a resource, without its type and size if the model may not see the value."""
    created = datetime.fromtimestamp(descriptor.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    source = descriptor.provenance
    tool = strip_invisible(source.tool, _NAME_BYTES)
    listed = {
        "uri": f"{SCHEME}{descriptor.base}",
        "name": descriptor.base,
        "title": tool,
        "description": f"from {tool} of {source.upstream}",
        "annotations": {"lastModified": created},
    }
    if not flows.may_show(flows.read_labels(descriptor)):
        return listed
    size = {} if descriptor.kind == "binary" else {"size": descriptor.shown_size}  # the size of media is not stored
    return {
        **listed,
        "title": f"{tool} ({format_bytes(descriptor.shown_size)})",
        "description": f"{descriptor.kind} {listed['description']}",
        "mimeType": media_type_of(descriptor.kind, descriptor.media_type),
        **size,
    }


async def read_value(memory: Memory, namespace: str, uri: str) -> Mapping[str, Buffer | Segments]:
    """Return the `resources/read` result of the stored value with a URI `memory://<path>`.

    Raises:
        FlowError: The flow policy hides the value from the model.
        ToolError: The path has no value, or the value is larger than 10 MB.
    """
    found_value = await find_value(memory, namespace, str(parse_uri(uri) or ""), "resources/read")
    if (size := len(found_value.blob)) > MAX_BYTES:
        raise ToolError(
            f"{found_value.quoted_path} is {found_value.kind} of {format_bytes(size)}; "
            f"a resource is limited to {format_bytes(MAX_BYTES)}, because clients drop larger messages. "
            "Read a part of the value: add a key or an index to the path."
        )
    members = (
        _build_content(found_value, memory.services.spool)
        if size <= INLINE_BYTES
        else await run_fairly(namespace, _build_content, found_value, memory.services.spool)
    )
    return {"contents": array_of([object_of({"uri": msgspec.json.encode(uri), **members})])}


def _build_content(found_value: FoundValue, spool: Spool) -> dict[str, Buffer]:
    if found_value.kind != "binary":
        text = encode_json_string(found_value)
        if text is not found_value.blob and len(text) > spool.policy.spool_bytes:
            text = spool.map_copy(text)  # a client may read the response slowly, or never
        return {"mimeType": msgspec.json.encode(media_type_of(found_value.kind)), "text": text}
    blob = memoryview(found_value.blob)
    if (found := locate_content(blob)) is None:
        raise ToolError("This binary value has no data or text to show. Pass its path to a tool instead.")
    location, span = found
    media_type = locate(blob, (*location[:-1], "mimeType"))
    content: dict[str, Buffer] = {"text" if location[-1] == "text" else "blob": blob[span.start : span.stop]}
    return (
        content if isinstance(media_type, Miss) else {"mimeType": blob[media_type.start : media_type.stop], **content}
    )
