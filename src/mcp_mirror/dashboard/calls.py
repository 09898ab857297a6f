"""Calls for the page: the newest ones with their filters, one call, and reasons why paths were not used.

An operator sees the calls of all principals in one list: its cursor has the cursor of each namespace.
"""

import base64
from collections.abc import AsyncIterator, Mapping, Sequence
from heapq import heappop, heappush, heapreplace
from typing import Any, Final

import msgspec

from mcp_mirror.callers import OWN_NAME
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
_FACTS: Final = (
    "id", "at", "milliseconds", "tool", "upstream", "outcome", "reason", "bytes", "sent", "kept_out", "path", "parent",
)  # fmt: skip
"""The members of a call that contain nothing of values: every viewer of the call sees them."""


class CallFilter(msgspec.Struct, frozen=True):
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
        if self.upstream and (event.upstream or OWN_NAME) != self.upstream:
            return False
        if self.tool and self.tool.casefold() not in event.tool.casefold():
            return False
        return bool(event.why) or not self.only_why


class FoundCall(msgspec.Struct, frozen=True):
    """One call in the log."""

    namespace: str
    cursor: str
    event: CallEvent


class Calls(msgspec.Struct, frozen=True):
    """The calls of some namespaces, as a viewer sees them."""

    services: DashboardServices
    viewer: Viewer
    namespaces: Sequence[str]

    async def list_page(
        self, wanted: CallFilter, before: str | None, after: str | None, limit: int
    ) -> Mapping[str, Any]:
        """Return the calls that pass a filter, the newest first: `calls`, `next`, `newest` and `searched`.

        `before` is the `next` of the previous page, which the last one does not have; None for the newest calls.
        `after` is the `newest` of an earlier answer: only later calls. A cursor of another list is a ToolError.
        """
        older, newer = self._read_cursors(before), self._read_cursors(after)
        newest = dict(newer)
        shown: list[FoundCall] = []
        searched = 0
        has_more = False
        async for call in self._walk(older, newer):
            if not before and call.cursor > newest.get(call.namespace, ""):
                newest[call.namespace] = call.cursor
            if len(shown) == limit or searched == _SCANNED:
                has_more = True
                break
            searched += 1
            older[call.namespace] = call.cursor
            if wanted.admits(call.event):
                shown.append(call)
        return {
            "calls": [self.describe(call) for call in shown],
            "next": _write_cursors(older) if has_more else None,
            "newest": _write_cursors(newest),
            "searched": searched,
        }

    async def find(self, wanted: str) -> Mapping[str, Any]:
        """Return the call with an id; ToolError if the log has no such call."""
        for namespace in self.namespaces[:_MAX_NAMESPACES]:
            async for call in self._read(namespace, None, None):
                if call.event.id == wanted:
                    return self.describe(call)
        raise ToolError("The log has no call with this id. It keeps the newest calls; see `events.max_calls`.")

    def describe(self, call: FoundCall) -> dict[str, Any]:
        """Return a call as an object for JSON, without what the viewer may not read."""
        event = call.event
        facts = {name: getattr(event, name) for name in _FACTS}
        facts |= {"principal": call.namespace, "principal_name": describe_principal(call.namespace)}
        if self.viewer.may_read(call.namespace):
            return {**facts, "inputs": event.inputs, "arguments": event.arguments, "why": event.why}
        bases = [path.partition("/")[0] for path in event.inputs]
        hidden = "The call belongs to another principal, so its arguments are not shown."
        return {**facts, "inputs": bases, "arguments": "", "why": (), "hidden": hidden}

    async def _walk(self, older: Mapping[str, str], newer: Mapping[str, str]) -> AsyncIterator[FoundCall]:
        """The calls of all namespaces, the newest first, between the cursors of each namespace."""
        heads: list[tuple[float, int, FoundCall, AsyncIterator[FoundCall]]] = []
        for place, name in enumerate(self.namespaces[:_MAX_NAMESPACES]):
            calls = self._read(name, older.get(name), newer.get(name))
            if newest := await anext(calls, None):
                heappush(heads, (-newest.event.at, place, newest, calls))
        while heads:
            _, place, found, calls = heads[0]
            yield found
            if following := await anext(calls, None):
                heapreplace(heads, (-following.event.at, place, following, calls))
            else:
                heappop(heads)

    async def _read(self, namespace: str, before: str | None, after: str | None) -> AsyncIterator[FoundCall]:
        """The calls of one namespace, the newest first, between two cursors."""
        is_complete = False
        while not is_complete:
            log = self.services.store.events
            try:
                batch = await read_calls(log, namespace, before=before, after=after, limit=_BATCH)
            except ValueError:
                raise ToolError(_FOREIGN_CURSOR) from None
            is_complete = len(batch) < _BATCH
            for cursor, event in batch:
                before = cursor
                yield FoundCall(namespace, cursor, event)

    def _read_cursors(self, text: str | None) -> dict[str, str]:
        if not text:
            return {}
        try:
            known = msgspec.json.decode(base64.urlsafe_b64decode(text), type=dict[str, str])
        except ValueError:
            raise ToolError(_FOREIGN_CURSOR) from None
        namespaces = frozenset(self.namespaces)
        return {name: cursor for name, cursor in known.items() if name in namespaces}


def _write_cursors(cursors: Mapping[str, str]) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(dict(cursors))).decode()
