"""The MCP server that clients connect to: stdio and HTTP transports, sessions, handlers, notifications.

It translates between the protocol and the gateway. It must not know how values are stored or how upstreams connect.

The way of a request over HTTP, in the order of the layers; over stdio, `stdio` reads lines and writes the responses:

    http_server        accepts connections; `connection_limits` bounds them
    connections        bytes -> request: its turn (`turns`), another worker (`handover`), its head (`http_parser`)
    http_exchange      the exchange with the ASGI application; writes its response
    (ASGI layers)      `handover`, `probes`, `graceful_shutdown`, `dashboard`, `auth.gate`, `endpoints`
    http               admits the request (`hosts`), receives its body (`request_bodies`), chooses the path

Most tool calls and lists of tools take the direct path:

    direct_http        runs the request, and writes its response or event stream; over stdio, `stdio` does
    direct_path        opens the message, finds the sender, encodes the result

Everything else takes the path of the SDK:

    sdk_http           gives the SDK the message without its payload, and sends its response; over stdio, `stdio` does
    pending_payloads   keeps the payload beside the SDK: lifts it out of the message, splices it into the response
    server             the SDK's server with a middleware that records the session (`sessions`), and handshakes

Both paths end in `handlers`, which calls the gateway. Messages that the server sends on its own leave through
`client_channel` (about a request), `change_notifier` and `announcements` (changes of lists and resources), and
`event_streams` (the GET stream of a session).
"""
