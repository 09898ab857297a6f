"""stdio and HTTP towards upstreams, and the layer that carries payloads past the SDK.

The way of a request of the gateway, and back:

    payloads           `PayloadBypass.exchange` gives the request an id, and waits for its outcome (`requests`)
    stdio              writes it to the child (`child_process`, `commands`), and reads the child's lines
    http               opens the streams of the SDK's client for a URL
    direct_posts       sends the request over HTTP, except the first one of a session
    http_messages      what the SDK's client sends: the handshake, the first request, event streams, unusual responses
    http_bodies        reads response bodies: messages and server-sent events
    cookies, `oauth`, the SSRF guard and `system/http_connections.py` are the layers between these and the network
    payloads           a result goes to the waiting request; `server_messages` to the dispatcher; the rest to the SDK

`network_errors` and `server_output` explain failures.
"""
