"""The commands `mcp-mirror install`, `uninstall`, `status` and `doctor`: mcp-mirror in the clients of this machine.

`install` wraps each server in its place in the client's file (`in_place`), and `install --merge` moves the servers to a
configuration of one gateway (`merge`). Both make a plan of the new file (`plans`), whose backup allows `uninstall`.
`clients` has the files, `targets` finds them, `entries` knows the forms of servers, and `formats` edits text.
"""
