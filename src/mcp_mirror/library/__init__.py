"""The gateway as a Python library: `Mirror` and `SyncMirror`.

They combine functions of a program with the upstreams of a configuration. They know the application and the gateway,
but no command and no transport.
"""
