"""The stages of the call pipeline: reports, metrics and traces, limits and budgets, consent.

A stage must not know the other stages or their order; `gateway.pipeline` knows both.
"""
