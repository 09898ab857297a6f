"""The gateway as the client that the conformance suite tests: `client.py [--direct] [--http] URL`.

The suite gives the URL of a server of its own, and in the environment the scenario and the protocol version. A gateway
before that server is started and driven as the scenario needs; `--direct` leaves the gateway out, so that errors of the
driver or the SDK can be distinguished from errors of the gateway.
"""

import asyncio
import json
import os
import sys
import tempfile
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from mcp import Client, StdioServerParameters
from mcp.client.context import ClientRequestContext
from mcp.shared.exceptions import MCPDeprecationWarning
from mcp_types import (
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequestFormParams,
    ElicitRequestParams,
    ElicitResult,
    ListRootsResult,
    Root,
    TextContent,
    Tool,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import FileUrl, ValidationError
from signing_in import check, play_signed_in, write_access
from under_test import gateway_command, serve_gateway, write_config

_BOUND: Final = 20.0
"""Seconds that one request may take."""
_OWN: Final = "retrieve_final_answer_from_memory"
"""The gateway's own tool, which the suite's server does not have."""
_EXAMPLES: Final[Mapping[str, Any]] = {
    "string": "text",
    "integer": 5,
    "number": 5,
    "boolean": True,
    "array": [],
    "object": {},
    "null": None,
}


def make_example(schema: Mapping[str, Any]) -> Any:
    """A value that fits a schema: its default, else its first choice, else one of its type, or of the first of them."""
    if "default" in schema:
        return schema["default"]
    if choices := schema.get("enum"):
        return choices[0]
    if alternatives := schema.get("anyOf") or schema.get("oneOf"):
        return alternatives[0].get("const", make_example(alternatives[0]))
    kind = schema.get("type", "string")
    return _EXAMPLES.get(kind[0] if isinstance(kind, list) else kind)


def make_arguments(tool: Tool) -> dict[str, Any]:
    """Arguments that fit a tool: whatever is required."""
    properties: Mapping[str, Any] = tool.input_schema.get("properties", {})
    return {name: make_example(properties.get(name, {})) for name in tool.input_schema.get("required", [])}


async def accept(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:  # noqa: ARG001  # the SDK names it so
    """What a user answers who changes nothing in the form."""
    if not isinstance(params, ElicitRequestFormParams):
        return ElicitResult(action="accept")
    properties: Mapping[str, Any] = params.requested_schema.get("properties", {})
    return ElicitResult(action="accept", content={name: make_example(one) for name, one in properties.items()})


async def answer(
    context: ClientRequestContext,  # noqa: ARG001  # the SDK names it so
    params: CreateMessageRequestParams,  # noqa: ARG001  # the SDK names it so
) -> CreateMessageResult:
    """What the model says."""
    return CreateMessageResult(role="assistant", content=TextContent(text="Fine."), model="none")


async def list_roots(context: ClientRequestContext) -> ListRootsResult:  # noqa: ARG001  # the SDK names it so
    """The one root."""
    return ListRootsResult(roots=[Root(uri=FileUrl("file:///work"), name="work")])


async def list_tools(client: Client) -> None:
    """Only list the tools."""
    await client.list_tools()


async def call(client: Client, tool: str, arguments: dict[str, Any]) -> None:
    """Call a tool of the suite's server, none of which fails.

    Raises:
        RuntimeError: The result is an error.
    """
    result = await client.call_tool(tool, arguments)
    if result.is_error:
        raise RuntimeError(f"{tool} answers: {result.content}")


async def call_tools(client: Client) -> None:
    """Call every tool of the suite's server."""
    for tool in (await client.list_tools()).tools:
        if tool.name != _OWN:
            await call(client, tool.name, make_arguments(tool))


async def call_as_told(client: Client) -> None:
    """Make the calls that the suite names."""
    await client.list_tools()
    for request in json.loads(os.environ["MCP_CONFORMANCE_CONTEXT"])["toolCalls"]:
        await call(client, request["name"], request["arguments"])


async def ask_for_all(client: Client) -> None:
    """Call, read and get all that there is."""
    await call_tools(client)
    for resource in (await client.list_resources()).resources:
        await client.read_resource(str(resource.uri))
    for prompt in (await client.list_prompts()).prompts:
        await client.get_prompt(prompt.name)


async def send_schema_back(client: Client) -> None:
    """Call the echo with the schema that the other tool is listed with."""
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    await call(client, "json_schema_echo", {"schema": tools["json_schema_2020_12_tool"].input_schema})


PLAYS: Final[Mapping[str, Callable[[Client], Awaitable[None]]]] = {
    "initialize": list_tools,
    "json-schema-ref-no-deref": list_tools,
    "http-custom-headers": call_as_told,
    "http-standard-headers": ask_for_all,
    "json-schema-2020-12-preservation": send_schema_back,
}
"""What a scenario needs that does not only need every tool called."""


@asynccontextmanager
async def _reach(url: str, flags: set[str]) -> AsyncIterator[str | StdioServerParameters]:
    if "--direct" in flags:
        yield url
        return
    with tempfile.TemporaryDirectory() as folder:
        config = write_config(Path(folder), {"url": url})
        if "--http" in flags:
            async with serve_gateway(config) as served:
                yield served
        else:
            command, *arguments = gateway_command(config)
            yield StdioServerParameters(command=command, args=arguments)


def connect(server: str | StdioServerParameters, mode: str) -> Client:
    """A client that answers whatever it is asked."""
    return Client(
        server,
        mode=mode,
        read_timeout_seconds=_BOUND,
        elicitation_callback=accept,
        sampling_callback=answer,
        list_roots_callback=list_roots,
    )


async def drive(url: str, flags: set[str]) -> None:
    """Do what the scenario expects of a client."""
    scenario = os.environ["MCP_CONFORMANCE_SCENARIO"]
    if scenario.startswith("auth/"):
        await drive_signed_in(url, scenario)
        return
    async with _reach(url, flags) as server, connect(server, _mode()) as client:
        await PLAYS.get(scenario, call_tools)(client)


def _mode() -> str:
    modern = os.environ["MCP_CONFORMANCE_PROTOCOL_VERSION"] in MODERN_PROTOCOL_VERSIONS
    return "auto" if modern else "legacy"


async def drive_signed_in(url: str, scenario: str) -> None:
    """Sign in to the suite's server, and call its tools."""
    with tempfile.TemporaryDirectory() as folder:
        upstream = await write_access(url, scenario, Path(folder))
        config = write_config(Path(folder), upstream)
        command, *arguments = gateway_command(config)

        async def play() -> None:
            server = StdioServerParameters(command=command, args=arguments)
            async with connect(server, _mode()) as client:
                if not (await client.list_tools()).tools:
                    raise RuntimeError(await check(config))
                await call_tools(client)

        alone = upstream["auth"]["oauth"].get("grant") == "client_credentials"
        await (play() if alone else play_signed_in(config, play))


def find_leaves(error: BaseException) -> list[BaseException]:
    """What went wrong, out of the groups that it was raised in."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for one in error.exceptions for leaf in find_leaves(one)]
    return [error]


def main(flags: set[str]) -> None:
    """Drive the scenario, and end with a failure where anything failed.

    With `--direct`, messages that the SDK cannot read are printed and not counted: only the suite's checks decide.
    """
    try:
        asyncio.run(drive(sys.argv[-1], flags))
    except Exception as failed:  # noqa: BLE001  # each failure is printed on one line
        errors = find_leaves(failed)
        sys.stderr.write("".join(f"{type(one).__name__}: {one}\n" for one in errors))
        if "--direct" not in flags or not all(isinstance(one, ValidationError) for one in errors):
            sys.exit(1)


if __name__ == "__main__":
    warnings.simplefilter("ignore", MCPDeprecationWarning)
    main(set(sys.argv[1:-1]))
