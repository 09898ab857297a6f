"""The commands `mcp-mirror install`, `uninstall`, `status` and `doctor`: mcp-mirror in the clients of this machine.

`install` wraps each server in its place in the client's file (`clients` has the files, `entries` the forms of servers,
`formats` the editing of text); `install --merge` moves the servers to a configuration of one gateway. A backup beside
the client's file allows `uninstall`.
"""
