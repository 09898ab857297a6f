"""Imports the modules of a command when the command runs."""

import gc
from importlib import import_module
from typing import Any


def import_lazily(module: str) -> Any:
    """Import a module.

    The garbage collector is off during the import and ignores the imported objects afterwards. Searching them takes an
    eighth of the start, and later some 50 ms of every full collection, which would delay calls.
    """
    gc.disable()
    imported = import_module(module)
    gc.freeze()
    gc.enable()
    return imported
