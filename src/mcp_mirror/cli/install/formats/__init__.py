"""Files of clients as text: what is in them, and edits that leave every byte outside the edited entries unchanged.

JSON with comments and YAML are edited by spans, TOML with `tomlkit`. Each module imports its library when it is used.
After each edit, the new text is parsed again and compared with the expected value.
"""

from pathlib import Path

from mcp_mirror.cli.install.formats.document import Document
from mcp_mirror.errors import ConfigError


def parse_document(data: bytes, file: Path) -> Document:
    """Parse a client's file by the suffix of its name: TOML, YAML, else JSON with comments; ConfigError for others."""
    kind = _find_kind(file)
    try:
        return kind(data)
    except UnicodeDecodeError:
        raise ConfigError(f"{file} is not UTF-8 text. Save it as UTF-8, or name another file.") from None
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ConfigError(f"{file} cannot be read as {kind.name}: {reason}. Fix it first.") from None


def _find_kind(file: Path) -> type[Document]:
    match file.suffix.lower():
        case ".toml":
            from mcp_mirror.cli.install.formats.toml_text import TomlDocument  # noqa: PLC0415

            return TomlDocument
        case ".yaml" | ".yml":
            from mcp_mirror.cli.install.formats.yaml_text import YamlDocument  # noqa: PLC0415

            return YamlDocument
        case _:
            from mcp_mirror.cli.install.formats.json_text import JsonDocument  # noqa: PLC0415

            return JsonDocument
