"""Results of functions as the gateway gets them, parsed."""

import json
from typing import Any

from mcp_mirror.functions.results import convert_result


def members(value: object) -> dict[str, Any]:
    """The members of a result."""
    return {key: json.loads(bytes(raw)) for key, raw in convert_result(value).items()}


def result(value: object) -> Any:
    """The value in the structured content."""
    return members(value)["structuredContent"]["result"]


def schema(value: object) -> Any:
    """The schema of the value."""
    return members(value)["_meta"]["mcp-mirror/schema"]
