"""Calls for the page: the newest ones with their filters, one call, and reasons why paths were not used.

An operator sees the calls of all principals in one list: its cursor has the cursor of each namespace.
"""

import base64
import binascii
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from mcp_mirror.dashboard.services import DashboardServices, Viewer, describe_principal
from mcp_mirror.errors import ToolError
from mcp_mirror.observability.events import CallEvent, read_calls

MAX_PAGE: Final = 100
"""Calls of one page."""

_SCANNED: Final = 2_000
"""Calls that one request compares with its filters."""
_BATCH: Final = 200
_MAX_NAMESPACES: Final = 200
"""Namespaces of one list of all principals."""
_FOREIGN_CURSOR: Final = "The cursor is not one of this list. Begin at the newest calls."
_HIDDEN: Final = "The call belongs to another principal, so its arguments are not shown."


@dataclass(frozen=True, slots=True)
class CallFilter:
    """The filters of the list; empty: no filter."""

    tool: str = ""
    """Part of the tool's name; case is ignored."""
    upstream: str = ""
    outcome: str = ""
    only_why: bool = False
    """Only calls with a refusal, or with a text that resembles a path and was not used as one."""

    def admits(self, event: CallEvent) -> bool:
        """Whether a call passes."""
        if self.outcome and event.outcome != self.outcome:
            return False
        if self.upstream and (event.upstream or "mcp-mirror") != self.upstream:
            return False
        if self.tool and self.tool.casefold() not in event.tool.casefold():
            return False
        return bool(event.why) or not self.only_why


@dataclass(frozen=True, slots=True)
class FoundCall:
    """One call in the log."""

    namespace: str
    cursor: str
    event: CallEvent


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls of some namespaces, as a viewer sees them."""

    services: DashboardServices
    viewer: Viewer
    namespaces: Sequence[str]

    async def list_page(
        self, wanted: CallFilter, before: str | None, after: str | None, limit: int
    ) -> Mapping[str, Any]:
        """Return the calls that pass a filter, the newest first.

        Args:
            wanted: The filter.
            before: The `next` of the previous page; None for the newest calls.
            after: The `newest` of an earlier answer: only later calls.
            limit: The size of the page.

        Returns:
            `calls`, `next` (None on the last page), `newest` (the cursor for later calls) and `searched`.

        Raises:
            ToolError: A cursor is not one of this list.
        """
        older, newer = self._read_cursors(before), self._read_cursors(after)
        newest = dict(newer)
        shown: list[FoundCall] = []
        searched = 0
        has_more = False
        async for one in self._walk(older, newer):
            if not before and one.cursor > newest.get(one.namespace, ""):
                newest[one.namespace] = one.cursor
            if len(shown) == limit or searched == _SCANNED:
                has_more = True
                break
            searched += 1
            older[one.namespace] = one.cursor
            if wanted.admits(one.event):
                shown.append(one)
        return {
            "calls": [self.describe(one) for one in shown],
            "next": _write_cursors(older) if has_more else None,
            "newest": _write_cursors(newest),
            "searched": searched,
        }

    async def find(self, wanted: str) -> Mapping[str, Any]:
        """Return the call with an id.

        Raises:
            ToolError: The log has no such call.
        """
        async for one in self._walk({}, {}):
            if one.event.id == wanted:
                return self.describe(one)
        raise ToolError("The log has no call with this id. It keeps the newest calls; see `events.max_calls`.")

    def describe(self, one: FoundCall) -> dict[str, Any]:
        """Return a call as an object for JSON, without what the viewer may not read."""
        event, may_read = one.event, self.viewer.may_read(one.namespace)
        facts = {
            "id": event.id,
            "principal": one.namespace,
            "principal_name": describe_principal(one.namespace),
            "at": event.at,
            "milliseconds": event.milliseconds,
            "tool": event.tool,
            "upstream": event.upstream,
            "outcome": event.outcome,
            "reason": event.reason,
            "bytes": event.bytes,
            "sent": event.sent,
            "kept_out": event.kept_out,
            "path": event.path,
            "inputs": list(event.inputs),
            "parent": event.parent,
        }
        if not may_read:
            bases = [path.partition("/")[0] for path in event.inputs]
            return {**facts, "hidden": _HIDDEN, "arguments": "", "why": [], "inputs": bases}
        return {**facts, "arguments": event.arguments, "why": [list(each) for each in event.why]}

    async def _walk(self, older: Mapping[str, str], newer: Mapping[str, str]) -> AsyncIterator[FoundCall]:
        """The calls of all namespaces, the newest first, between the cursors of each namespace."""
        batches = {
            name: _Batches(self.services, name, older.get(name), newer.get(name))
            for name in self.namespaces[:_MAX_NAMESPACES]
        }
        while True:
            heads = [head for one in batches.values() if (head := await one.peek())]
            newest = max(heads, key=lambda head: head.event.at, default=None)
            if newest is None:
                return
            batches[newest.namespace].drop()
            yield newest

    def _read_cursors(self, text: str | None) -> dict[str, str]:
        if not text:
            return {}
        try:
            known = msgspec.json.decode(base64.urlsafe_b64decode(text), type=dict[str, str])
        except (msgspec.MsgspecError, binascii.Error, ValueError):
            raise ToolError(_FOREIGN_CURSOR) from None
        return {name: cursor for name, cursor in known.items() if name in self.namespaces}


def _write_cursors(cursors: Mapping[str, str]) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(dict(cursors))).decode()


class _Batches:
    """The calls of one namespace, read in batches."""

    def __init__(self, services: DashboardServices, namespace: str, before: str | None, after: str | None) -> None:
        self._services, self._namespace, self._before, self._after = services, namespace, before, after
        self._read: list[FoundCall] = []
        """The calls of the last batch, the newest last."""
        self._is_complete = False

    async def peek(self) -> FoundCall | None:
        """The newest call that was not dropped; None after the last one."""
        if not self._read and not self._is_complete:
            log, before, after = self._services.store.events, self._before, self._after
            try:
                batch = await read_calls(log, self._namespace, before=before, after=after, limit=_BATCH)
            except ValueError:
                raise ToolError(_FOREIGN_CURSOR) from None
            self._is_complete = len(batch) < _BATCH
            self._read = [FoundCall(self._namespace, cursor, event) for cursor, event in reversed(batch)]
        return self._read[-1] if self._read else None

    def drop(self) -> None:
        self._before = self._read.pop().cursor
