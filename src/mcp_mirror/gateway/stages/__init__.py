"""The stages of the call pipeline, one concern per module: audit, metrics, limits, budgets, errors, consent.

A stage must not know the other stages or their order; `gateway.pipeline` knows both.
"""
