"""Lookups of host names in threads of their own.

The system may look for a name for half a minute, and cannot be interrupted. So each name has a thread, for all that
wait for it: names without an answer delay no other name, and not the end of the process.
"""

import errno
import socket
import threading
from concurrent.futures import Future
from typing import Any, Final

_Query = tuple[str | bytes | None, str | bytes | int | None, int, int, int, int]

_lookups: Final[dict[_Query, Future[Any]]] = {}
"""The lookups in progress."""


def look_up(
    host: str | bytes | None,
    port: str | bytes | int | None,
    family: int = 0,
    kind: int = 0,
    proto: int = 0,
    flags: int = 0,
) -> Future[Any]:
    """Return the lookup in progress, or begin it. Arguments, result and errors are those of `socket.getaddrinfo`.

    Raises:
        OSError: The system refuses another thread.
    """
    query = host, port, family, kind, proto, flags
    if query in _lookups:
        return _lookups[query]
    lookup: Future[Any] = Future()
    lookup.set_running_or_notify_cancel()  # the end of one of those that wait for it does not cancel it

    def run() -> None:
        try:
            found = socket.getaddrinfo(*query)
        except Exception as error:  # noqa: BLE001  # also one about the form of the name
            del _lookups[query]
            lookup.set_exception(error)
        else:
            del _lookups[query]
            lookup.set_result(found)

    _lookups[query] = lookup
    try:
        threading.Thread(target=run, name="mcp-mirror-lookup", daemon=True).start()
    except RuntimeError:
        del _lookups[query]
        raise OSError(errno.EAGAIN, "the system refuses another thread") from None
    return lookup
