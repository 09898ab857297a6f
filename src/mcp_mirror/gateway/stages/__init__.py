"""The stages of the call pipeline: reports, metrics and traces, limits and budgets, consent, and your own.

A stage must not know the other stages or their order; `gateway.pipeline` knows both.
"""
