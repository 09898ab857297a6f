"""Servers added to the text of a configuration, which keeps all that it says, its comments too."""

import re
from collections.abc import Mapping
from textwrap import indent
from typing import Any, Final

import yaml

from mcp_mirror.errors import ConfigError

_PLAIN: Final = re.compile("[-./_@A-Za-z]*[A-Za-z][-./_@A-Za-z0-9]*")
_HEAD: Final = "# Servers as they stood in the client's configuration. The gateway's own settings can be added.\n\n"


def add_servers(text: str, block: str, servers: Mapping[str, Any], called: str) -> str:
    """The text with these servers behind those in a client's block, and nothing else changed.

    Args:
        text: A configuration in YAML, or nothing.
        block: The key of the block, such as `mcpServers`.
        servers: Names and what the client says of each.
        called: What the message of an error calls the file.

    Raises:
        ConfigError: The block, or all of the file, is written in braces, or it is no mapping.
    """
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{called} is not YAML: {getattr(error, 'problem', None) or 'it cannot be read'}.") from None
    if root is None:
        return (text or _HEAD) + _yaml({block: servers})
    if isinstance(root, yaml.MappingNode) and not root.flow_style:
        held = next((value for key, value in root.value if key.value == block), None)
        if held is None:
            return f"{text.rstrip()}\n\n{_yaml({block: servers})}"
        is_nothing = isinstance(held, yaml.ScalarNode) and not held.value
        if is_nothing or (isinstance(held, yaml.MappingNode) and not held.flow_style):
            at, column = _end_of_lines(text, held), 2 if is_nothing else held.start_mark.column
            return text[:at].rstrip("\n") + "\n" + indent(_yaml(servers), " " * column) + text[at:]
    raise ConfigError(f"The servers cannot be added to {called} as it is written. Name another file with --config.")


def _end_of_lines(text: str, node: yaml.Node) -> int:
    """Behind the line that a node in block style ends on; comments that follow it belong to what is next."""
    while isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        node = last[1] if isinstance(last, tuple) else last
    end: int = node.end_mark.index
    if text[end - 1] == "\n":
        return end
    stop = text.find("\n", end)
    return len(text) if stop < 0 else stop + 1


class _Dumper(yaml.SafeDumper):
    """Puts texts in quotes but words, paths and options: in our configuration more are numbers than in YAML 1.1."""

    def ignore_aliases(self, data: Any) -> bool:
        del data
        return True

    def represent_text(self, text: str) -> yaml.Node:
        return self.represent_scalar("tag:yaml.org,2002:str", text, None if _PLAIN.fullmatch(text) else '"')


_Dumper.add_representer(str, _Dumper.represent_text)


def _yaml(value: Mapping[str, Any]) -> str:
    text: str = yaml.dump(dict(value), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1 << 20)
    return text
