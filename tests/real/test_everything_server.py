"""The twins of the reference server, which has one tool of every kind, with real calls."""

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import pytest
from mcp_types import EmbeddedResource, ImageContent, ResourceLink, TextContent
from notices import path_in
from samples import sample

if TYPE_CHECKING:
    from tests.real.conftest import Connection

pytestmark = pytest.mark.xdist_group("real")

Direct = Callable[[str], "Connection"]

SMALL: Final[tuple[tuple[str, dict[str, Any], list[type]], ...]] = (
    ("echo", {"message": "a \u2028 \U0001f600 \"quoted\" \\ 'line'\r\n"}, [TextContent]),
    ("get-sum", {"a": 2, "b": 0.5}, [TextContent]),
    ("get-tiny-image", {}, [TextContent, ImageContent, TextContent]),
    ("get-annotated-message", {"messageType": "error"}, [TextContent]),
    ("get-annotated-message", {"messageType": "debug", "includeImage": True}, [TextContent, ImageContent]),
    ("get-resource-links", {"count": 2}, [TextContent, ResourceLink, ResourceLink]),
    ("gzip-file-as-resource", {"data": "data:text/plain,hello", "outputType": "resourceLink"}, [ResourceLink]),
    ("trigger-long-running-operation", {"duration": 1, "steps": 2}, [TextContent]),
)


@pytest.mark.parametrize(
    ("tool", "arguments", "kinds"),
    sample(SMALL, SMALL[::3].__contains__),
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_small_result_passes_through_as_the_server_sends_it(
    tool: str, arguments: dict[str, Any], kinds: list[type], gateway: "Connection", direct: Direct
) -> None:
    content = gateway.content(f"{tool}_mirrored", **arguments)
    if ImageContent in kinds:  # a picture has a path, named below it
        assert path_in(content.pop().text).startswith(tool)  # type: ignore[union-attr]
    assert [type(block) for block in content] == kinds
    assert content == direct("everything").content(tool, **arguments)


def test_a_file_is_named_by_its_path_and_not_shown_as_base64(gateway: "Connection") -> None:
    arguments = {"data": "data:text/plain,hello", "outputType": "resource"}
    (block,) = gateway.content("gzip-file-as-resource_mirrored", **arguments)
    assert isinstance(block, TextContent)
    assert "application/gzip" in block.text
    assert f'"{path_in(block.text)}/resource/blob"' in block.text


def test_a_resource_reference_passes_through_with_its_resource(gateway: "Connection") -> None:
    _, reference, _ = gateway.content("get-resource-reference_mirrored", resourceType="Text", resourceId=2)
    assert isinstance(reference, EmbeddedResource)
    assert str(reference.resource.uri) == "demo://resource/dynamic/text/2"


def test_an_echo_of_a_path_is_an_echo_of_the_value_behind_it(gateway: "Connection") -> None:
    path = gateway.store("get-structured-content_mirrored", location="New York")
    conditions = gateway.recall(f"{path}/conditions")
    assert gateway.text("echo_mirrored", message=f"{path}/conditions") == f"Echo: {conditions}"


def test_an_escaped_path_is_sent_as_the_text_that_it_is(gateway: "Connection") -> None:
    path = gateway.store("get-structured-content_mirrored", location="New York")
    assert gateway.text("echo_mirrored", message=f"literal:{path}") == f"Echo: {path}"


def test_numbers_are_summed_from_paths_and_literals(gateway: "Connection") -> None:
    path = gateway.store("get-structured-content_mirrored", location="Chicago")
    warmth, damp = (json.loads(gateway.recall(f"{path}/{key}")) for key in ("temperature", "humidity"))
    by_path = gateway.text("get-sum_mirrored", a=f"{path}/temperature", b=f"{path}/humidity")
    assert by_path == f"The sum of {warmth} and {damp} is {warmth + damp}."
    beside = gateway.text("get-sum_mirrored", a=f"{path}/temperature", b=1)
    assert beside == f"The sum of {warmth} and 1 is {warmth + 1}."


def test_text_where_a_number_is_wanted_is_refused_with_both_types(gateway: "Connection") -> None:
    path = gateway.store("get-structured-content_mirrored", location="Chicago")
    result = gateway.call("get-sum_mirrored", a=f"{path}/conditions", b=1)
    (block,) = result.content
    assert isinstance(block, TextContent)
    assert result.is_error
    assert "number" in block.text
    assert "text" in block.text


def test_structured_content_is_stored_shown_and_retrieved_by_key(gateway: "Connection", direct: Direct) -> None:
    weather = direct("everything").call("get-structured-content", location="Los Angeles").structured_content
    assert weather is not None
    result = gateway.call("get-structured-content_mirrored", location="Los Angeles")
    (block,) = result.content
    assert isinstance(block, TextContent)
    assert result.structured_content is None
    assert weather["conditions"] in block.text
    path = path_in(block.text)
    assert json.loads(gateway.recall(path)) == weather
    assert {key: gateway.recall(f"{path}/{key}") for key in weather} == {key: str(weather[key]) for key in weather}


def test_an_error_of_the_server_stays_an_error(gateway: "Connection", direct: Direct) -> None:
    arguments = {"data": "data:text/plain,hello", "name": "../x", "outputType": "neither"}
    assert direct("everything").call("gzip-file-as-resource", **arguments).is_error
    assert gateway.call("gzip-file-as-resource_mirrored", **arguments).is_error


def test_a_tool_that_runs_only_as_a_task_returns_its_report(gateway: "Connection") -> None:
    assert "# Research Report: bees" in gateway.text("simulate-research-query_mirrored", topic="bees")


def test_two_slow_calls_run_side_by_side(gateway: "Connection") -> None:
    arguments = {"duration": 4, "steps": 1}
    began = time.monotonic()
    calls = [
        gateway.portal.start_task_soon(gateway.client.call_tool, "trigger-long-running-operation_mirrored", arguments)
        for _ in range(2)
    ]
    assert [call.result(timeout=30).is_error for call in calls] == [False, False]
    assert time.monotonic() - began < 2 * arguments["duration"]
