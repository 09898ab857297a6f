"""Answers clients' requests with upstreams: tool calls, resources, prompts, completions and subscriptions.

It must not know storage backends or transports, whether of clients or of upstreams.
"""
