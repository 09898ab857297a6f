"""Pure functions of the gateway: the catalog of tools, pointers in arguments, results and what models read of them.

    schemas    schemas of tools: the definitions of twins, validation and its errors
    texts      texts of results: their format, and the tables, JSON and headings in them
    results    results of tools: what is stored, and the notice and preview that the model reads instead

They perform no I/O, use no clock or randomness, write no logs, and do not know their callers.
"""
