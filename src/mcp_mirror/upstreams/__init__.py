"""Connections to the user's MCP servers. They must not know stored values: arguments and results are bytes.

- `UpstreamRegistry` starts, replaces and stops all upstreams. It owns one `Upstream` per server.
- `Upstream` (`ServerUpstream`, or `LocalUpstream` for functions) picks a caller's connection: the shared one, or a
  dedicated one of a session or principal. `ConnectionSlots` limits dedicated connections over all upstreams.
- `ReconnectingConnection` keeps one connection: backoff, jitter, circuit breaker (`reconnect`). It owns the current
  `UpstreamSession`; all connections of an upstream share its `ConnectionSettings` and `UpstreamLimiter`.
- `UpstreamSession` lasts from one handshake to its end: requests, timeouts, errors. It owns a `PayloadBypass`, which
  carries payloads between it and the transport (`transports`), and a `NotificationDispatcher` for the server's own
  messages: notifications go to the callers in `InflightRequests`, and `ServerRequests` answers its requests.
"""
