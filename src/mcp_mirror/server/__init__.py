"""The MCP server that clients connect to: stdio and HTTP transports, sessions, handlers, notifications.

It translates between the protocol and the gateway. It must not know how values are stored or how upstreams connect.

`stdio` reads lines and writes the responses; `http` does so over HTTP, with a module for each step. Most tool calls and
lists of tools take the direct path:

    direct_path        opens the message, finds the sender, encodes the result; `http.direct` and `stdio` run it

Everything else takes the path of the SDK:

    pending_payloads   keeps the payload beside the SDK: lifts it out of the message, splices it into the response;
                       `http.sdk` and `stdio` give the SDK the message without it
    server             the SDK's server with a middleware that records the session (`sessions`), and handshakes

Both paths end in `handlers`, which calls the gateway. Messages that the server sends on its own leave through
`client_channel` (about a request), `change_notifier` and `announcements` (changes of lists and resources), and
`http.event_streams` (the GET stream of a session).
"""
