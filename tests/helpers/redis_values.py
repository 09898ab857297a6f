"""Values for a store in Redis."""

import time

from mcp_mirror.types import Descriptor, Provenance


def descriptor(base: str, size: int = 1) -> Descriptor:
    """Return the descriptor of a text of some bytes that expires in a minute."""
    now = time.time()
    return Descriptor(base, "text", size, 1, (), now, now + 60, Provenance("up", "tool", "0" * 64))
