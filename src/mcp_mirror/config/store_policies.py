"""From what a configuration says of the store to its policy, and what is wrong there between keys."""

from mcp_mirror.config.models import StoreSection
from mcp_mirror.config.source import Findings, Node, Scalar, Table
from mcp_mirror.settings.policies import EncryptionPolicy, StorePolicy


def check_store(store: Node | None, findings: Findings) -> None:
    """Say what has no effect."""
    keys = store.members if isinstance(store, Table) else {}
    kind, encryption = keys.get("kind"), keys.get("encryption")
    if encryption is not None and isinstance(kind, Scalar) and kind.text == "memory":
        findings.warn(encryption.place, "values in memory are not encrypted; this is for the kinds disk and redis")


def read_store(section: StoreSection, path: str | None) -> StorePolicy:
    """The policy, with its folder where it is."""
    encryption = EncryptionPolicy(**section.encryption.model_dump()) if section.encryption else None
    given = section.model_dump() | {"path": path, "encryption": encryption}
    return StorePolicy(**given)
