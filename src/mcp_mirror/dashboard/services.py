"""The objects that the dashboard works on, and viewers: the people behind requests, and what each of them may see."""

import json
from collections.abc import Callable
from typing import Final

import msgspec

from mcp_mirror.callers import LOCAL, name_principal
from mcp_mirror.observability.audit import Audit
from mcp_mirror.security.flows import Flows
from mcp_mirror.security.sanitize import strip_invisible
from mcp_mirror.settings.policies import Config
from mcp_mirror.settings.store import StorePolicy
from mcp_mirror.stores.base import Store
from mcp_mirror.workers.frames import FrameScanner
from mcp_mirror.workers.queries import QueryRunner

VIEWER_KEY: Final = "mcp_mirror.viewer"
"""The entry of an ASGI scope with the viewer of the request."""


class DashboardServices(msgspec.Struct, frozen=True):
    """A store and the objects that read it."""

    store: Store
    scanner: FrameScanner
    queries: QueryRunner
    config: Config
    """The configuration at the start."""
    limits: StorePolicy
    read_flows: Callable[[], Flows]
    """Returns the current flow policy."""
    audit: Audit
    on_change: Callable[[str], None] = lambda _namespace: None
    """Called with a namespace after one of its values was deleted."""


class Viewer(msgspec.Struct, frozen=True):
    """A person who uses the dashboard."""

    namespace: str
    is_operator: bool = False
    """The person sees the calls and the metadata of all namespaces."""
    reads_others: bool = False
    """An operator who may also read the values of others."""
    reads_hidden: bool = False
    """The flow policy does not apply: the person can read the store's files anyway."""

    def may_read(self, namespace: str) -> bool:
        """Whether the viewer may read values, arguments and notices of a namespace."""
        return namespace == self.namespace or (self.is_operator and self.reads_others)


def describe_principal(namespace: str) -> str:
    """Return the owner of a namespace for people: the name of the principal with its issuer, unless that is a token."""
    if namespace == LOCAL:
        return "local user"
    name = name_principal(namespace)
    issuer = "token" if name == namespace else json.loads(namespace)[0]
    return strip_invisible(name if issuer == "token" else f"{name} ({issuer})", 120)
