"""Writes the notice of a stored value again, for people who look at a call in the event log, which has no notices."""

from typing import Final

import msgspec

from mcp_mirror.core.capture import Estimate
from mcp_mirror.core.notice import NoticeInput, write_notice
from mcp_mirror.settings.policies import MirrorPolicy
from mcp_mirror.types import Buffer, Descriptor

_NO_ARGUMENTS: Final = b"{}"


def rebuild_notice(known: Descriptor, blob: Buffer, mirror: MirrorPolicy, estimate: Estimate) -> str:
    """Return the notice that a model read when a value was stored, by the present configuration.

    The arguments of the call, texts and media beside the value, and excerpts of errors are missing.

    Args:
        known: The descriptor of the value.
        blob: The value.
        mirror: The style and the budget of notices.
        estimate: Returns the expected tokens of a text.
    """
    stored = NoticeInput(
        path=known.base,
        tool=known.provenance.tool,
        arguments=_NO_ARGUMENTS,
        blob=blob,
        kind=known.kind,
        estimate=estimate,
        members=known.members,
        shown=_find_shown(known, blob, mirror),
        preview=known.preview,
    )
    return write_notice(stored, mirror.notice)


def _find_shown(known: Descriptor, blob: Buffer, mirror: MirrorPolicy) -> str | None:
    """The value itself if the model could read it whole."""
    if known.tokens > mirror.inline_budget or not known.preview or known.kind == "binary":
        return None
    return msgspec.json.decode(blob, type=str) if known.kind == "text" else str(blob, "utf-8")
