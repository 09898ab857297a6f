"""Ordinary calls of real servers: the gateway's changes to their results, and their costs."""

import json
import os
import re
from collections.abc import Callable
from typing import Any, Final

import pytest
from mcp_types import CallToolResult, TextContent
from notices import path_in
from tests.everyday.conftest import Gateway, NewPlace, Record, Row
from tests.everyday.servers import INSTALLED, Place, Server
from tests.real.conftest import Connection

from mcp_mirror.core.results.preview import MAX_PREVIEW_TOKENS

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("everyday")]

CountTokens = Callable[[str], int]
Direct = Callable[[Server], tuple[Connection, Place]]

LABEL: Final = "Result ends."
UNTOUCHED: Final = 260
"""Tokens up to which a result that is not an object passes as it came: the bound is 300 by the gateway's estimate."""
BESIDE_PATH: Final = 8
"""Tokens that a shown result costs beside its path."""
TEXT_USE: Final = 13
"""Tokens that a shown text costs more: the line about the use of its path."""
CLOSING: Final = 36
"""Tokens of a notice beside its preview and its path: the words around the preview and the closing sentence."""
_CHANGING: Final = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d[:-]\d\d[:-]\d\d(?:[.-]\d+)?Z?|[A-Z][a-z]{2} [A-Z][a-z]{2} \d\d \d{4} \d\d:\d\d:\d\d"
    r"|at \d+:\d\d:\d\d [AP]M|\b[0-9a-f]{40}\b"
)
"""Times and commits, which differ from call to call."""


def normalize(text: str, place: Place) -> str:
    """A text of a server, without what differs between two copies of it."""
    folder = str(place.folder)
    for written in (os.path.relpath(folder), folder, folder.lstrip("/")):  # also relative to the folder of the tests
        text = text.replace(written, "FOLDER")
    return _CHANGING.sub("TIME", text)


def texts_of(result: CallToolResult) -> list[str]:
    return [block.text for block in result.content if isinstance(block, TextContent)]


def read_of(result: CallToolResult) -> str:
    """The text of a result that a model reads, without images and recordings."""
    others = [
        block.model_dump_json(by_alias=True, exclude_none=True)
        for block in result.content
        if block.type in ("resource", "resource_link")
    ]
    return "\n".join((*texts_of(result), *others))


def value_of(result: CallToolResult) -> Any:
    """The value that a result is by the documented rule: the structured content without its wrapper, else the text."""
    texts, structured = texts_of(result), result.structured_content
    if structured is None:
        return texts[0] if len(result.content) == 1 and texts else blocks_of(result)
    members = list(structured.values())
    if len(members) == 1 and _says(texts, blocks_of(result), members[0]) and not _says(texts, [], structured):
        return members[0]
    return structured


def blocks_of(result: CallToolResult) -> list[Any]:
    return [block.model_dump(mode="json", by_alias=True, exclude_none=True) for block in result.content]


def _says(texts: list[str], blocks: list[Any], member: Any) -> bool:
    if blocks and member == blocks:
        return True
    if len(texts) != 1:
        return isinstance(member, list) and len(texts) == len(member) and texts == [_spell(item) for item in member]
    return texts[0] == member or bool(_parsed(texts[0]) == member)


def _spell(item: Any) -> str:
    return item if isinstance(item, str) else json.dumps(item)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def is_object(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, str) and isinstance(_parsed(value), dict))


def check_stored(gateway: Connection, path: str, value: Any, places: tuple[Place, Place]) -> None:
    """What the gateway brings back of a value is what the server itself returned."""
    here, there = places
    if isinstance(value, list) and any(isinstance(item, dict) and "type" in item for item in value):
        for at, block in enumerate(value):
            if block["type"] == "text":
                assert normalize(gateway.recall(f"{path}/{at}"), there) == normalize(block["text"], here)
        return
    found_value = normalize(gateway.recall(path), there)
    if isinstance(value, str):
        assert found_value == normalize(value, here)
    else:
        assert json.loads(found_value) == json.loads(normalize(json.dumps(value, ensure_ascii=False), here))


def test_a_server_has_the_same_tools_through_the_gateway(server: Server, gateway: Connection, direct: Direct) -> None:
    own = {f"{tool.name}_mirrored" for tool in direct(server)[0].tools()}
    assert own <= {tool.name for tool in gateway.tools()}


def test_results_of_ordinary_calls_are_the_same_or_stored_whole(
    server: Server, gateway: Connection, direct: Direct, through_place: Place, count_tokens: CountTokens, record: Record
) -> None:
    connection, place = direct(server)
    row, faults = Row(server.name), []
    for (tool, arguments), (_, theirs) in zip(server.calls(place), server.calls(through_place), strict=True):
        plain = connection.call(tool, **arguments)
        mirrored = gateway.call(f"{tool}_mirrored", **theirs)
        try:
            _compare(row, gateway, (plain, mirrored), (place, through_place), count_tokens)
        except AssertionError as fault:
            faults.append(f"{tool} {str(arguments)[:200]}: {fault}")
    record(row)
    assert not faults, "\n\n".join(faults)


def _compare(
    row: Row,
    gateway: Connection,
    results: tuple[CallToolResult, CallToolResult],
    places: tuple[Place, Place],
    count_tokens: CountTokens,
) -> None:
    plain, mirrored = results
    here, there = places
    original, read = normalize(read_of(plain), here), normalize(read_of(mirrored), there)
    direct, through = count_tokens(original), count_tokens(read)
    row.calls += 1
    row.direct += direct
    row.through += through
    assert mirrored.is_error == plain.is_error
    if plain.is_error:
        row.errors += 1
        assert read == original or _names_the_same_argument(original, read)
    elif normalize(json.dumps(blocks_of(mirrored)), there) == normalize(json.dumps(blocks_of(plain)), here):
        row.same += 1
        assert _normal(mirrored.structured_content, there) == _normal(plain.structured_content, here)
    else:
        path = path_in(read_of(mirrored))
        is_shown = any(LABEL in text for text in texts_of(mirrored))
        row.shown += is_shown
        row.stored += not is_shown
        assert is_object(value_of(plain)) or direct > UNTOUCHED or _has_media(plain)
        structured = json.dumps(plain.structured_content, separators=(",", ":"), ensure_ascii=False)
        tokens = max(direct, count_tokens(structured) if plain.structured_content else 0)  # clients show one of them
        most = (
            (tokens if is_shown else MAX_PREVIEW_TOKENS)
            + count_tokens(path)
            + (BESIDE_PATH if is_shown else CLOSING)
            + (TEXT_USE if is_shown and read.startswith(f'"{path}"') else 0)
        )
        assert through <= most + _media_lines(mirrored, count_tokens), f"{tokens} became {through} tokens:\n{read}"
        check_stored(gateway, path, value_of(plain), places)


def _names_the_same_argument(original: str, read: str) -> bool:
    """Whether the gateway refused, by the server's own schema, what the server refuses too."""
    refused = re.search(r'do not fit tool .*: "?(\w+)"?(?: is a required|: )', read)
    return refused is not None and re.search(rf"\b{refused[1]}\b", original) is not None


def _normal(value: Any, place: Place) -> str:
    return normalize(json.dumps(value), place)


def _has_media(result: CallToolResult) -> bool:
    return any(block.type in ("image", "audio", "resource") for block in result.content)


def _media_lines(result: CallToolResult, count_tokens: CountTokens) -> int:
    """Tokens of the lines that name an image or a file: each has a path of its own."""
    lines = [line for line in read_of(result).splitlines() if re.match(r'"[^"]+/\d+(?:/resource/blob)?" \S', line)]
    return sum(map(count_tokens, lines)) + len(lines)


@pytest.fixture
def smallest(missing: Callable[[str], Any]) -> tuple[Server, ...]:
    """The filesystem and the memory server."""
    if not all(path.exists() for server in INSTALLED[:2] for path in server.needs):
        missing("Not installed: Node; `make node` installs it where npm is.")
    return INSTALLED[:2]


@pytest.mark.parametrize(("capture", "most"), [("auto", 1.3), ("large", 1.01)])
def test_ten_small_calls_cost_little_more_than_direct(  # noqa: PLR0917  # fixtures
    capture: str,
    most: float,
    smallest: tuple[Server, ...],
    open_gateway: Gateway,
    new_place: NewPlace,
    connect: Callable[..., Connection],
    count_tokens: CountTokens,
    record_property: Callable[[str, object], None],
) -> None:
    there = new_place()
    gateway = open_gateway(smallest, there, capture=capture)
    ratios: dict[str, float] = {}
    for server in smallest:
        here = new_place()
        alone = connect(server.start(here))
        plain = [alone.call(tool, **arguments) for tool, arguments in server.calls(here)[:10]]
        mirrored = [gateway.call(f"{tool}_mirrored", **arguments) for tool, arguments in server.calls(there)[:10]]
        direct = sum(count_tokens(normalize(read_of(result), here)) for result in plain)
        through = sum(count_tokens(normalize(read_of(result), there)) for result in mirrored)
        ratios[server.name] = through / direct
        summary = f"{direct} tokens direct, {through} through the gateway ({through / direct:.2f})"
        record_property("everyday line", f"Ten small calls of {server.name}, `capture: {capture}`: {summary}.")
    assert all(ratio <= most for ratio in ratios.values()), ratios
