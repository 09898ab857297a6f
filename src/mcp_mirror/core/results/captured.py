"""The decision about one result: which parts are stored, and what the model sees."""

from typing import Final, NamedTuple

import msgspec

from mcp_mirror.types import Buffer, Draft

EXCERPT_BYTES: Final = 1000
"""Bytes of an error's beginning; its end gets half as many."""


class ErrorExcerpt(msgspec.Struct, frozen=True):
    """The beginning and the end of an error that is too large to be shown."""

    head: str
    tail: str = ""
    """Empty if the head is the whole error."""


class MediaPart(NamedTuple):
    """An image, recording or file in a stored value."""

    pointer: str
    """Its JSON Pointer in the value, or in the companion."""
    description: str
    """Media type, pixels and size: `image/png, 1280x720, 0.9 MB`."""
    is_hidden: bool
    """Clients would show it, but it is too large to pass beside the notice."""


class Captured(msgspec.Struct, frozen=True):
    """The decision about one result."""

    value: Draft | None = None
    """The value to store; None if the result passes unchanged."""
    companion: Draft | None = None
    """The rest of the content, to store beside the value."""
    other_members: bytes = b"{}"
    """The result's other members."""
    is_error: bool = False
    error: ErrorExcerpt | None = None
    """The beginning and the end of an error that is too large to be shown."""

    shown: str | None = None
    """The text of a result within the inline budget, as the model reads it."""
    main_text_keys: tuple[str, ...] = ()
    """The keys of the text that is most of the value, if the result's content is this text: `("data", "stdout")`."""
    is_paraphrased: bool = False
    """The shown texts have the words of an object, but not its keys."""
    is_named: bool = False
    """The companion contains more than the value, so the notice names it."""
    is_text_hidden: bool = False
    """The companion has texts that the model does not see beside the value."""
    quoted_texts: tuple[str, ...] = ()
    """The texts of such a companion, quoted, if they are short and its only content."""

    media: tuple[MediaPart, ...] = ()
    has_media_beside: bool = False
    """The media are in the companion, because the value does not contain them."""
    passed: tuple[Buffer, ...] = ()
    """Content blocks that pass beside the notice."""
    other_blocks: tuple[int, int] = (0, 0)
    """The number of links and embedded texts that pass beside the notice, and of all."""
    in_order: tuple[Buffer, ...] = ()
    """All blocks of a shown result in their order, if it mixes texts and other blocks. `process_result` moves them to
    `passed`, or drops them."""
