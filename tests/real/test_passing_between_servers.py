"""Large results of one real server reach another real server by path, byte for byte."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from mcp_types import TextContent
from notices import path_in

if TYPE_CHECKING:
    from tests.real.conftest import Connect, Connection, NewRepo, Place, RunGit, Serve, Servers, WriteConfig

pytestmark = pytest.mark.xdist_group("real")

MEGABYTE: Final = 1_000_000
SURROGATES: Final = range(0xD800, 0xE000)

Direct = Callable[[str], "Connection"]


def hard_to_carry() -> str:
    """5 MB that hold every character of Unicode, lines of every ending, quotes and backslashes; no newline ends it."""
    every_character = "".join(chr(code) for code in range(sys.maxunicode + 1) if code not in SURROGATES)
    lines = (
        '{"a": "\\"',
        "\\u0041\\\\",
        "'`${x}`'",
        "cr\r",
        "crlf\r\n",
        "lf\n",
        "\u2028\u2029\x85\x0b\x0c",
        "e\u0301\u00e9",
    )
    padding = "".join(f"{number} {lines[number % len(lines)]}" for number in range(60_000))
    return f"{every_character}\n{padding}\n// \u2028 no newline"


@pytest.fixture(scope="module")
def book(place: "Place") -> Path:
    """A file of 5 MB that the filesystem server serves."""
    path = place.notes / "book.txt"
    path.write_bytes(hard_to_carry().encode())
    assert path.stat().st_size > 5 * MEGABYTE
    return path


@pytest.fixture(scope="module")
def diff(direct: Direct, place: "Place") -> str:
    """What the git server says of the whole history."""
    text = direct("git").text("git_diff", repo_path=str(place.repo), target="HEAD~11")
    assert len(text.encode()) > MEGABYTE
    return text


def test_a_large_diff_is_stored_and_written_to_a_file_by_another_server(
    gateway: "Connection", place: "Place", diff: str
) -> None:
    notice = gateway.text("git_diff_mirrored", repo_path=str(place.repo), target="HEAD~11")
    assert len(notice.encode()) < 2048
    path = path_in(notice)
    target = place.notes / "history.diff"
    gateway.content("write_file_mirrored", path=str(target), content=path)
    assert target.read_bytes() == diff.encode()


def test_the_diff_is_the_one_that_git_itself_gives(run_git: "RunGit", place: "Place", diff: str) -> None:
    assert run_git(place.repo, "diff", "--no-color", "HEAD~11").rstrip(b"\n") in diff.encode()


def test_a_large_file_is_stored_as_its_text_and_previewed(gateway: "Connection", book: Path) -> None:
    notice = gateway.text("read_text_file_mirrored", path=str(book))
    assert len(notice.encode()) < 2048
    assert "not the result: text, 5." in notice
    assert "15,004 lines" in notice


@pytest.mark.parametrize("key", ["", "/content"])
def test_a_file_is_copied_by_its_path_to_the_byte(gateway: "Connection", book: Path, place: "Place", key: str) -> None:
    target = place.notes / f"copy{len(key)}.txt"
    path = gateway.store("read_text_file_mirrored", path=str(book))
    gateway.content("write_file_mirrored", path=str(target), content=f"{path}{key}")
    assert target.read_bytes() == book.read_bytes()


def test_a_small_file_is_copied_by_its_path_to_the_byte(gateway: "Connection", place: "Place") -> None:
    source, target = place.notes / "small.py", place.notes / "small copy.py"
    source.write_text('def main():\n    print("caf\u00e9 \U0001f600")\n' * 40)
    shown = gateway.text("read_text_file_mirrored", path=str(source))
    assert source.read_text() in shown
    gateway.content("write_file_mirrored", path=str(target), content=path_in(shown))
    assert target.read_bytes() == source.read_bytes()


def test_a_large_file_is_committed_as_a_message_by_another_server(
    gateway: "Connection", new_repo: "NewRepo", run_git: "RunGit", book: Path
) -> None:
    repo = new_repo()
    run_git(repo, "commit", "--quiet", "--allow-empty", "--message", "first")
    (repo / "staged.txt").write_text("staged", encoding="utf-8")
    path = gateway.store("read_text_file_mirrored", path=str(book))
    gateway.content("git_add_mirrored", repo_path=str(repo), files=["staged.txt"])
    gateway.content("git_commit_mirrored", repo_path=str(repo), message=f"{path}/content")
    assert run_git(repo, "cat-file", "commit", "HEAD").partition(b"\n\n")[2] == book.read_bytes()


def test_a_large_file_goes_through_a_third_server_and_back_to_disk(
    gateway: "Connection", place: "Place", book: Path
) -> None:
    path = gateway.store("read_text_file_mirrored", path=str(book))
    echoed = gateway.store("echo_mirrored", message=f"{path}/content")
    target = place.notes / "echo.txt"
    gateway.content("write_file_mirrored", path=str(target), content=echoed)
    assert target.read_bytes() == b"Echo: " + book.read_bytes()


def test_two_paths_in_one_call_and_one_below_an_array_both_resolve(gateway: "Connection", place: "Place") -> None:
    target = place.notes / "edited.txt"
    target.write_text("one two", encoding="utf-8")
    path = gateway.store("get-structured-content_mirrored", location="New York")
    conditions = gateway.recall(f"{path}/conditions")
    edits = [{"oldText": "two", "newText": f"{path}/conditions"}]
    gateway.content("edit_file_mirrored", path=str(target), edits=edits)
    assert target.read_text(encoding="utf-8") == f"one {conditions}"


def test_an_object_for_a_string_argument_arrives_as_json_text(
    gateway: "Connection", place: "Place", direct: Direct
) -> None:
    path = gateway.store("get-structured-content_mirrored", location="Chicago")
    target = place.notes / "weather.json"
    gateway.content("write_file_mirrored", path=str(target), content=path)
    (block,) = direct("everything").content("get-structured-content", location="Chicago")
    assert isinstance(block, TextContent)
    assert target.read_text(encoding="utf-8") == block.text


def test_a_result_over_the_answer_budget_is_refused_with_the_next_step(gateway: "Connection", book: Path) -> None:
    path = gateway.store("read_text_file_mirrored", path=str(book))
    result = gateway.call("retrieve_final_answer_from_memory", memory_path=f"{path}/content")
    (block,) = result.content
    assert isinstance(block, TextContent)
    assert result.is_error
    assert "answer_budget" in block.text
    assert len(block.text) < 2048


def test_a_path_to_a_missing_key_never_reaches_the_other_server(gateway: "Connection", place: "Place") -> None:
    path = gateway.store("get-structured-content_mirrored", location="Chicago")
    target = place.notes / "never.txt"
    result = gateway.call("write_file_mirrored", path=str(target), content=f"{path}/condition")
    (block,) = result.content
    assert isinstance(block, TextContent)
    assert result.is_error
    assert "conditions" in block.text
    assert not target.exists()


def test_servers_with_the_same_tools_get_prefixes_and_exchange_a_file(
    connect: "Connect", serve: "Serve", servers: "Servers", write_config: "WriteConfig", tmp_path: Path, book: Path
) -> None:
    one = servers["files"]
    archive = one.model_copy(update={"args": [*one.args[:-1], str(tmp_path.resolve())]})
    gateway = connect(serve(write_config({"files": one, "archive": archive})))
    names = {tool.name for tool in gateway.tools()}
    assert {"files_write_file_mirrored", "archive_write_file_mirrored"} <= names
    path = gateway.store("files_read_text_file_mirrored", path=str(book))
    target = tmp_path.resolve() / "book.txt"
    gateway.content("archive_write_file_mirrored", path=str(target), content=f"{path}/content")
    assert target.read_bytes() == book.read_bytes()
