"""The operating system: file handles, private files, child processes, the event loop."""
