"""The gateway's own tools (`memory_*`, `retrieve_final_answer_from_memory`) and their table.

They read and change the caller's memory and never call an upstream.
"""
