"""Finds the value of a memory path as models write it, and returns whole values to the model."""

from itertools import islice
from typing import Final, TypeVar

import msgspec

from mcp_mirror.core.amounts import format_bytes
from mcp_mirror.core.results.capture import MAX_MEDIA_BYTES
from mcp_mirror.core.results.media import Media, find_base64, read_media
from mcp_mirror.core.value_sizes import count_value_tokens
from mcp_mirror.errors import RefusalReason, ToolError
from mcp_mirror.memory.lookup_errors import ErrorContent
from mcp_mirror.memory.memory import Memory
from mcp_mirror.memory.tools.tool import Content, ToolInput
from mcp_mirror.memory.value_lookup import FoundValue, look_up_described
from mcp_mirror.observability.audit import AuditRecord, Event
from mcp_mirror.paths import MemoryPath, parse_wrapped_path, read_notice_path, strip_wrapping, unwrap_result
from mcp_mirror.payload.json_spans import Miss, items, kind_at, locate, members_with_offsets, trim
from mcp_mirror.query.shape import Size
from mcp_mirror.security.flows import format_labels
from mcp_mirror.security.sanitize import as_json_string
from mcp_mirror.settings.labels import MODEL
from mcp_mirror.system.fair_threads import run_fairly
from mcp_mirror.types import Buffer, Descriptor, JsonToken, Segments
from mcp_mirror.workers.query_jobs import Query

Answer = TypeVar("Answer")

PATH: Final = "memory_path"
"""The name of the argument with a memory path."""
_TEXT_START: Final = b'{"type":"text","text":'
_MAX_BLOCKS: Final = 100
"""Items of an array that may be content blocks."""
_KEY_BYTES: Final = 80
"""Bytes of a key that an error quotes."""
_MAX_LISTED_KEYS: Final = 8
"""Keys that an error quotes."""
_MAX_INDEXED_BYTES: Final = 1 << 20
"""The largest object whose keys an error lists."""


async def retrieve(call: ToolInput) -> Content:
    """Return a value: media as their content block, also within an array; a text as it is; others as JSON text."""
    found_value = await find_argument(call)
    is_small = len(found_value.blob) <= MAX_MEDIA_BYTES
    if is_small and (blocks := await run_fairly(call.namespace, _list_blocks, found_value)):
        texts = [block[1] for block in blocks if block[0] == _TEXT_START]
        tokens = sum(count_value_tokens(text, call.memory.estimate) for text in texts)
        if tokens <= call.memory.mirror.answer_budget:
            return blocks
    if not (is_small and is_media(found_value)):
        tokens, budget = count_value_tokens(found_value.blob, call.memory.estimate), call.memory.mirror.answer_budget
        if tokens > budget:
            size = format_bytes(await count_shown_bytes(call, found_value))
            raise ToolError(
                f"{found_value.quoted_path} is {found_value.kind} of {size}, "
                f"about {tokens:,} tokens; answers are limited to {budget:,} (`mirror.answer_budget`). "
                f"{_advise(found_value)}"
            )
    if found_value.kind == "binary" and is_small:
        return ((found_value.blob,),)
    return (_build_text_block(encode_json_string(found_value)),)


def _list_blocks(found_value: FoundValue) -> Content:
    """Return the content blocks of an array with media, or the picture whose base64 a path names; else none."""
    blob, span = found_value.blob, trim(found_value.blob)
    if found_value.kind == "text":
        media = find_base64(blob, span) if found_value.path.tokens[-1:] in (("data",), ("blob",)) else None
        is_picture = media is not None and (media.media_type or "").startswith("image/")
        return (_build_picture(media),) if media and is_picture else ()
    first = list(islice(items(blob, span), _MAX_BLOCKS + 1)) if found_value.kind == "array" else []
    parts = [memoryview(blob)[part.start : part.stop] for part in first]
    if len(parts) > _MAX_BLOCKS or not any(map(read_media, parts)):
        return ()
    return tuple((part,) if read_media(part) else _build_text_block(_encode_item(part)) for part in parts)


def _build_picture(media: Media) -> Segments:
    kind = msgspec.json.encode(media.media_type)
    return (b'{"type":"image","mimeType":', kind, b',"data":"', media.encoded, b'"}')


def _encode_item(item: Buffer) -> Buffer:
    return item if kind_at(item, 0) == "text" else msgspec.json.encode(str(item, "utf-8"))


def _build_text_block(text: Buffer) -> Segments:
    """Return a block with a text, which is a JSON string."""
    return (_TEXT_START, text, b"}")


async def count_shown_bytes(call: ToolInput, found_value: FoundValue) -> int:
    """Return the bytes of a value: of a text without quotes and escapes, of any other value as JSON text."""
    if found_value.kind != "text":
        return len(found_value.blob)
    if not found_value.path.tokens and (known := found_value.descriptor.text_size) is not None:
        return known
    return await query_value(call, found_value, Size())


async def query_value(
    call: ToolInput, found_value: FoundValue, query: Query[Answer], cost: int | None = None
) -> Answer:
    """Run a query on a value: inline, in a thread or in a worker process; see `QueryRunner.run`."""
    memory = call.memory
    principal, seconds = call.namespace, memory.tools.timeout
    return await memory.services.queries.run(found_value.blob, found_value.file, query, seconds, principal, cost=cost)


def is_media(found_value: FoundValue) -> bool:
    """Whether a model sees the value as media, so that the token budget does not apply."""
    return found_value.kind == "binary" and isinstance(locate(found_value.blob, ("resource", "text")), Miss)


def encode_json_string(found_value: FoundValue) -> Buffer:
    """Return a value as a JSON string: a text unchanged, other values as a string of their JSON text."""
    return found_value.blob if found_value.kind == "text" else msgspec.json.encode(str(found_value.blob, "utf-8"))


async def find_argument(call: ToolInput, to: str = MODEL) -> FoundValue:
    """Return the value that a call's `memory_path` names; see `find_value`."""
    return await find_value(call.memory, call.namespace, call.arguments.text(PATH), call.tool, to)


async def find_value(memory: Memory, namespace: str, text: str, tool: str, to: str | None = MODEL) -> FoundValue:
    """Return the value of a path and write the audit record of the access by a tool or method.

    `to` is the destination for the flow policy; None: the program that embeds the gateway, which may read everything.

    Raises:
        FlowError: The flow policy refuses this destination; the value was not read.
        ToolError: The path has no value; the message names the nearest paths or keys.
    """
    path = read_path(text) or memory.services.writer.notices.find(namespace, unwrap_result(text))
    known = await memory.store.describe(namespace, path.base, will_read=True) if path else None
    if path and known and to:
        memory.guard(namespace, tool).admit({path.base: known}, to)
    labels = memory.flows.read_labels(known) if isinstance(known, Descriptor) else None

    def write_audit(event: Event, outcome: str, size: int = 0) -> None:
        named_path, named_labels = str(path) if path else None, {} if labels is None else format_labels(labels)
        memory.audit.write(AuditRecord(event, namespace, tool, outcome, named_path, named_labels, size))

    if path is None or known is None:
        write_audit("refusal", RefusalReason.UNKNOWN_PATH)
        raise await memory.unknown_path_error(namespace, strip_wrapping(text))
    include_keys = labels is None or to in (None, MODEL) or memory.flows.may_show(labels)
    content = ErrorContent(include_keys, memory.can_query)
    try:
        found_value = await look_up_described(memory.store, memory.services.scanner, namespace, path, known, content)
    except ToolError as error:
        if error.reason is RefusalReason.UNKNOWN_PATH:
            write_audit("refusal", RefusalReason.UNKNOWN_PATH)
        raise
    write_audit("read", "ok", len(found_value.blob))
    memory.trace.inputs[str(found_value.path)] = found_value.producer
    return found_value.without_index()


def read_path(text: str) -> MemoryPath | None:
    """Return the path in a text as models write it, such as in quotes or as a whole notice; None without one."""
    text = unwrap_result(text)
    return parse_wrapped_path(text) or read_notice_path(text.strip())


def _advise(found_value: FoundValue) -> str:
    """The next step for a value that is too large to return."""
    if found_value.kind == "object" and len(found_value.blob) > _MAX_INDEXED_BYTES:
        advice = 'take a part (path + "/key"), or '
    elif found_value.kind == "object":
        found = members_with_offsets(found_value.blob, trim(found_value.blob))
        listed = [member for _, member in islice(found, _MAX_LISTED_KEYS)]
        keys: list[JsonToken] = [member.key if found_value.preview else at for at, member in enumerate(listed)]
        parts = ", ".join(as_json_string(str(MemoryPath("", (key,))), _KEY_BYTES) for key in keys)
        advice = f"take a part (path + one of {parts}), or "
    elif found_value.kind == "array":
        advice = 'take one item (path + "/0"), or '
    else:
        advice = ""
    return f"Pass the path to the tool that needs the value: {advice}use the path itself as that tool's argument."
