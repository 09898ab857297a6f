"""Keys that bound what clients and upstreams may send and list; `docs/reference/limits.md` lists them."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from pydantic import Field

from mcp_mirror.config.fields import NO_RATE, Bytes, Count, Depth, Rate, Seconds, Whole
from mcp_mirror.config.trust import Section
from mcp_mirror.settings.limits import SHOWN_RATE, TrafficPolicy, UpstreamBounds
from mcp_mirror.settings.policies import WirePolicy

_LIMITS: Final = WirePolicy()
_TRAFFIC: Final = TrafficPolicy()
_BOUNDS: Final = UpstreamBounds()


class LimitsSection(Section):
    """Bounds on what clients and upstreams may send, ask and list; suffixes KB, MB, GB, KiB, MiB, GiB."""

    max_message_bytes: Bytes = Field(
        default=_LIMITS.max_message_bytes,
        description="Bytes of the largest message; a larger one is discarded and its call fails.",
        examples=["2GiB"],
    )
    spool_bytes: Bytes = Field(
        default=_LIMITS.spool_bytes,
        description="Bytes past which a message goes to a file as it arrives instead of into memory.",
        examples=["16MiB"],
    )
    max_key_bytes: Bytes = Field(
        default=_LIMITS.max_key_bytes,
        description="Bytes of the longest key on the top level of a value.",
        examples=["64KiB"],
    )
    max_depth: Depth = Field(default=_LIMITS.max_depth, description="Levels of nesting in one message.")
    max_envelope_bytes: Bytes = Field(
        default=_LIMITS.max_envelope_bytes,
        description="Bytes of a message that are read here: all but a call's arguments and what a result holds.",
        examples=["16MiB"],
    )
    max_inflation: Count = Field(
        default=_LIMITS.max_inflation,
        description="How many times its own size a compressed body may have that inflates to more than `spool_bytes`.",
    )
    calls_per_principal: Count = Field(
        default=_TRAFFIC.calls_per_principal,
        description="Requests of one principal that are under way at once; others wait.",
    )
    calls_per_upstream: Count = Field(
        default=_BOUNDS.calls_per_upstream,
        description="Requests to one upstream that are under way at once; others wait, each principal in turn.",
    )
    queued_calls: Whole = Field(
        default=_TRAFFIC.queued_calls,
        description="Requests of one principal, or to one upstream, that may wait; one more is refused.",
    )
    queue_timeout: Seconds = Field(default=_TRAFFIC.queue_timeout, description="Seconds that a request may wait.")
    calls_per_minute: Rate | None = Field(
        default=_TRAFFIC.calls_per_minute,
        description=f"Requests of one principal. By default {SHOWN_RATE} where `auth` lets people in, else none.",
    )
    upstream_calls_per_minute: Rate | None = Field(
        default=_BOUNDS.upstream_calls_per_minute, description="Requests to one upstream. By default none."
    )
    max_pointers: Count = Field(default=_TRAFFIC.max_pointers, description="Memory paths in the arguments of one call.")
    sessions_per_principal: Count = Field(
        default=_TRAFFIC.sessions_per_principal, description="Sessions of one principal over HTTP (protocol of 2025)."
    )
    connections_per_principal: Count = Field(
        default=_TRAFFIC.connections_per_principal,
        description="Connections to upstreams, of all sessions of one principal; the shared ones are not counted.",
    )
    connections_per_upstream: Count = Field(
        default=_BOUNDS.connections_per_upstream,
        description="Connections to one upstream, of all sessions and principals; the shared one is not counted.",
    )
    requests_per_principal: Count = Field(
        default=_TRAFFIC.requests_per_principal,
        description="HTTP requests of one principal that are open at once, streams among them.",
    )
    streams_per_principal: Count = Field(
        default=_TRAFFIC.streams_per_principal, description="Streams of announcements (`subscriptions/listen`)."
    )
    subscriptions_per_principal: Count = Field(
        default=_TRAFFIC.subscriptions_per_principal, description="Resources that one principal watches."
    )
    max_connections: Count = Field(
        default=_TRAFFIC.max_connections, description="Connections to the HTTP endpoint, of all clients together."
    )
    pending_connections_per_address: Count = Field(
        default=_TRAFFIC.pending_connections_per_address,
        description="Connections of one client address that wait for a complete request, before one is admitted.",
    )
    max_header_bytes: Bytes = Field(
        default=_TRAFFIC.max_header_bytes,
        description="Bytes of one HTTP request's first line and headers.",
        examples=["64KiB"],
    )
    header_timeout: Seconds = Field(
        default=_TRAFFIC.header_timeout, description="Seconds that a connection may take to send a request's headers."
    )
    body_timeout: Seconds = Field(
        default=_TRAFFIC.body_timeout, description="Seconds that a request's body may bring no byte."
    )
    max_tools: Count = Field(default=_BOUNDS.max_tools, description="Tools that are served of one upstream.")
    max_name_bytes: Bytes = Field(
        default=_BOUNDS.max_name_bytes, description="Bytes of a tool's name.", examples=["1KiB"]
    )
    max_tool_bytes: Bytes = Field(
        default=_BOUNDS.max_tool_bytes, description="Bytes of one tool's definition.", examples=["1MiB"]
    )
    max_schema_depth: Depth = Field(
        default=_BOUNDS.max_schema_depth, description="Levels of nesting in one tool's definition."
    )
    max_listing_bytes: Bytes = Field(
        default=_BOUNDS.max_listing_bytes,
        description="Bytes of one list of an upstream's, all its pages.",
        examples=["64MiB"],
    )
    max_listing_pages: Count = Field(default=_BOUNDS.max_listing_pages, description="Pages of one list.")
    max_queued_news_bytes: Bytes = Field(
        default=_BOUNDS.max_queued_news_bytes,
        description="Bytes of an upstream's notifications that wait for a client which is slow to take them; more are "
        "dropped.",
        examples=["64MiB"],
    )
    max_questions_per_call: Count = Field(
        default=_BOUNDS.max_questions_per_call,
        description="Requests of an upstream to the client (elicitation, sampling, roots) within one call; one more "
        "ends the call. Outside of calls, in a minute.",
    )
    max_questions: Count = Field(
        default=_BOUNDS.max_questions,
        description="Requests of an upstream's that wait for their answers, over one connection; more are dropped.",
    )


def read_limits(section: LimitsSection) -> WirePolicy:
    """The bounds of messages, and of clients' traffic."""
    given = _given(section)
    traffic = TrafficPolicy(**_those_of(TrafficPolicy, given))
    return WirePolicy(**_those_of(WirePolicy, given), traffic=traffic)


def read_bounds(section: LimitsSection) -> UpstreamBounds:
    """The bounds of each upstream."""
    return UpstreamBounds(**_those_of(UpstreamBounds, _given(section)))


def _given(section: LimitsSection) -> dict[str, Any]:
    return {name: 0 if value == NO_RATE else value for name, value in section.model_dump().items()}


def _those_of(policy: type[TrafficPolicy | WirePolicy | UpstreamBounds], given: Mapping[str, Any]) -> dict[str, Any]:
    return {one.name: given[one.name] for one in fields(policy) if one.name in given}
