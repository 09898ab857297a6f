"""The operating system and the process: file handles, private files, child processes, the event loop, log lines."""
