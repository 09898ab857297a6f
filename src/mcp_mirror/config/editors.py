"""The JSON Schema of a configuration file, which editors check and complete by."""

from typing import Any

from mcp_mirror.config.clients import CLIENT_BLOCKS
from mcp_mirror.config.models import ConfigFile


def config_json_schema() -> dict[str, Any]:
    """The JSON Schema of a configuration file, for editors. What it admits may still fail: `${VAR}` is not known."""
    schema = _without_null(ConfigFile.model_json_schema())
    server = {"type": "object", "description": "A server as that client writes it."}
    for block, clients in CLIENT_BLOCKS.items():
        description = f"A block pasted from a client ({clients}); read beside 'upstreams'."
        schema["properties"][block] = {
            "title": block,
            "description": description,
            "type": "object",
            "additionalProperties": server,
        }
    schema["properties"]["inputs"] = {"title": "inputs", "description": "VS Code's; ignored with a warning."}
    schema["properties"]["$schema"] = {"title": "$schema", "description": "For editors; ignored.", "type": "string"}
    schema["patternProperties"] = {"^x-": {"description": "Yours, for YAML anchors; ignored."}}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _without_null(schema: Any) -> Any:
    """A key that may be left out may not be null, which pydantic's schema of an optional field says."""
    if isinstance(schema, list):
        return [_without_null(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: _without_null(part) for key, part in schema.items() if (key, part) != ("default", None)}
    options = [option for option in kept.get("anyOf", ()) if option != {"type": "null"}]
    if len(options) == 1:
        del kept["anyOf"]
        return options[0] | kept
    return kept | {"anyOf": options} if options else kept
