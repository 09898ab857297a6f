"""What happens between a client's request and an upstream: the tool call, resources, prompts, subscriptions.

It must not know transports, neither those of clients nor those of upstreams, and no storage backend.
"""
