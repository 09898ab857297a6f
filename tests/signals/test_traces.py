"""Traces of a real gateway, received as OTLP over HTTP."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any, cast

from mcp import Client
from notices import path_in
from tests.signals.receiver import exporting_gateway, read_attributes

if TYPE_CHECKING:
    from tests.end_to_end.conftest import Configured
    from tests.signals.receiver import Receiver

SECRET = "canary-4711"
LARGE = json.dumps({"content": [{"type": "text", "text": f"{SECRET} line\n" * 2000}]})
CALLER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
INTERNAL, SERVER, CLIENT, ERROR = 1, 2, 3, 2
ROWS = json.dumps({"structuredContent": {"rows": [{"id": at, "name": f"{SECRET} {at}"} for at in range(2000)]}})
SCRIPT = "answer = await tools.hear(x='{path}')\nlen(rows)"


async def test_one_trace_spans_client_gateway_and_upstream_with_links_of_values(
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
    call, sent = spans["tools/call say_mirrored", SERVER], spans["tools/call say", CLIENT]
    assert f"00-{call.trace_id.hex()}-{call.parent_span_id.hex()}-01" == CALLER
    assert (sent.trace_id, sent.parent_span_id) == (call.trace_id, call.span_id)
    second_call, forwarded = spans["tools/call hear_mirrored", SERVER], spans["tools/call hear", CLIENT]
    assert [(link.trace_id, link.span_id) for link in second_call.links] == [(call.trace_id, call.span_id)]
    contexts = [f"00-{one.trace_id.hex()}-{one.span_id.hex()}-" for one in receiver.spans if one.kind == CLIENT]
    assert forwarded.trace_id == second_call.trace_id
    assert any(one in received for one in contexts)
    assert spans["tools/call refuse", CLIENT].status.code == ERROR
    attributes = read_attributes(call)
    assert (attributes["mcp.protocol.version"], attributes["network.transport"]) == ("2026-07-28", "tcp")
    assert attributes["mcp.method.name"] == "tools/call"
    assert attributes["gen_ai.tool.name"] == "say_mirrored"
    everything = b"".join(receiver.bodies)
    assert SECRET.encode() not in everything
    assert str(path).encode() not in everything
    assert b"mcp-mirror" in everything


async def test_scripts_queries_and_tools_link_to_producers_of_their_values(
    configured: Configured, raw: Any, receiver: Receiver
) -> None:
    config = configured({"raw": raw()}, code={"tools": "all"})
    async with exporting_gateway(config, receiver.url) as url, Client(url) as client:

        async def call(tool: str, **arguments: Any) -> str:
            result = await client.call_tool(tool, arguments)
            assert not result.is_error, result
            return getattr(result.content[0], "text", "")

        path = path_in(await call("say_mirrored", result=ROWS))
        rows = f"{path}/rows"
        await call("memory_read", memory_path=rows)
        await call("memory_grep", memory_path=rows, pattern="1999")
        await call("memory_describe", memory_path=path)
        await call("retrieve_final_answer_from_memory", memory_path=f"{path}/rows/0")
        edited = path_in(await call("memory_edit", memory_path=path, merge={"more": [1]}))
        counted = await call("memory_query", sql="SELECT count(*) AS n FROM rows", inputs={"rows": rows})
        queried = path_in(await call("memory_query", sql="FROM rows", inputs={"rows": rows}))
        await call("memory_run", inputs={"rows": rows}, code=SCRIPT.format(path=edited))
        made = path_in(await call("memory_run", inputs={"rows": queried}, code="{'all': rows}"))
        await call("hear_mirrored", x=made)
    assert "2000" in counted
    spans = sorted(receiver.spans, key=lambda span: span.start_time_unix_nano)
    ids = {span.span_id: span.name.removeprefix("tools/call ") for span in spans}
    links = [(ids[span.span_id], [ids[link.span_id] for link in span.links]) for span in spans if span.kind != CLIENT]
    assert Counter((tool, producer) for tool, producers in links for producer in producers) == Counter(
        {
            ("memory_read", "say_mirrored"): 1,
            ("memory_grep", "say_mirrored"): 1,
            ("memory_describe", "say_mirrored"): 1,
            ("retrieve_final_answer_from_memory", "say_mirrored"): 1,
            ("memory_edit", "say_mirrored"): 1,
            ("memory_query", "say_mirrored"): 2,
            ("memory_run", "say_mirrored"): 1,
            ("memory_run", "memory_query"): 1,
            ("hear_mirrored", "memory_edit"): 1,
            ("hear_mirrored", "memory_run"): 1,
        }
    )
    script = next(span for span in spans if span.name == "tools/call memory_run")
    inside = next(span for span in spans if span.kind == INTERNAL)
    sent = next(span for span in spans if span.parent_span_id == inside.span_id)
    assert (inside.name, inside.parent_span_id) == ("tools/call hear_mirrored", script.span_id)
    assert (sent.kind, sent.name) == (CLIENT, "tools/call hear")
    assert {inside.trace_id, sent.trace_id} == {script.trace_id}
    assert SECRET.encode() not in b"".join(receiver.bodies)
