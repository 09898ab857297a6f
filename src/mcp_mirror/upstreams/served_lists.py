"""The lists of resources and prompts that clients got over a connection.

A server that connects again may list other resources or prompts without a notification. Clients are notified only if a
list differs from the one that they got: some clients wait forever when a notification comes during a call.
"""

from typing import Final

from mcp_mirror.core.merged_lists import KINDS
from mcp_mirror.errors import RefusedError, UpstreamError
from mcp_mirror.upstreams.listing import PagedList
from mcp_mirror.upstreams.session import UpstreamSession

_MEMBERS: Final = {kind.method: kind.member for kind in KINDS.values()}


class ServedLists:
    """The last list by method, as a hash of its items; None if clients may have got another list, or none."""

    def __init__(self, earlier: "ServedLists | None") -> None:
        """Create an empty record; `earlier` is that of the connection that serves the clients until this one does."""
        self._earlier = earlier
        self._hashes: dict[str, int | None] = {}

    def note_list(self, method: str, page: PagedList) -> None:
        """Note a list that a client gets."""
        self._hashes[method] = _hash_items(page)

    def note_failure(self, method: str, error: UpstreamError | None = None) -> None:
        """Note that a client gets a list without the items of this server: for an error, or before it connects."""
        is_refused = isinstance(error, RefusedError)  # a server that refuses the method has an empty list
        self._hashes[method] = _EMPTY if is_refused else None

    async def find_changed(self, session: UpstreamSession) -> tuple[str, ...]:
        """Read again the lists that clients got, and return `resources` and `prompts` if they differ."""
        served = {**(self._earlier._hashes if self._earlier else {}), **self._hashes}  # noqa: SLF001  # same class
        changed = dict[str, None]()
        for method, known in served.items():
            kind = method.partition("/")[0]
            if kind not in changed and (known is None or known != await _read_hash(session, method)):
                changed[kind] = None
        return () if session.ended.is_set() else tuple(changed)  # the next session compares again


def _hash_items(page: PagedList) -> int:
    return hash(tuple(map(bytes, page.items)))


_EMPTY: Final = _hash_items(PagedList())


async def _read_hash(session: UpstreamSession, method: str) -> int | None:
    """Read a list and return its hash; None if that fails."""
    if not session.offers(method.partition("/")[0]):
        return _EMPTY
    try:
        return _hash_items(await session.list_all(method, _MEMBERS[method]))
    except RefusedError:
        return _EMPTY
    except UpstreamError:
        return None
