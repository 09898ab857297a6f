"""Steps and texts that several scripts of the oracle share: all pages of a WooCommerce list."""

from collections.abc import Callable, Generator
from typing import Any, Final

from loca_oracle import Ask, Step, ask
from loca_reading import count_objects, path_in, read_json

PAGE: Final = 100
"""Records of a page."""


def collect_pages(name: str, call: str) -> str:
    """Lines of a script for `memory_run` that collect the records of all pages.

    Args:
        name: The variable with the list of all records.
        call: The tool with its arguments, in which `page` is the number of the page.
    """
    return f"""\
{name} = []
page = 1
while True:
    found = await tools.{call}
    {name} += found
    page += 1
    if len(found) < {PAGE}:
        break"""


def load_pages(name: str) -> str:
    """Lines of a program that collect the records of the files `NAME_1.json`, `NAME_2.json` and so on."""
    return f"""\
{name} = []
for name in sorted(glob.glob("{name}_*.json")):
    {name} += json.load(open(name))"""


def read_pages(call: Callable[[int], Ask]) -> Generator[Step, list[str], list[dict[str, Any]]]:
    """Read the records of all pages.

    Args:
        call: The call for a page, counted from 1.
    """
    records: list[dict[str, Any]] = []
    length = PAGE
    while length == PAGE:
        (text,) = yield [call(len(records) // PAGE + 1)]
        found = read_json(text)
        records += found
        length = len(found)
    return records


def store_pages(name: str, call: Callable[[int], Ask]) -> Generator[Step, list[str], None]:
    """Pass the path of each page to a file `NAME_1.json`, `NAME_2.json` and so on.

    Args:
        name: The beginning of the files' names.
        call: The call for a page, counted from 1.
    """
    number, length = 1, PAGE
    while length == PAGE:
        (text,) = yield [call(number)]
        length = count_objects(text)
        yield [ask("filesystem.write_file", path=f"{name}_{number}.json", content=path_in(text))]
        number += 1
