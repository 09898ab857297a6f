"""Stored values as resources, so that a person can attach one in a client: `memory://<path>`."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from mcp_mirror.core.preview import human_bytes
from mcp_mirror.errors import ToolError
from mcp_mirror.memory.tools.lookup import CONTENTS, find, text_of
from mcp_mirror.memory.tools.tool import Memory
from mcp_mirror.memory.value_lookup import FoundValue
from mcp_mirror.paths import SCHEME, URI_TEMPLATE, parse_uri
from mcp_mirror.payload.json_rpc import array_of, object_of
from mcp_mirror.payload.json_spans import Miss, locate
from mcp_mirror.security.flows import Flows
from mcp_mirror.security.sanitize import as_json_string, strip_invisible
from mcp_mirror.types import Buffer, Descriptor, Segments, media_type_of

PAGE: Final = 100
"""Values on one page of a list."""

MAX_BYTES: Final = 10_000_000
"""Largest value that is read as a resource. Common clients drop messages over 10 MiB."""

_PATH: Final = 300
_NAME: Final = 120
"""Bytes of a tool's name that are told."""

TEMPLATE: Final[Mapping[str, Any]] = {
    "uriTemplate": URI_TEMPLATE,
    "name": "memory",
    "title": "Stored value",
    "description": "A value in memory, or a part of it, by its memory path.",
}


async def list_values(memory: Memory, namespace: str, after: str | None) -> tuple[list[bytes], str | None]:
    """A page of the caller's own values, the newest first.

    Args:
        memory: Where they are.
        namespace: Whose they are.
        after: The base of the last value of the page before; None for the first page.

    Returns:
        Resources, JSON text, and the base to go on after; None where there are no more.

    Raises:
        ToolError: The value to go on after is gone.
    """
    try:
        stored = await memory.store.list(namespace, after=after, limit=PAGE + 1)
    except LookupError:
        raise ToolError("The list has changed since this cursor was given. List again without a cursor.") from None
    page = stored[:PAGE]
    return [msgspec.json.encode(_resource(one, memory.flows)) for one in page], page[-1].base if stored[PAGE:] else None


def _resource(descriptor: Descriptor, flows: Flows) -> dict[str, Any]:
    """A value as it is listed; of one that the model may not see, nothing that its upstream wrote."""
    media_type = descriptor.media_type if flows.may_show(flows.labels_of(descriptor)) else None
    made = datetime.fromtimestamp(descriptor.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    source = descriptor.provenance
    tool = strip_invisible(source.tool, _NAME)
    return {
        "uri": f"{SCHEME}{descriptor.base}",
        "name": descriptor.base,
        "title": f"{tool} ({human_bytes(descriptor.size)})",
        "description": f"{descriptor.kind} from {tool} of {source.upstream}",
        "mimeType": media_type_of(descriptor.kind, media_type),
        "size": descriptor.size,
        "annotations": {"lastModified": made},
    }


async def read_value(memory: Memory, namespace: str, uri: str) -> Mapping[str, Buffer | Segments]:
    """The `resources/read` result of a stored value.

    Raises:
        ToolError: There is none under this path, or it is over 10 MB.
    """
    found_value = await find(memory, namespace, str(parse_uri(uri) or ""), "resources/read")
    if (size := len(found_value.blob)) > MAX_BYTES:
        raise ToolError(
            f"{as_json_string(str(found_value.path), _PATH)} is {found_value.kind} of {human_bytes(size)}; "
            f"a resource is limited to {human_bytes(MAX_BYTES)}, since clients drop larger messages. "
            "Read a part of it: add a key or an index."
        )
    content = {"uri": msgspec.json.encode(uri), **_content_of(found_value)}
    return {"contents": array_of([object_of(content)])}


def _content_of(found_value: FoundValue) -> dict[str, Buffer]:
    if found_value.kind != "binary":
        return {"mimeType": msgspec.json.encode(media_type_of(found_value.kind)), "text": text_of(found_value)}
    for member, tokens in CONTENTS:
        if not isinstance(span := locate(found_value.blob, tokens), Miss):
            media = locate(found_value.blob, (*tokens[:-1], "mimeType"))
            blob = memoryview(found_value.blob)
            named: dict[str, Buffer] = {} if isinstance(media, Miss) else {"mimeType": blob[media.start : media.stop]}
            return {**named, member: blob[span.start : span.stop]}
    raise ToolError("This value holds no content that can be shown; give its path to a tool instead.")
