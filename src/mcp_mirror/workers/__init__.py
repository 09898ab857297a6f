"""Work that is too long for the event loop: worker processes, their pool, and each kind of job.

A job is a pure function of `core`, `query` or `payload`; this package decides where it runs and when it is stopped.
"""
