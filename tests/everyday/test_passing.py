"""Results of one real server reach another real server by path, byte for byte."""

import base64
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from mcp_types import ImageContent, TextContent
from notices import path_in
from tests.everyday.servers import SOURCE, Place, Server
from tests.real.conftest import Connection

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("everyday")]

_MEDIA: Final = re.compile(r'^"([^"\n]+)" (\w+/\S+),', re.MULTILINE)
Needs = Callable[..., None]


@pytest.fixture
def needs(available: tuple[Server, ...]) -> Needs:
    """Leave a test whose servers are not in this run."""

    def check(*names: str) -> None:
        if absent := set(names) - {server.name for server in available}:
            pytest.skip(f"Runs in `make everyday`, where installed: {', '.join(sorted(absent))}.")

    return check


def test_a_file_becomes_an_observation_and_comes_back(gateway: Connection, through_place: Place, needs: Needs) -> None:
    needs("files", "memory")
    source = gateway.store("read_text_file_mirrored", path=through_place.file("source.py"))
    entity = {"name": "source of the program", "entityType": "file", "observations": [source]}
    gateway.content("create_entities_mirrored", entities=[entity])
    found = gateway.store("open_nodes_mirrored", names=["source of the program"])
    target = Path(through_place.file("observed.py"))
    gateway.content("write_file_mirrored", path=str(target), content=f"{found}/entities/0/observations/0")
    assert target.read_bytes() == SOURCE.encode()


def test_a_picture_read_by_path_has_the_bytes_of_its_file(
    gateway: Connection, through_place: Place, needs: Needs
) -> None:
    needs("files")
    content = gateway.content("read_media_file_mirrored", path=through_place.file("dot.png"))
    notice = next(block.text for block in content if isinstance(block, TextContent))
    target = Path(through_place.file("dot.b64"))
    gateway.content("write_file_mirrored", path=str(target), content=path_in(notice))
    assert base64.b64decode(target.read_bytes()) == Path(through_place.file("dot.png")).read_bytes()


def test_a_screenshot_is_shown_and_its_base64_goes_into_a_file(
    gateway: Connection, through_place: Place, needs: Needs
) -> None:
    needs("files", "playwright")
    gateway.content("browser_navigate_mirrored", url=f"{through_place.url}/page.html")
    content = gateway.content("browser_take_screenshot_mirrored")
    (picture,) = (block for block in content if isinstance(block, ImageContent))
    notice = "\n".join(block.text for block in content if isinstance(block, TextContent))
    ((path, kind),) = _MEDIA.findall(notice)
    assert kind == "image/png"
    target = Path(through_place.file("screenshot.b64"))
    gateway.content("write_file_mirrored", path=str(target), content=path)
    assert target.read_text() == picture.data
    assert base64.b64decode(picture.data).startswith(b"\x89PNG")


def test_a_workbook_is_exported_and_imported_by_path(gateway: Connection, through_place: Place, needs: Needs) -> None:
    needs("excel")
    first, second = through_place.file("first.xlsx"), through_place.file("second.xlsx")
    gateway.content("create_workbook_mirrored", path=first, sheets=["Orders"])
    gateway.content("write_range_mirrored", path=first, sheet="Orders", at="A1", rows=[["a", "b"], [1, 2.5]])
    content = gateway.content("export_workbook_mirrored", path=first)
    notice = "\n".join(block.text for block in content if isinstance(block, TextContent))
    assert all(block.type == "text" for block in content)
    ((path, _),) = _MEDIA.findall(notice)
    gateway.content("import_workbook_mirrored", path=second, content_base64=path)
    assert Path(second).read_bytes() == Path(first).read_bytes()


def test_rows_of_a_database_become_a_sheet(gateway: Connection, through_place: Place, needs: Needs) -> None:
    needs("excel", "duckdb")
    query = "select range as id, 'row ' || range as name, range / 4 as part from range(400)"
    path = gateway.store("execute_query_mirrored", sql=query)
    stored = json.loads(gateway.recall(path))
    place = f"{path}/rows" if isinstance(stored, dict) else f"{path}"
    rows = stored["rows"] if isinstance(stored, dict) else stored
    book = through_place.file("rows.xlsx")
    gateway.content("create_workbook_mirrored", path=book, sheets=["Rows"])
    gateway.content("write_range_mirrored", path=book, sheet="Rows", at="A1", rows=place)
    read = gateway.store("read_range_mirrored", path=book, sheet="Rows", range="A1:C400")
    assert json.loads(gateway.recall(read))["values"] == rows
