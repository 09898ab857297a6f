"""Results of tools: what is stored of them, and what the model reads instead."""
