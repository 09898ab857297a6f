"""The settings of the store: where values are stored, how many, for how long, and how they are encrypted."""

from typing import Annotated, Literal

from msgspec.structs import replace

from mcp_mirror.settings.declarations import (
    INTERNAL,
    REQUIRED,
    SECRET,
    AtLeast,
    BucketAddress,
    Bytes,
    Duration,
    Example,
    FilePath,
    Line,
    RedisAddress,
    Secret,
    Section,
    Whole,
)
from mcp_mirror.settings.limits import PrincipalLimits, find_limits

StoreKind = Literal["memory", "disk", "redis"]
ClearMode = Literal["read", "refuse"]

_SHARES = 4
"""By default, one principal of several stores at most one of these shares."""
_DAY = 86_400.0


class EncryptionPolicy(Section, frozen=True):
    """Encryption of values at rest, on disk and in Redis. Each value is bound to its owner and path."""

    keys: Annotated[
        tuple[Secret, ...], SECRET, REQUIRED, AtLeast(1, "a list of one secret or more"), Example(("${STORE_KEY}",))
    ] = ()
    """The first key encrypts, all keys decrypt: to rotate keys, put the new one first. 32 bytes in base64 each
    (`openssl rand -base64 32`), or another unguessable secret of 32 characters or more."""
    enabled: bool = True
    """False stores new values unencrypted and still reads encrypted ones."""
    clear: ClearMode = "read"
    """Whether unencrypted values, such as older ones, are readable. With refuse, a value that someone else writes into
    the store is not."""


class StorePolicy(Section, frozen=True):
    """Where values are stored, how many, and for how long."""

    kind: Annotated[StoreKind | None, Example("disk")] = None
    """disk: files, which survive the gateway. memory: this process. redis: a Redis or Valkey server, for several
    gateways. Default: disk with stdio, memory over HTTP."""
    path: Annotated[FilePath | None, Example("~/.local/share/mcp-mirror/store")] = None
    """Folder of the disk store, relative to this file's folder. Default: `mcp-mirror/store` in the user's data
    folder."""
    url: Annotated[RedisAddress | None, SECRET, Example("rediss://user:${REDIS_PASSWORD}@redis.example.com:6379/0")] = (
        None
    )
    """Address of the Redis or Valkey server: redis://, rediss:// for TLS, or unix://."""
    prefix: Line = "mcp-mirror:"
    """Prefix of the keys in Redis."""
    blobs: Annotated[BucketAddress | None, Example("s3://my-bucket/mcp-mirror")] = None
    """With redis: a bucket of an S3-compatible server for values over 64 KiB, s3://BUCKET or s3://BUCKET/PREFIX.
    Credentials, region and endpoint come from the environment. Default: all values are in Redis."""
    encryption: EncryptionPolicy | None = None
    """Encryption at rest. Default: none."""
    fsync: bool = True
    """Write a value to the disk before its path is returned. Without, a crash of the machine may lose values; a crash
    of the gateway does not."""
    ttl: Annotated[Duration | None, Example("7d")] = None
    """Time since its last use after which a value expires, in seconds or with s, m, h or d. Default: 7 days on disk,
    else 24 hours."""
    max_value_bytes: Bytes = 2 << 30
    """Bytes of one value."""
    max_bytes: Bytes = 8 << 30
    """Bytes of all values together."""
    max_values: Whole = 100_000
    """Number of all values together."""
    namespace_bytes: Annotated[Bytes | None, Example("1GiB")] = None
    """Bytes of one principal's values. Default: a quarter of `max_bytes` with `auth`, else all of it."""
    namespace_values: Annotated[Whole | None, Example(10_000)] = None
    """Number of one principal's values. Default: a quarter of `max_values` with `auth`, else all of them."""
    principals: Annotated[tuple[PrincipalLimits, ...], INTERNAL] = ()
    """The limits of single principals, from `auth.principals`."""

    def shared(self) -> "StorePolicy":
        """Return the policy for several principals, each with a limit of its own."""
        size, values = self.namespace_bytes, self.namespace_values
        return replace(
            self,
            namespace_bytes=-(-self.max_bytes // _SHARES) if size is None else size,
            namespace_values=-(-self.max_values // _SHARES) if values is None else values,
        )

    @property
    def share_bytes(self) -> int:
        """The limit of one principal's values in bytes."""
        return self.max_bytes if self.namespace_bytes is None else self.namespace_bytes

    @property
    def share_values(self) -> int:
        """The limit of one principal's number of values."""
        return self.max_values if self.namespace_values is None else self.namespace_values

    def for_namespace(self, namespace: str) -> "StorePolicy":
        """Return the policy with the limits of one principal."""
        own = find_limits(self.principals, namespace)
        if own is None:
            return self
        size, values = own.namespace_bytes, own.namespace_values
        return replace(
            self,
            namespace_bytes=self.namespace_bytes if size is None else size,
            namespace_values=self.namespace_values if values is None else values,
        )

    @property
    def lifetime(self) -> float:
        """Seconds since last use after which a value expires."""
        default = 7 * _DAY if self.kind == "disk" else _DAY
        return default if self.ttl is None else self.ttl
