"""Limits of the resources of this process; Windows has none."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def limited(kind: int, soft: int) -> Iterator[int]:
    """Set the soft limit of a resource for the duration of the context. Yields the hard limit, which stays."""
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (soft, before[1]))
    try:
        yield before[1]
    finally:
        resource.setrlimit(kind, before)
