"""Finds the memory paths in the arguments of a call, and fits the arguments to its tool.

To fit them is to replace the paths by values, to validate, and to correct what has only one reading.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, Final

import anyio.lowlevel
import msgspec

from mcp_mirror.core.catalog import Catalog, CatalogEntry
from mcp_mirror.core.conversion import MisfitError, Resolved, has_type
from mcp_mirror.core.replies import ToolResult, append_text, count_reply_bytes
from mcp_mirror.core.resolve import (
    Forms,
    Pointer,
    Pointers,
    ReplacedSpan,
    TypesAt,
    explain_strings,
    find_corrections,
    find_cut_texts,
    find_embedded_bases,
    find_refused_text,
    measure_substitution,
    open_texts,
    substitute_pointers,
    unwrap_pointer,
)
from mcp_mirror.core.schemas.accepted_types import types_along, types_at
from mcp_mirror.core.schemas.argument_faults import ArgumentFault
from mcp_mirror.core.schemas.references import Schema
from mcp_mirror.errors import ArgumentsError, StoreError, ToolError
from mcp_mirror.gateway.call import Call
from mcp_mirror.gateway.gateway import Gateway
from mcp_mirror.memory.path_advice import PathAdvice, advise_query
from mcp_mirror.memory.tools.table import QUERY
from mcp_mirror.memory.value_lookup import look_up
from mcp_mirror.paths import MemoryPath, has_candidates
from mcp_mirror.payload.json_spans import kind_at, members, spans_by_key, trim
from mcp_mirror.security.sanitize import as_json_string
from mcp_mirror.settings.labels import Labels
from mcp_mirror.system.fair_threads import run_fairly
from mcp_mirror.system.slices import run_by_parts, run_by_size
from mcp_mirror.types import Descriptor, Location, Segments, Span

_logger = logging.getLogger(__name__)

SEARCHED_BYTES: Final = 1 << 20
"""Bytes of arguments in which possible paths are searched here. The scanner searches larger ones at once."""
VALIDATED_BYTES: Final = 1 << 18
"""Arguments up to this size are validated against the tool's schema."""
_PARSED_HERE: Final = 1 << 20
"""Bytes of the largest text that is parsed in this process, in about 5 ms."""
_MAX_PATH_BYTES: Final = 1200
"""Bytes of a path that an error proposes: whole, with escapes."""
_MAX_EXPLAINED: Final = 1 << 20
"""Bytes of arguments that the log explains."""
_PRUNED: Final = (
    "These arguments are the stub of a call whose arguments were pruned. Write the arguments; for a large one give its "
    "path: the `memory_path` of the stub, a slash and the name of the argument."
)
_EMBEDDED: Final = (
    'Note: {name} has the path "{base}" within other text, so the tool got this text and not the value. To pass the '
    "value, give only the path."
)
_COPIED: Final = (
    '{name} has lines of a preview, which are cut ("..."), and not the whole value. To pass the whole value, call '
    'again with {name}: "{path}".'
)
_MAX_NAME: Final = 80
"""Bytes of the name of an argument in a note."""
_MAX_NAMESPACES: Final = 1_000
"""Namespaces whose slugs of other processes are remembered."""
_CORRECT: Final = "Correct them and call again."


class PointerFinder:
    """Finds the memory paths in the arguments of calls."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._foreign_slugs: dict[str, frozenset[str]] = {}
        """Slugs of paths that other processes with the same store made, by namespace."""

    async def find(self, call: Call, entry: CatalogEntry, catalog: Catalog) -> tuple[Call, Pointers]:
        """Return the call, with arguments in place of their JSON texts if these contain paths, and its pointers.

        Raises:
            ToolError: A text was copied from a preview where that is cut; the message names the path of the value. Or
                the arguments as a whole were pruned.
        """
        pointers: Pointers = ()
        is_searched_here = len(call.arguments) <= SEARCHED_BYTES
        if not is_searched_here or has_candidates(call.arguments):
            call, pointers = await self._find_paths(call, entry, catalog)
        else:
            self.log_strings(call, entry, catalog.slugs)
        if is_searched_here and call.script is None:
            self._refuse_copied_preview(call, pointers)
        return call, pointers

    async def _find_paths(self, call: Call, entry: CatalogEntry, catalog: Catalog) -> tuple[Call, Pointers]:
        given, foreign = call.arguments, self._foreign_slugs.get(call.namespace)
        known = call.trace.path_slugs = catalog.slugs | foreign if foreign else catalog.slugs
        if len(given) <= SEARCHED_BYTES:  # arguments in place of their JSON texts where these contain paths
            opened = await run_by_parts(
                given, open_texts, given, known, types_at(entry.schema), principal=call.namespace
            )
            call = call if opened is given else replace(call, arguments=opened)
        pointers, known = await self._scan(call, catalog, known)
        call.trace.path_slugs = known
        self.log_strings(call, entry, known)
        if any(isinstance(pointer, Pointer) and not pointer.location for pointer in pointers):
            raise ToolError(_PRUNED)
        return call, pointers

    async def _scan(self, call: Call, catalog: Catalog, known: frozenset[str]) -> tuple[Pointers, frozenset[str]]:
        """Return the pointers, also those to values that other processes with the same store made, and all slugs."""
        services = self._gateway.services
        scan, most = services.scanner.find, services.limits.traffic.max_pointers
        pointers = await scan(call.arguments, known, most, call.namespace)
        added = frozenset[str]()
        if _may_have_foreign_path(call, pointers):
            with suppress(StoreError):  # every use of a path will report it
                added = await services.writer.store.slugs(call.namespace) - known
        if not added:
            return pointers, known
        if len(self._foreign_slugs) >= _MAX_NAMESPACES:
            self._foreign_slugs.clear()
        known = known | added
        self._foreign_slugs[call.namespace] = known - catalog.slugs
        return await scan(call.arguments, known, most, call.namespace), known

    def _refuse_copied_preview(self, call: Call, pointers: Pointers) -> None:
        """Refuse a text that was copied from a preview where that is cut: the tool would not get the whole value."""
        notices = self._gateway.services.writer.notices
        replaced = {pointer.location for pointer in pointers if isinstance(pointer, Pointer)}
        for location, text in find_cut_texts(call.arguments):
            if location not in replaced and (path := notices.find_preview(call.namespace, text)):
                key = next(token for token in reversed(location) if isinstance(token, str))
                name = as_json_string(key, _MAX_NAME)
                raise ToolError(_COPIED.format(name=name, path=path))

    async def name_embedded_path(self, call: Call, reply: ToolResult) -> ToolResult:
        """Say below a result that an argument had a path within a longer text: the tool got the path as text."""
        known = call.trace.path_slugs
        if known is None or len(call.arguments) > SEARCHED_BYTES:
            return reply
        for location, base in find_embedded_bases(call.arguments, known):
            with suppress(StoreError):
                if isinstance(await self._gateway.services.writer.store.describe(call.namespace, base), Descriptor):
                    name = as_json_string(str(location[0]), _MAX_NAME)
                    note = _EMBEDDED.format(name=name, base=base)
                    size = count_reply_bytes(reply)
                    return await run_by_size(size, append_text, reply, note, principal=call.namespace)
        return reply

    def log_strings(self, call: Call, entry: CatalogEntry, slugs: frozenset[str]) -> None:
        """Log why each string of the arguments is or is not a memory path; name only arguments of the schema."""
        if not _logger.isEnabledFor(logging.DEBUG):
            return
        if len(call.arguments) > _MAX_EXPLAINED:
            _logger.debug("arguments of tool=%s are too large to explain", entry.name)
            return
        explained = explain_strings(call.arguments, slugs)
        for location, path, reason in explained:
            is_declared = location and location[0] in entry.schema.get("properties", {})
            name = location[0] if is_declared else "(unnamed)"
            path_hash = self._gateway.path_hasher.hash_path(path) if path else "-"
            _logger.debug("argument of tool=%s in %s: path=%s, %s", entry.name, name, path_hash, reason)
        if not explained:
            _logger.debug("arguments of tool=%s: no string resembles a memory path", entry.name)


def _may_have_foreign_path(call: Call, pointers: Pointers) -> bool:
    """Whether a candidate in the arguments may be a path with a slug that this process does not know."""
    if pointers:
        return any(isinstance(pointer, Pointer) and not pointer.is_known for pointer in pointers)
    return len(call.arguments) <= SEARCHED_BYTES


class CallInputs(msgspec.Struct, frozen=True):
    """The stored values that go into a call."""

    pointers: Pointers
    """The memory paths in the arguments, and the escaped ones."""
    values: Mapping[Pointer, Resolved]
    """The stored values that pointers in the arguments name."""
    labels: Labels
    """The joined flow labels of the values."""
    preview: bool
    """The model may see parts of all values, and thus of what the upstream makes of them."""


class ArgumentFitter(msgspec.Struct, frozen=True):
    """Fits the arguments of one call to its tool."""

    gateway: Gateway
    call: Call
    entry: CatalogEntry
    inputs: CallInputs

    async def fit(self) -> Segments:
        """Replace the pointers in the arguments by their values, and validate the arguments.

        Raises:
            ToolError: The arguments do not fit; the message names the path of a value that does, if there is one.
        """
        try:
            return await self._substitute_and_validate()
        except ToolError as error:
            advised = None
            if self._may_quote and self.call.script is None:
                with suppress(StoreError):
                    advised = await self._advise(error)
            raise advised or error from None

    def hide_values(self, error: ArgumentsError) -> ToolError:
        """Return the error of a function that does not accept its arguments, without values that are hidden."""
        return error if self._may_quote else self._build_misfit_error()

    @property
    def _may_quote(self) -> bool:
        """Whether an error may quote the arguments: they contain no value whose parts the model may not see."""
        is_literal = not self.inputs.values and self.call.script is None
        return is_literal or (self.inputs.preview and self.gateway.state.flows.may_show(self.inputs.labels))

    def _build_misfit_error(self, faults: Sequence[ArgumentFault] = ()) -> ToolError:
        """Return the error of arguments that do not fit the tool; without faults, it quotes no value."""
        named = "; ".join(map(str, faults)) or "the value of a memory path does not match the tool's schema"
        return ToolError(f"The arguments do not fit tool {self.entry.name!r}: {named}. {_CORRECT}")

    async def _substitute_and_validate(self) -> Segments:
        """Replace pointers by their values and validate the result against the tool's own schema.

        If the arguments are not valid, they are corrected where the schema allows only one reading
        (`find_corrections`).
        """
        arguments, pointers, values = self.call.arguments, self.inputs.pointers, self.inputs.values
        sent: Segments = (arguments,)
        types_of = types_at(self.entry.schema)
        if pointers:
            pointers, values, sent = await self._substitute_as_meant()
        if not (faults := await self._find_faults(sent)):
            return sent
        corrections = await run_by_parts(
            arguments, find_corrections, arguments, pointers, types_of, principal=self.call.namespace
        )
        if corrections:
            replaced = tuple(sorted((*pointers, *corrections), key=lambda item: item.span.start))
            corrected = await self._substitute(replaced, values)
            if not (left := await self._find_faults(corrected)):
                return corrected
            faults = faults if _were_null(left, faults) else left
        raise self._build_misfit_error(faults if self._may_quote else ())

    async def _substitute_as_meant(self) -> tuple[Pointers, Mapping[Pointer, Resolved], Segments]:
        """Replace pointers by their values; if one does not fit and another reading does, replace that.

        The other reading is the pointer without the array around it (`unwrap_pointer`), or a member of its value
        (`_find_key_of_argument`). Returns the pointers and values that fit, and the arguments with the values.
        """
        pointers, values, types_of = self.inputs.pointers, self.inputs.values, types_at(self.entry.schema)
        while True:
            try:
                return pointers, values, await self._substitute(pointers, values)
            except MisfitError as misfit:
                await anyio.lowlevel.checkpoint()  # as many pointers may not fit as a call can have
                size, arguments = len(self.call.arguments), self.call.arguments
                unwrapped = await run_by_size(
                    size, unwrap_pointer, arguments, pointers, misfit, types_of, principal=self.call.namespace
                )
                if unwrapped:
                    item, array = unwrapped
                    pointers = tuple(array if pointer == item else pointer for pointer in pointers)
                    values = {array if pointer == item else pointer: value for pointer, value in values.items()}
                elif member := await self._find_key_of_argument(misfit):
                    at = misfit.location
                    values = {pointer: member if pointer.location == at else value for pointer, value in values.items()}
                else:
                    raise

    async def _substitute(self, replaced: tuple[ReplacedSpan, ...], values: Mapping[Pointer, Resolved]) -> Segments:
        """Replace pointers by their values, which may need to be parsed or quoted."""
        arguments, types_of = self.call.arguments, types_at(self.entry.schema)
        converted = await self._convert_large_texts(replaced, values, types_of)
        size = measure_substitution(replaced, values)
        sent = await run_by_size(
            size, substitute_pointers, arguments, replaced, values, types_of, converted, principal=self.call.namespace
        )
        limit = self.gateway.services.limits.max_message_bytes
        if (total := sum(map(len, sent))) > limit:  # a call can name a large value many times
            raise ToolError(
                f"The arguments would have {total:,} bytes with their values; the limit is {limit:,} "
                "(`limits.max_message_bytes`). Pass fewer or smaller values."
            )
        return sent

    async def _convert_large_texts(
        self, replaced: tuple[ReplacedSpan, ...], values: Mapping[Pointer, Resolved], types_of: TypesAt
    ) -> Forms:
        """Convert the large texts that their arguments do not accept; parsing them here would lock the interpreter."""
        converted: dict[tuple[MemoryPath, frozenset[str]], Segments] = {}
        for pointer in replaced:
            if not isinstance(pointer, Pointer) or (value := values.get(pointer)) is None:
                continue
            if value.kind != "text" or len(value.blob) <= _PARSED_HERE:
                continue
            wanted = types_of(pointer.location)
            key = value.path, wanted
            if key in converted or not wanted or has_type(value, wanted):
                continue
            form = await self.gateway.services.scanner.convert(value, wanted, self.call.namespace)
            if form is None:
                raise MisfitError(value, wanted, pointer.location)
            converted[key] = form
        return converted

    async def _find_key_of_argument(self, misfit: MisfitError) -> Resolved | None:
        """Return the member of an object that has the argument's name, if it fits and the object does not.

        Models pass the path of the whole object on to an argument such as `rows`.
        """
        name = misfit.location[-1]
        if "object" not in misfit.own or not isinstance(name, str):
            return None
        services = self.gateway.services
        store, scanner = services.writer.store, services.scanner
        with suppress(ToolError, StoreError):  # it has no such key
            found = await look_up(store, scanner, self.call.namespace, misfit.path.child(name))
            if found is not None and has_type(found, misfit.wanted):
                return found
        return None

    async def _find_faults(self, arguments: Segments) -> tuple[ArgumentFault, ...]:
        """Return the faults of the arguments; none if they are valid, or if the upstream validates large ones."""
        if sum(map(len, arguments)) > VALIDATED_BYTES:
            return ()
        workers = self.gateway.schema_workers
        return await workers.validate(self.entry.inspected, b"".join(arguments), self.call.namespace)

    async def _advise(self, error: ToolError) -> ToolError | None:
        """Return an error that names the path of a value that fits; None if none is found."""
        arguments, pointers, types_of = self.call.arguments, self.inputs.pointers, types_at(self.entry.schema)
        if isinstance(error, MisfitError):
            *above, last = error.location
            if isinstance(last, int) and error.own & types_of(tuple(above)):
                return ToolError(f"{error.cause} Pass the path itself, not an array with the path.")
            location = error.location
            advice = msgspec.structs.replace(
                self._prepare_advice(location, error.wanted), is_named=lambda key: bool(types_of((*location, key)))
            )
            in_array = _advise_array(error, types_of((*location, 0)))
            if in_array and "object" not in error.own:
                return in_array
            near = await advice.find_near(error.path)
            return _name_path(error.cause, near) if near else in_array or await self._advise_query(error)
        cause = str(error).removesuffix(_CORRECT).rstrip()
        if container := await run_fairly(self.call.namespace, _find_refused_container, pointers, self.entry.schema):
            return ToolError(f"{cause} Pass the path itself, not an {container} with the path.")
        refused = await run_by_parts(
            arguments, find_refused_text, arguments, pointers, types_of, principal=self.call.namespace
        )
        if refused is None:
            return None
        advice = self._prepare_advice(refused.location, refused.wanted)
        meant = await advice.find_meant(refused.text, may_be_any=not refused.is_item)
        return _name_path(cause, meant) if meant else None

    def _prepare_advice(self, location: Location, wanted: frozenset[str]) -> PathAdvice:
        """Return what looks for a value that fits an argument."""
        services, flows, accepts = self.gateway.services, self.gateway.state.flows, partial(self._accepts, location)
        return PathAdvice(services.writer, services.scanner, flows, self.call.namespace, wanted, accepts)

    async def _accepts(self, location: Location, value: Segments) -> bool:
        """Whether a value has no fault at a location of the arguments, whatever they are elsewhere."""
        before, after = b"", b""
        for token in reversed(location):
            before = (b"[" if isinstance(token, int) else b"{%b:" % json.dumps(token).encode()) + before
            after += b"]" if isinstance(token, int) else b"}"
        faults = await self._find_faults((before, *value, after))
        place = tuple("0" if isinstance(token, int) else token for token in location)
        return all(fault.place[: len(place)] != place for fault in faults)

    async def _advise_query(self, error: MisfitError) -> ToolError | None:
        """Return an error with a query that turns the text of the path into a fitting value; None without one."""
        values = self.inputs.values.values()
        texts = (one.blob for one in values if one.path == error.path and one.kind in ("text", "binary"))
        text = next(texts, None)
        if text is None or QUERY not in self.call.own_tools:
            return None
        find = partial(advise_query, text, error.path, error.wanted, has_sql=self.gateway.services.sql is not None)
        advised = await run_by_size(len(text), find, principal=self.call.namespace)
        return ToolError(f"{error.cause} {advised}") if advised else None


def _advise_array(error: MisfitError, item_types: frozenset[str]) -> ToolError | None:
    """Return an error with the path in an array, if the argument accepts an array of such values; else None."""
    if "array" not in error.wanted or not error.own & item_types:
        return None
    path = as_json_string(str(error.path), _MAX_PATH_BYTES)
    return ToolError(f"{error.cause} Pass an array with the path: [{path}].")


def _find_refused_container(pointers: Pointers, schema: Schema) -> str | None:
    """Whether a path is in an `object` or `array` where the tool accepts none: models give the key of the path too."""
    locations = [pointer.location for pointer in pointers if isinstance(pointer, Pointer)]
    find_types = types_along(schema)
    for location in locations:
        for token, types in zip(location[1:], islice(find_types(location), 1, None), strict=False):
            container = "array" if isinstance(token, int) else "object"
            if types and container not in types:
                return container
    return None


def _were_null(left: Sequence[ArgumentFault], before: Sequence[ArgumentFault]) -> bool:
    """Whether a member that is missing after the corrections was null, and a fault reports that."""
    null = {fault.place for fault in before if fault.is_null}
    return any(fault.missing is not None and (*fault.place, fault.missing) in null for fault in left)


def _name_path(cause: str, path: MemoryPath) -> ToolError:
    """An error about an argument that does not fit, with a path that does."""
    return ToolError(f"{cause} Pass a path that fits, such as {as_json_string(str(path), _MAX_PATH_BYTES)}.")


async def select_header_arguments(entry: CatalogEntry, arguments: Segments, principal: str) -> dict[str, Any]:
    """Return the arguments that the schema mirrors into HTTP headers, parsed, as a tree of their locations."""

    def select() -> dict[str, Any]:
        selected: dict[str, Any] = {}
        text = b"".join(arguments)
        opened: dict[tuple[str, ...], Mapping[str, Span]] = {}

        def open_at(location: tuple[str, ...]) -> Mapping[str, Span]:
            """The members of the object at a location, which is read once for all its members."""
            if location not in opened:
                span = open_at(location[:-1]).get(location[-1]) if location else trim(text)
                is_object = span is not None and kind_at(text, span.start) == "object"
                opened[location] = spans_by_key(members(text, span)) if span is not None and is_object else {}
            return opened[location]

        for location in entry.inspected.headers:
            *above, last = location
            if (span := open_at(tuple(above)).get(last)) is not None:
                with suppress(ValueError, RecursionError):  # such as an integer of 5,000 digits, too long for a header
                    value, tree = json.loads(text[span.start : span.stop]), selected
                    for token in above:
                        tree = tree.setdefault(token, {})
                    tree[last] = value
        return selected

    return await run_by_size(sum(map(len, arguments)), select, principal=principal)
