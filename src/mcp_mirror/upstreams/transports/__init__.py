"""stdio and HTTP towards upstreams, and the layer that carries payloads past the SDK.

The way of a request of the gateway, and back:

    payloads           `PayloadBypass.exchange` gives the request an id, and waits for its outcome (`requests`)
    stdio              writes it to the child (`child_process`, `commands`), and reads the child's lines
    http               sends it over HTTP, and opens and resumes event streams
    http_requests      headers, cookies and redirects of the HTTP requests
    http_bodies        reads response bodies: messages and server-sent events
    `oauth`, the SSRF guard and `system/http_connections.py` are the layers between these and the network
    payloads           a result goes to the waiting request; `server_messages` to the dispatcher; the rest to the SDK

`network_errors` and `server_output` explain failures.
"""
