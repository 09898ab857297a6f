"""Schemas that cost much: honest ones of page editors, and hostile ones."""

from typing import Any

Schema = dict[str, Any]

KINDS = ("section", "columns", "card", "tabs")


def tool(name: str, schema: Schema) -> dict[str, Any]:
    return {"name": name, "description": "A tool.", "inputSchema": {"type": "object"} | schema}


def page() -> Schema:
    """Four kinds of blocks that hold each other, as page editors have."""
    defs: Schema = {
        kind: {
            "type": "object",
            "properties": {
                "type": {"const": kind},
                "title": {"type": "string"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/block"}},
            },
            "required": ["type", "children"],
            "additionalProperties": False,
        }
        for kind in KINDS
    }
    defs["block"] = {"anyOf": [{"$ref": f"#/$defs/{kind}"} for kind in KINDS]}
    return {"properties": {"page": {"$ref": "#/$defs/block"}}, "required": ["page"], "$defs": defs}


def blocks(depth: int, last: str) -> dict[str, Any]:
    """Arguments for `page`: blocks in blocks, the unwrap_error_group of the kind `last`."""
    node: dict[str, Any] = {"type": last, "children": []}
    for _ in range(depth):
        node = {"type": "card", "children": [node]}
    return {"page": node}


def doubling(word: str, depth: int = 40) -> Schema:
    """Each definition refers twice to the next one."""
    defs: Schema = {f"d{n}": {word: [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(depth)}
    return {"properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": defs | {f"d{depth}": {"type": "integer"}}}


def nesting(depth: int) -> Schema:
    """Each definition has two alternatives whose property is the next one."""
    defs: Schema = {
        f"d{n}": {"anyOf": [{"properties": {"x": {"$ref": f"#/$defs/d{n + 1}"}}}] * 2} for n in range(depth)
    }
    return {"properties": {"x": {"$ref": "#/$defs/d0"}}, "$defs": defs | {f"d{depth}": {"type": "integer"}}}


def levels(depth: int, members: int) -> Schema:
    """Objects in objects, each with further members."""
    below: Schema = {"type": "integer"}
    for _ in range(depth):
        others = {f"m{n}": {"type": "string", "minLength": 1} for n in range(members)}
        below = {"type": "object", "properties": {"x": below} | others, "required": ["x"]}
    return below
