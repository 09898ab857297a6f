"""Where which keys may stand, and a file's tree as the models read it."""

from collections.abc import Mapping
from typing import Final

from mcp_mirror.config.access import (
    AuthSection,
    IssuerSection,
    OAuthSection,
    TokenSection,
    UpstreamAuthSection,
)
from mcp_mirror.config.flows import (
    AcceptsSection,
    FilesPlaceSection,
    FlowsSection,
    LabelsSection,
    ModelPlaceSection,
)
from mcp_mirror.config.limits import LimitsSection
from mcp_mirror.config.models import (
    ConfigFile,
    ContextSection,
    MemoryToolsSection,
    MirrorSection,
    OverrideSection,
    ServerSection,
    StoreSection,
    ToolsSection,
    UpstreamSection,
)
from mcp_mirror.config.source import Items, Node, Scalar, Table
from mcp_mirror.config.trust import AuditSection, EncryptionSection, LockSection, Section

_MODELS: Final[Mapping[str, type[Section]]] = {
    "": ConfigFile,
    "mirror": MirrorSection,
    "memory_tools": MemoryToolsSection,
    "context": ContextSection,
    "store": StoreSection,
    "store/encryption": EncryptionSection,
    "server": ServerSection,
    "limits": LimitsSection,
    "lock": LockSection,
    "audit": AuditSection,
    "auth": AuthSection,
    "auth/tokens/*": TokenSection,
    "auth/issuers/*": IssuerSection,
    "flows": FlowsSection,
    "flows/model": ModelPlaceSection,
    "flows/model/labels": LabelsSection,
    "flows/model/accepts": AcceptsSection,
    "flows/files": FilesPlaceSection,
    "flows/files/labels": LabelsSection,
    "flows/files/accepts": AcceptsSection,
    "upstreams/*": UpstreamSection,
    "upstreams/*/labels": LabelsSection,
    "upstreams/*/accepts": AcceptsSection,
    "upstreams/*/tools": ToolsSection,
    "upstreams/*/auth": UpstreamAuthSection,
    "upstreams/*/auth/oauth": OAuthSection,
    "upstreams/*/overrides/*": OverrideSection,
}
"""By where they stand; `*` is a name of the user's."""


def keys_at(loc: tuple[str, ...]) -> tuple[str, ...]:
    """The keys that a mapping at `loc` may have; none where names are the user's own."""
    found = (model for at, model in _MODELS.items() if _stands_at(loc, tuple(at.split("/")) if at else ()))
    return next((tuple(model.model_fields) for model in found), ())


def _stands_at(loc: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    return len(loc) == len(pattern) and all(want in ("*", key) for key, want in zip(loc, pattern, strict=True))


def plain(node: Node) -> object:
    """The tree as the models read it: dicts and lists whose leaves are scalars with their places."""
    match node:
        case Scalar():
            return node
        case Items():
            return [plain(item) for item in node.nodes]
        case Table():
            return {key: plain(value) for key, value in node.members.items()}
