"""Traces of a real gateway, received as OTLP over HTTP."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from mcp import Client
from notices import path_in
from tests.signals.receiver import exporting_gateway, read_attributes

if TYPE_CHECKING:
    from tests.signals.receiver import Receiver
    from tests.walk.conftest import Configured

SECRET = "canary-4711"
LARGE = json.dumps({"content": [{"type": "text", "text": f"{SECRET} line\n" * 2000}]})
CALLER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
SERVER, CLIENT, ERROR = 2, 3, 2


async def test_one_trace_has_the_client_the_gateway_and_the_upstream_with_links_of_values(
    configured: Configured, raw: Any, receiver: Receiver
) -> None:
    async with (
        exporting_gateway(configured({"raw": raw()}), receiver.url) as url,
        Client(url) as client,
    ):
        notice = (
            await client.call_tool("say_mirrored", {"result": LARGE}, meta=cast("Any", {"traceparent": CALLER}))
        ).content[0]
        path = path_in(getattr(notice, "text", ""))
        received = (await client.call_tool("hear_mirrored", {})).model_dump_json()
        await client.call_tool("hear_mirrored", {"x": path})
        await client.call_tool("refuse_mirrored", {"message": SECRET})
    spans = {(span.name, span.kind): span for span in receiver.spans}
    said, sent = spans["tools/call say_mirrored", SERVER], spans["tools/call say", CLIENT]
    assert f"00-{said.trace_id.hex()}-{said.parent_span_id.hex()}-01" == CALLER
    assert (sent.trace_id, sent.parent_span_id) == (said.trace_id, said.span_id)
    heard, forwarded = spans["tools/call hear_mirrored", SERVER], spans["tools/call hear", CLIENT]
    assert [(link.trace_id, link.span_id) for link in heard.links] == [(said.trace_id, said.span_id)]
    contexts = [f"00-{one.trace_id.hex()}-{one.span_id.hex()}-" for one in receiver.spans if one.kind == CLIENT]
    assert forwarded.trace_id == heard.trace_id
    assert any(one in received for one in contexts)
    assert spans["tools/call refuse", CLIENT].status.code == ERROR
    attributes = read_attributes(said)
    assert (attributes["mcp.protocol.version"], attributes["network.transport"]) == ("2026-07-28", "tcp")
    assert attributes["mcp.method.name"] == "tools/call"
    assert attributes["gen_ai.tool.name"] == "say_mirrored"
    everything = b"".join(receiver.bodies)
    assert SECRET.encode() not in everything
    assert str(path).encode() not in everything
    assert b"mcp-mirror" in everything
