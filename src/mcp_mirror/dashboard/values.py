"""Stored values for the page: the list with its filters, the facts of one value, its parts, its bytes, its deletion.

Foreign, unknown and deleted paths give the same error. Each read of a value writes an audit record.
"""

import re
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

import anyio.to_thread
import msgspec

from mcp_mirror.callers import split_namespace
from mcp_mirror.core.results.media import read_media
from mcp_mirror.core.results.preview import describe_media
from mcp_mirror.dashboard.previews import MAX_ROWS, PartQuery, peek_raster_type, rebuild_notice
from mcp_mirror.dashboard.services import DashboardServices, Viewer
from mcp_mirror.errors import FlowError, MirrorError, RefusalReason, ToolError
from mcp_mirror.memory.flow_guard import FlowGuard
from mcp_mirror.memory.lookup_errors import ErrorContent, unknown_path_error
from mcp_mirror.memory.tools.files import encode_file
from mcp_mirror.memory.tools.lookup import read_path
from mcp_mirror.memory.value_lookup import FoundValue, look_up_described
from mcp_mirror.observability.audit import AuditRecord
from mcp_mirror.paths import MemoryPath, slug_of, strip_wrapping, tool_slug
from mcp_mirror.query.shape import Shape, Size
from mcp_mirror.query.windows import Budget
from mcp_mirror.security.flows import format_labels
from mcp_mirror.settings.labels import MODEL
from mcp_mirror.stores.base import Tombstone
from mcp_mirror.tokens import expected_estimator
from mcp_mirror.types import Descriptor
from mcp_mirror.workers.query_jobs import Query

_AUDIT_NAME: Final = "dashboard"
"""The name in place of a tool in audit records."""
PAGE: Final = 100
"""Values of one page."""

_SCANNED: Final = 2_000
"""Values that one request compares with its filters. The page continues with the next request."""
_READ_AT_ONCE: Final = 200
"""Values that the store reads between two turns of the event loop, which waits while another thread computes."""
_MAX_ITEMS: Final = 50
"""Inputs or labels of one value."""
_SHAPE: Final = Budget(tokens=1 << 20, characters=20_000, estimate=len)
_UNWRITTEN: Final = (
    "The gateway requires an audit record for each read and deletion, and could not write one. Try again later."
)
_EXTENSIONS: Final[Mapping[str, str]] = {
    "image/png": ".png",
    "image/jpeg": ".jpg",
    "image/gif": ".gif",
    "image/webp": ".webp",
}


class ForbiddenError(MirrorError):
    """The viewer may not read this; the message says why."""


class ValueFilter(msgspec.Struct, frozen=True):
    """The filters of the list; empty and None: no filter."""

    search: str = ""
    """Part of a path, tool, upstream, media type or label; case is ignored."""
    kind: str = ""
    tool: str = ""
    smallest: int | None = None
    """Bytes."""
    largest: int | None = None

    @property
    def is_empty(self) -> bool:
        """Whether every value passes."""
        return not (self.search or self.kind) and self.smallest is None and self.largest is None

    def admits(self, value: Descriptor) -> bool:
        """Whether a value passes; the store applies `tool`."""
        if self.kind and value.kind != self.kind:
            return False
        size = value.shown_size
        if (self.smallest is not None and size < self.smallest) or (self.largest is not None and size > self.largest):
            return False
        if not self.search:
            return True
        source = value.provenance
        texts = (value.base, source.tool, source.upstream, value.media_type or "", *value.labels.values())
        wanted = self.search.casefold()
        return any(wanted in text.casefold() for text in texts)


class Values(msgspec.Struct, frozen=True):
    """The values of one namespace, as a viewer sees them.

    Methods that read a value raise `ForbiddenError` if the viewer may not read it, and `ToolError` if its path has no
    value.
    """

    services: DashboardServices
    viewer: Viewer
    namespace: str

    async def list_page(self, wanted: ValueFilter, after: str | None) -> Mapping[str, Any]:
        """Return a page of the values that pass a filter, the newest first: `values`, `next` and `searched`.

        `after` is the `next` of the previous page, which the last one does not have; ToolError if its value has been
        deleted. `searched` is the number of values that were compared with the filter.
        """
        path = read_path(wanted.search) if after is None and wanted.search else None
        exact = await self.services.store.describe(self.namespace, path.base) if path else None
        if isinstance(exact, Descriptor):  # the search is the whole path of a value
            return {"values": [self._describe(exact)], "next": None, "searched": 1}
        shown: list[Descriptor] = []
        searched = 0
        has_more = False
        async for value in self._walk(wanted, after):
            if len(shown) == PAGE or searched == _SCANNED:
                has_more = True
                break
            searched, after = searched + 1, value.base
            if wanted.admits(self._redact(value)):
                shown.append(value)
        return {
            "values": [self._describe(value) for value in shown],
            "next": after if has_more else None,
            "searched": searched,
        }

    async def _walk(self, wanted: ValueFilter, after: str | None) -> AsyncIterator[Descriptor]:
        """The values of the filter's tool, the newest first, after the value with a base."""
        limit = PAGE + 1 if wanted.is_empty else _READ_AT_ONCE
        slug = tool_slug(wanted.tool) if wanted.tool else ""
        is_complete = False
        while not is_complete:
            try:
                found = await self.services.store.list(self.namespace, after=after, slug=slug, limit=limit)
            except LookupError:
                message = "The last value of the previous page has been deleted. Begin at the first page."
                raise ToolError(message) from None
            is_complete = len(found) < limit
            for value in found:
                after = value.base
                yield value

    async def describe(self, text: str) -> Mapping[str, Any]:
        """Return the facts of a value; with its shape if the viewer may read it."""
        path = await self._parse(text)
        known = await self.services.store.describe(self.namespace, path.base)
        if isinstance(known, Descriptor) and (refusal := self._explain_hidden(known)):
            return {**self._describe(known), "selected": str(path), "hidden": refusal}
        found = await self._find(text)
        shape = await self._run(found, Shape(_SHAPE)) if found.kind != "binary" else None
        media = read_media(found.blob) if found.kind == "binary" else None
        return {
            **self._describe(found.descriptor),
            "selected": str(found.path),
            "selected_kind": found.kind,
            "selected_bytes": await self._run(found, Size()) if found.kind == "text" else len(found.blob),
            "shape": shape,
            "media": describe_media(media) if media else None,
            "is_image": peek_raster_type(media) is not None,
        }

    async def read_part(self, text: str, offset: int, limit: int) -> Mapping[str, Any]:
        """Return a part of a value; see `PartQuery`."""
        found = await self._find(text)
        part: Mapping[str, Any] = await self._run(found, PartQuery(max(offset, 0), min(max(limit, 1), MAX_ROWS)))
        return part

    async def open_image(self, text: str) -> tuple[str, Iterator[bytes]]:
        """Return the media type and the bytes of a raster image; ToolError for other values and damaged ones."""
        found = await self._find(text)
        media_type = peek_raster_type(read_media(found.blob)) if found.kind == "binary" else None
        if media_type is None:
            raise ToolError("The value is not a PNG, JPEG, GIF or WebP image of up to 20 MiB. Download it instead.")
        return media_type, await _open_file(found)

    async def write_notice(self, text: str) -> str:
        """Return the notice that a model read in place of a value, by the present configuration."""
        found = await self._find(str(MemoryPath((await self._parse(text)).base)))
        mirror = self.services.config.mirror
        estimate = expected_estimator(mirror.provider)
        try:
            return await anyio.to_thread.run_sync(rebuild_notice, found.descriptor, found.blob, mirror, estimate)
        except ValueError:  # a key with half of a surrogate pair
            raise ToolError("The notice of this value cannot be written. Open the value instead.") from None

    async def open_download(self, text: str) -> tuple[str, Iterator[bytes]]:
        """Return a safe file name and the bytes of a value, media decoded; ToolError if they cannot be."""
        found = await self._find(text)
        return _name_file(found), await _open_file(found)

    async def forget(self, text: str) -> str:
        """Delete a value and return its base.

        Raises:
            ForbiddenError: The value belongs to another principal, or the required audit record cannot be written.
            ToolError: The path has no value, or it names a part of one.
        """
        path = await self._parse(text)
        if not self.viewer.may_read(self.namespace):
            raise ForbiddenError("Only an operator who may read the values of others can delete them.")
        if path.tokens:
            raise ToolError(f'Only a whole value can be deleted. Give "{path.base}".')
        if not await self.services.audit.admit(self._record("call", "begun", path.base, 0)):
            raise ForbiddenError(_UNWRITTEN)
        if not await self.services.store.delete(self.namespace, path.base):
            raise await unknown_path_error(self.services.store, self.namespace, path.base)
        self.services.audit.write(self._record("call", "forgotten", path.base, 0))
        self.services.on_change(self.namespace)
        return path.base

    def _describe(self, value: Descriptor) -> dict[str, Any]:
        source, inputs = value.provenance, value.provenance.inputs[:_MAX_ITEMS]
        if not self.viewer.may_read(self.namespace):  # the paths contain keys of the values
            inputs = tuple(dict.fromkeys(path.partition("/")[0] for path in inputs))
        return {
            "path": value.base,
            "tool": source.tool,
            "upstream": source.upstream,
            "inputs": inputs,
            "kind": value.kind,
            "media_type": self._redact(value).media_type,
            "bytes": value.shown_size,
            "tokens": value.tokens,
            "created": value.created,
            "expires": value.expires,
            "labels": dict([*value.labels.items()][:_MAX_ITEMS]),
            "companion": value.companion,
            "preview": value.preview,
            "model_sees": self._may_show(value),
        }

    def _redact(self, value: Descriptor) -> Descriptor:
        """The facts of a value; without its media type, an upstream's text, if the flow policy hides the value."""
        is_shown = self.viewer.reads_hidden or self._may_show(value)
        return value if is_shown else msgspec.structs.replace(value, media_type=None)

    def _may_show(self, value: Descriptor) -> bool:
        flows = self.services.read_flows()
        return flows.may_show(flows.read_labels(value))

    def _explain_hidden(self, value: Descriptor) -> str | None:
        """Why the viewer may not read a value; None if the viewer may."""
        if not self.viewer.may_read(self.namespace):
            return (
                "The value belongs to another principal. `dashboard.operators_read_values` would let operators read it."
            )
        if not self.viewer.reads_hidden and not self._may_show(value):
            return (
                "The flow policy hides this value from the model, and a model could read this page with the same "
                "token. `mcp-mirror dashboard` or `mcp-mirror values show`, on the gateway's machine, shows it."
            )
        return None

    async def _parse(self, text: str) -> MemoryPath:
        if path := read_path(text):
            return path
        raise await unknown_path_error(self.services.store, self.namespace, strip_wrapping(text))

    async def _find(self, text: str) -> FoundValue:
        """Return the value of a path, after its audit record is written."""
        path = await self._parse(text)
        services = self.services
        known = await services.store.describe(self.namespace, path.base, will_read=True)
        if isinstance(known, Descriptor) and (refusal := self._explain_hidden(known)):
            self._refuse(known)
            raise ForbiddenError(refusal)
        content = ErrorContent(isinstance(known, Tombstone) or self.viewer.may_read(self.namespace))
        try:
            found = known and await look_up_described(
                services.store, services.scanner, self.namespace, path, known, content
            )
            if not found:
                raise await unknown_path_error(services.store, self.namespace, str(path))
        except ToolError as error:
            if error.reason is RefusalReason.UNKNOWN_PATH:
                services.audit.write(self._record("refusal", RefusalReason.UNKNOWN_PATH, str(path), 0))
            raise
        record = self._record("read", "ok", str(path), len(found.blob), found.descriptor)
        if not await services.audit.admit(record):
            raise ForbiddenError(_UNWRITTEN)
        if not services.audit.is_required:
            services.audit.write(record)
        return found

    def _refuse(self, known: Descriptor) -> None:
        """Write the audit record of a read that is refused."""
        if not self.viewer.may_read(self.namespace):
            self.services.audit.write(self._record("refusal", "not your value", known.base, known.size, known))
            return
        guard = FlowGuard(self.services.read_flows(), self.viewer.namespace, _AUDIT_NAME, self.services.audit)
        with suppress(FlowError):
            guard.admit({known.base: known}, MODEL)

    def _record(self, event: Any, outcome: str, path: str, size: int, known: Descriptor | None = None) -> AuditRecord:
        flows = self.services.read_flows()
        labels = format_labels(flows.read_labels(known)) if known else {}
        issuer, name = split_namespace(self.namespace)
        detail = {} if self.namespace == self.viewer.namespace else {"owner": name, "owner_issuer": issuer}
        return AuditRecord(event, self.viewer.namespace, _AUDIT_NAME, outcome, path, labels, size, detail)

    async def _run(self, found: FoundValue, query: Query[Any]) -> Any:
        services, seconds = self.services, self.services.config.memory_tools.timeout
        try:
            return await services.queries.run(found.blob, found.file, query, seconds, self.viewer.namespace)
        except ValueError:  # a key with half of a surrogate pair
            raise ToolError("This value cannot be shown in parts. Download it instead.") from None


async def _open_file(found: FoundValue) -> Iterator[bytes]:
    """Return the bytes of a value, of which media are decoded twice: errors in the middle come before the response."""
    if found.kind == "binary":
        await anyio.to_thread.run_sync(lambda: deque(encode_file(found, from_base64=False), maxlen=0))
    return encode_file(found, from_base64=False)


def _name_file(found: FoundValue) -> str:
    """A file name of ASCII letters, digits, _, - and a dot."""
    if found.kind == "binary":
        ending = _EXTENSIONS.get(peek_raster_type(read_media(found.blob)) or "", ".bin")
    else:
        ending = ".txt" if found.kind == "text" else ".json"
    base = found.path.base
    slug, unique = slug_of(base), base[-12:]
    last = re.sub(r"[^A-Za-z0-9_-]", "_", str(found.path.tokens[-1]))[:40] if found.path.tokens else ""
    return f"{slug}-{unique}{f'-{last}' if last else ''}{ending}"
