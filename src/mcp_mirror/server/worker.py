"""What a worker process gets from the parent process of several workers on one address."""

import socket
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Worker:
    """One of several worker processes, as its parent process has prepared it."""

    number: int
    listening: socket.socket
    """The worker's own listening socket on the common address."""
    inboxes: tuple[tuple[socket.socket, socket.socket], ...]
    """The reading and the writing end of each worker's Unix socket."""

    @property
    def suffix(self) -> bytes:
        """What the ids of this worker's sessions end with."""
        return b"-w%d" % self.number
