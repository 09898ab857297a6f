"""The command `mcp-mirror tokens`: how many tokens texts cost a model."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from mcp_mirror.errors import ConfigError
from mcp_mirror.settings.policies import TokenProvider
from mcp_mirror.system.mapped_files import map_file
from mcp_mirror.tokens import PROVIDERS, estimate_tokens
from mcp_mirror.tokens.exact import count_tokens


def count_files(
    files: Annotated[list[Path] | None, typer.Argument(help="Text files; default: standard input.")] = None,
    provider: Annotated[
        TokenProvider, typer.Option(help=f"The provider of the tokenizer: {', '.join(PROVIDERS)}.", metavar="NAME")
    ] = "default",
    exact: Annotated[
        bool, typer.Option("--exact", help="Count with the provider's tokenizer, which must be installed.")
    ] = False,
    tokenizer: Annotated[Path | None, typer.Option(help="A tokenizer.json to count with, for --exact.")] = None,
) -> None:
    """Print how many tokens texts cost a model.

    The number is an estimate that is rarely too low, or exact with --exact. Several texts also get a total.

    Example: mcp-mirror tokens --provider anthropic README.md
    """
    texts = [(str(path), _read(path)) for path in files] if files else [("", sys.stdin.buffer.read())]
    counts = [(name, _count(text, provider, tokenizer, exact=exact)) for name, text in texts]
    if len(counts) > 1:
        counts.append(("total", sum(count for _, count in counts)))
    width = max(len(f"{count:,}") for _, count in counts)
    for name, count in counts:
        print(f"{count:>{width},}  {name}".rstrip())


def _count(text: memoryview | bytes, provider: TokenProvider, tokenizer: Path | None, *, exact: bool) -> int:
    if not exact and tokenizer is None:
        return estimate_tokens(text, provider)
    return count_tokens(bytes(text).decode(errors="replace"), provider, tokenizer)


def _read(path: Path) -> memoryview | bytes:
    """Map the file, because the estimate reads only parts of a large one; read a pipe, which has no size, whole."""
    try:
        return map_file(path) if path.stat().st_size else path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}. Name a text file.") from None
