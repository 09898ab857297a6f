"""Finds, reads and checks the configuration file, and generates its JSON Schema, reference page and example.

The keys are declared in `settings`; this package does not know a key's meaning, and nothing above it reads the file.

The declarations are not pydantic models, because pydantic validates values and a configuration is text: `yes` and
`007` stay text where a key is a text, any value may come from `${VAR}`, and sizes have units. Each kind of
value would need its own validator and JSON Schema with pydantic too, and its errors would have to be mapped to lines.
"""

from mcp_mirror.config.editors import config_json_schema
from mcp_mirror.config.loading import CONFIG_NAME, find_config, list_configs, load_config, parse_config, read_config
from mcp_mirror.settings.policies import Config, NoticeStyle
from mcp_mirror.settings.upstreams import HttpEndpoint, StdioEndpoint, UpstreamPolicy

__all__ = [
    "CONFIG_NAME",
    "Config",
    "HttpEndpoint",
    "NoticeStyle",
    "StdioEndpoint",
    "UpstreamPolicy",
    "config_json_schema",
    "find_config",
    "list_configs",
    "load_config",
    "parse_config",
    "read_config",
]
