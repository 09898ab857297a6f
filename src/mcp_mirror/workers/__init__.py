"""Worker processes for work that would block the event loop: the worker pool and each kind of job.

A job is a pure function of `core`, `query` or `payload`. This package decides where a job runs and when it is stopped.
"""
