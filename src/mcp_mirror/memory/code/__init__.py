"""Scripts over stored values: the sandbox, the inputs and tools of a script, and the tool `memory_run`.

A script runs in a worker process without files, network and environment. This package must not know the gateway: tools
are called through the functions of `Scripts`.
"""
