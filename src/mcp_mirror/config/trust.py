"""The keys of a configuration that say what is held to what it was, and what is kept from whom."""

from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from mcp_mirror.config.fields import Clear, Flag, Keys, Locking, Secret, Text
from mcp_mirror.settings.policies import AuditPolicy, EncryptionPolicy, LockPolicy

_AUDIT: Final = AuditPolicy()
_ENCRYPTION: Final = EncryptionPolicy()
_LOCK: Final = LockPolicy()


class Section(BaseModel):
    """A mapping whose keys are known."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class EncryptionSection(Section):
    """Values encrypted at rest, on the disk and in Redis, each bound to whose it is and to its path."""

    keys: Keys = Field(
        default=_ENCRYPTION.keys,
        validate_default=True,
        repr=False,
        description="The first encrypts, all decrypt: to change keys, put the new one first. 32 bytes in base64 each "
        "(`openssl rand -base64 32`), or another secret of 32 characters or more that nobody can guess.",
        examples=[["${STORE_KEY}"]],
    )
    enabled: Flag = Field(
        default=_ENCRYPTION.enabled, description="False keeps new values in clear, and still reads encrypted ones."
    )
    clear: Clear = Field(
        default=_ENCRYPTION.clear,
        description="Whether values in clear, such as those from before, are read. refuse: one that somebody else has "
        "written into the store is none.",
    )


class LockSection(Section):
    """The tools' definitions as `mcp-mirror lock` has written them down, and what is done about those that differ."""

    mode: Locking | None = Field(
        default=_LOCK.mode,
        description="What is done with a tool that is not as it was locked, or was not locked at all. block: it is not "
        "served. warn: it is told of. off: nothing, whatever single upstreams say. By default block where the lock "
        "file is there, else off.",
    )
    file: Text | None = Field(
        default=_LOCK.file,
        description="The lock file, relative to this file's folder. By default beside this file, of the same name with "
        "`.lock.json` for its ending.",
        examples=["mirror.lock.json"],
    )


class AuditSection(Section):
    """An audit log: who called, read and was refused what, one JSON object a line."""

    path: Text | None = Field(
        default=_AUDIT.path,
        description="The file it is written to, relative to this file's folder; for this user alone to read where it "
        "is new. By default none is written.",
        examples=["audit.jsonl"],
    )
    required: Flag = Field(
        default=_AUDIT.required,
        description="Whether a call is refused that cannot be written down. Otherwise it is made, and what is lost is "
        "counted and told of in the log.",
    )
    key: Secret | None = Field(
        default=None,
        repr=False,
        description="A secret of 32 characters or more for the hashes that stand for memory paths, so that those of "
        "several gateways and starts can be compared. By default one that this process alone knows.",
        examples=["${AUDIT_KEY}"],
    )
