"""The configuration file: found, read with positions, checked, and turned into policies."""

from mcp_mirror.config.editors import config_json_schema
from mcp_mirror.config.loading import CONFIG_NAME, find_config, load_config, parse_config, read_config

__all__ = ["CONFIG_NAME", "config_json_schema", "find_config", "load_config", "parse_config", "read_config"]
