"""The upstreams whose results link to resources, so that a client that follows a link reads from the same upstream.

An upstream need not list the resources that it links to. Other upstreams may answer for them too.
"""

from typing import Final

import msgspec

from mcp_mirror.payload.json_rpc import decode_as
from mcp_mirror.system.fair_map import FairMap
from mcp_mirror.types import Buffer

LINK: Final = b'"resource_link"'
"""The type of a content block that links to a resource; every result with a link contains it."""
MAX_SEARCHED_BYTES: Final = 1 << 16
"""Bytes of a result's content in which links are searched."""
_MAX_LINKS: Final = 10_000
"""Links of all principals that are kept. Above this number the oldest of the principal with the most are dropped."""
_MAX_URI: Final = 2_000
"""Characters."""


class _Block(msgspec.Struct):
    type: str = ""
    uri: str = ""


class LinkedResources:
    """The latest links to resources, by principal and URI."""

    def __init__(self) -> None:
        self._upstreams: FairMap[str] = FairMap(_MAX_LINKS, _MAX_LINKS)

    def note(self, namespace: str, upstream: str, content: Buffer) -> None:
        """Note the links in the content blocks of a result, JSON text."""
        for block in decode_as(content, list[_Block]) or ():
            if block.type != "resource_link" or len(block.uri) > _MAX_URI:
                continue
            self._upstreams.put(namespace, block.uri, upstream)

    def find_upstream(self, namespace: str, uri: str) -> str | None:
        """Return the upstream whose result linked to a URI last; None without one."""
        return self._upstreams.of(namespace).get(uri)
