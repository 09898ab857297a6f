"""Streamable HTTP for clients: connections, the ASGI layers and the MCP endpoint.

The way of a request, in the order of the layers:

    server             accepts connections; `connection_limits` bounds them
    connections        bytes -> request: its turn (`turns`), another worker (`handover`), its head (`parser`)
    exchange           the exchange with the ASGI application; writes its response
    (ASGI layers)      `handover`, `probes`, `graceful_shutdown`, `dashboard`, `auth.gate`, `endpoints`
    mcp_endpoint       admits the request (`hosts`), receives its body (`request_bodies`), chooses the path
    direct             the direct path: runs the request, and writes its response or event stream
    sdk                the path of the SDK
"""
