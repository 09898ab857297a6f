"""Validates arguments whose schema is too much work for the event loop, in processes that are killed in time.

Validation that takes longer than the deadline is not a verdict: the upstream validates such arguments itself.
"""

import hashlib
import json
import logging
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

import msgspec

from mcp_mirror.catalog import Entry
from mcp_mirror.leash import Leash
from mcp_mirror.pool import BusyPoolError, DeadlineError, Pool, PoolError, PoolSize, PreemptedError
from mcp_mirror.schema import Schema
from mcp_mirror.validation import MOST_WORK, Check, compile_check

_logger = logging.getLogger(__name__)

_SIZE: Final = PoolSize(processes=2, per_principal=1, memory=1 << 29)
_DEADLINE: Final = 0.2
"""Seconds that the validation of one call may take, and as many that it may wait for a process."""
_COMPILATION: Final = 2.0
"""Seconds that the compilation of one schema may take."""
_OVERRUNS: Final = 3
"""Deadlines that a schema may miss; after that its arguments are not validated."""
_REMEMBERED: Final = 1000
_COMPILED: Final = 64
"""Schemas that one process keeps compiled."""


class SchemaWorkers:
    """Processes that start when they are first needed."""

    def __init__(self, leash: Leash) -> None:
        self._pool = Pool(leash, _SIZE, _prepare)
        self._overruns: OrderedDict[bytes, int] = OrderedDict()
        """By the digest of a schema."""

    async def validate(self, entry: Entry, arguments: bytes, principal: str) -> str | None:
        """What is wrong with the arguments of a call; None if nothing is, or if they cannot be validated in time.

        Args:
            entry: The tool.
            arguments: A JSON object.
            principal: Who calls: principals take turns.
        """
        if not entry.is_validated:
            return None
        if entry.check is not None and entry.cost is not None and entry.cost.work(arguments) <= MOST_WORK:
            try:
                return entry.check(json.loads(arguments))
            except (ValueError, RecursionError):  # such as an integer of 5,000 digits
                return None
        return await self._validate_apart(entry, arguments, principal)

    async def aclose(self) -> None:
        """End the processes."""
        await self._pool.aclose()

    async def _validate_apart(self, entry: Entry, arguments: bytes, principal: str) -> str | None:
        schema = msgspec.json.encode(entry.schema)
        digest = hashlib.sha256(schema).digest()
        if self._overruns.get(digest, 0) >= _OVERRUNS:
            return None
        try:
            async with self._pool.session(principal, _DEADLINE) as run:
                verdict = await run(_Validation(digest, arguments), _DEADLINE)
                if isinstance(verdict, _Unknown):
                    await run(_Compilation(digest, schema), _COMPILATION)
                    verdict = await run(_Validation(digest, arguments), _DEADLINE)
        except (BusyPoolError, PreemptedError):
            return None
        except PoolError as error:
            self._count_overrun(digest, entry.tool, error)
            return None
        return verdict if isinstance(verdict, str) else None

    def _count_overrun(self, digest: bytes, tool: str, error: PoolError) -> None:
        self._overruns[digest] = self._overruns.pop(digest, 0) + 1
        if len(self._overruns) > _REMEMBERED:
            self._overruns.popitem(last=False)
        if self._overruns[digest] == 1:
            over = f"{1000 * _DEADLINE:g} ms" if isinstance(error, DeadlineError) else f"{_SIZE.memory or 0:,} bytes"
            _logger.warning(
                "Validating the arguments of %r takes more than %s: the upstream validates them.", tool, over
            )


# What runs in the other process.


def _prepare() -> None:
    """Let this module be imported."""


class _Unknown:
    """The process has not compiled the schema."""


_checks: OrderedDict[bytes, Check] = OrderedDict()
"""Compiled schemas by digest, those used last at the end."""


@dataclass(frozen=True, slots=True)
class _Compilation:
    digest: bytes
    schema: bytes

    def __call__(self) -> None:
        """Compile a schema and keep it."""
        schema: Schema = json.loads(self.schema)
        _checks[self.digest] = compile_check(schema)
        if len(_checks) > _COMPILED:
            _checks.popitem(last=False)


@dataclass(frozen=True, slots=True)
class _Validation:
    digest: bytes
    arguments: bytes

    def __call__(self) -> str | _Unknown | None:
        """What is wrong with the arguments."""
        if self.digest not in _checks:
            return _Unknown()
        _checks.move_to_end(self.digest)
        try:
            return _checks[self.digest](json.loads(self.arguments))
        except (ValueError, RecursionError):
            return None
