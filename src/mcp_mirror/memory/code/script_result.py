"""Finds the result of a script: its last expression, or the variables that its last statement changes. Pure."""

import ast
import threading
import warnings
from collections.abc import Iterator, Sequence
from typing import Final

from mcp_mirror.system.patterns import lazy_pattern

RESULT: Final = "_mcp_mirror_result"
"""The variable in which a script keeps its result."""
_LINE_END: Final = lazy_pattern(r"(?<=\n)|(?<=\r)(?!\n)")
"""The end of a line as Python counts lines."""
_CHANGES: Final = frozenset(
    {"add", "append", "appendleft", "discard", "extend", "insert", "remove", "reverse", "sort", "update"}
)
"""Methods of lists, sets and dictionaries that return nothing."""
_MAX_PARSED: Final = 10_000
"""Characters of a script that is parsed. While Python's parser runs, no other thread does.

Its time and memory for a name with many dots grow with the square of its length: 2 s and 1.7 GB for 80,000 characters.
"""
_COMPOUND: Final = (ast.For, ast.AsyncFor, ast.While, ast.If, ast.Try)
_PARTS: Final = (ast.Subscript, ast.Attribute, ast.Starred)
_parsing: Final = threading.Lock()
"""Held while warnings of Python's parser, such as those of escapes, are ignored: threads share this setting."""


def keep_result(code: str) -> str:
    """Return a script that keeps its result in the variable `RESULT`: its last expression, or what it changed last.

    After an assignment, these are the variables that it assigns or changes. After a loop or a condition, they are the
    variables that the script assigned before it, such as a sum; several are kept as a dictionary. Other scripts, and
    long ones, are returned unchanged.
    """
    if len(code) > _MAX_PARSED or RESULT in code:
        return code
    try:
        with _parsing, warnings.catch_warnings(action="ignore"):
            body = ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the sandbox reports it
        return code
    if not body:
        return code
    if names := _find_result(body):
        return f"{code}\n{RESULT} = {names}"
    return _assign(code, body[-1]) if isinstance(body[-1], ast.Expr) else code


def _assign(code: str, expression: ast.Expr) -> str:
    """Return a script whose last expression, on the same line as before, is assigned to `RESULT`."""
    lines = _LINE_END.split(code)
    line = lines[expression.lineno - 1].encode()
    before, after = line[: expression.col_offset].decode(), line[expression.col_offset :].decode()
    lines[expression.lineno - 1] = f"{before}{RESULT} = {after}"
    return "".join(lines)


def _find_result(body: Sequence[ast.stmt]) -> str:
    """Return the expression for the result of a script; empty if its last statement changes no variable."""
    *before, last = body
    if isinstance(last, _COMPOUND):
        names = _find_results(before, last)
        return f"{{{', '.join(f'{name!r}: {name}' for name in names)}}}" if len(names) > 1 else "".join(names)
    match last, _list_targets(last):
        case _, [ast.Subscript() | ast.Attribute() as target, *_]:
            return next(_list_names(target), "")
        case _, [target, *_]:
            return "" if any(isinstance(node, _PARTS) for node in ast.walk(target)) else ast.unparse(target)
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=target, attr=method))), _:
            # The methods of the script's own classes may return something.
            is_change = method in _CHANGES and not any(isinstance(statement, ast.ClassDef) for statement in before)
            return next(_list_names(target), "") if is_change else ""
    return ""


def _find_results(before: Sequence[ast.stmt], last: ast.stmt) -> Sequence[str]:
    """The variables that the script assigns before its last statement, which changes them."""
    if any(isinstance(node, ast.Return) for node in ast.walk(last)):
        return ()
    changed = frozenset(_list_changed(last))
    assigned = (name for statement in before for target in _list_targets(statement) for name in _list_names(target))
    return [name for name in dict.fromkeys(assigned) if name in changed]


def _list_changed(statement: ast.stmt) -> Iterator[str]:
    """The variables that a statement assigns, or of which it changes a part or the content."""
    for node in ast.walk(statement):
        for target in _list_targets(node):
            yield from _list_names(target)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGES:
            yield from _list_names(node.func.value)


def _list_targets(node: ast.AST) -> Sequence[ast.expr]:
    match node:
        case ast.Assign(targets=targets):
            return targets
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target, value=ast.expr()):
            return (target,)
    return ()


def _list_names(target: ast.expr) -> Iterator[str]:
    """The variables of a target, also those of which it is a part: `groups` of `groups.setdefault("a", [])`."""
    match target:
        case ast.Name(id=name):
            yield name
        case ast.Subscript(value=value) | ast.Attribute(value=value) | ast.Call(func=ast.Attribute(value=value)):
            yield from _list_names(value)
        case ast.Tuple(elts=items) | ast.List(elts=items):
            for item in items:
                yield from _list_names(item)
