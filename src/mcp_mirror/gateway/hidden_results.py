"""What of a call stays hidden from a model that may not see its result: all but the path, and that it failed."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from mcp_mirror.core.replies import Reply, build_path_reply
from mcp_mirror.core.result_processing import ProcessedResult
from mcp_mirror.errors import RefusedError, ToolError, UpstreamError
from mcp_mirror.settings.labels import Labels
from mcp_mirror.upstreams.content_filter import is_for_client

WITHHELD: Final = (
    "The model may not see what this tool answers (`flows.model`), and it cannot be kept from it here, for nothing is "
    "stored. Ask the user to change that rule, or to let results be stored (`mirror.capture`)."
)


class Reading(NamedTuple):
    """A result that was read, and what is known of it."""

    digest: ProcessedResult
    labels: Labels
    is_hidden: bool
    """The model may not see it."""


def hidden_reply(digest: ProcessedResult, base: str) -> Reply:
    """The path of what is stored, and nothing else; a result without content has none."""
    if digest.captured.value is not None:
        return build_path_reply(digest, base)
    return {"content": b"[]", "isError": b"true" if digest.captured.is_error else b"false"}


@contextmanager
def veiling(tool: str, *, hides: bool) -> Iterator[None]:
    """What an upstream says in an error, or last said before it was gone, may hold what it was given.

    Raises:
        ToolError: In place of the upstream's error, where that may not be seen.
    """
    try:
        yield
    except UpstreamError as error:
        if not hides or (isinstance(error, RefusedError) and is_for_client(error)):
            raise
        raise ToolError(
            f"Tool {tool!r} failed. Why cannot be told: the labels of what its upstream was given or gives keep what "
            "that says from the model (`flows.model`)."
        ) from None
