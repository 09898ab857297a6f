"""The MCP server that clients connect to: stdio and HTTP transports, sessions, handlers, notifications.

It translates between the protocol and the gateway. It must not know how values are stored or how upstreams connect.

The way of a request over stdio, and over HTTP in the order of the layers:

    stdio              reads a line; the direct path or the SDK takes it; writes the responses of both
    http_server        accepts connections; `connection_limits` bounds them
    connections        bytes -> request: its turn (`turns`), another worker (`handover`), its head (`http_parser`)
    http_exchange      the exchange with the ASGI application; writes its response
    (ASGI layers)      `handover`, `probes`, `graceful_shutdown`, `dashboard`, `auth.gate`, `endpoints`
    http               admits the request (`hosts`), receives its body (`request_bodies`), chooses the path

Most tool calls and lists of tools take the direct path, everything else the path of the SDK:

    direct_http        stdio: `stdio`. Runs the request, and writes its response or event stream
    direct_path        opens the message, finds the sender, encodes the result

    sdk_http           stdio: `stdio`. Lifts the payload out of the message, and splices it into the response
    pending_payloads   keeps the payload beside the SDK
    server             the SDK's server: middleware that records the session (`sessions`); handshakes, `instructions`

Both paths end in `handlers`, which calls the gateway. Messages that the server sends on its own leave through
`client_channel` (about a request), `change_notifier` and `announcements` (changes of lists and resources), and
`event_streams` (the GET stream of a session).
"""
