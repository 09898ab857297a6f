"""The configuration file: found, read with positions, checked, and turned into policies."""

from mcp_mirror.config.loading import config_json_schema, find_config, load_config

__all__ = ["config_json_schema", "find_config", "load_config"]
