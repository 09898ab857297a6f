"""The keys in which two configurations differ, for the log of a reload: never their values."""

from collections.abc import Iterator
from typing import Any

from mcp_mirror.config.shape import list_fields
from mcp_mirror.settings.declarations import INLINE, NAME, Section


def list_changes(before: Section, after: Section, prefix: str = "") -> Iterator[str]:
    """Yield the places of changed keys, such as `mirror.suffix`; `prefix` is the place of the section with a dot.

    A section with a name that only one of the two has is one change, such as `upstreams.crm (added)`.
    """
    for field in list_fields(type(after)):
        old, new = getattr(before, field.name), getattr(after, field.name)
        if old == new or field.value.has(NAME):
            continue
        is_inline = field.value.has(INLINE)
        place = prefix.rstrip(".") if is_inline else f"{prefix}{'.'.join(field.path)}"
        below = prefix if is_inline else f"{place}."
        if isinstance(new, Section) and type(old) is type(new):
            yield from list_changes(old, new, below)
        elif field.value.entries is not None and field.value.entries.is_section:
            yield from _list_named_changes(_index_by_name(old), _index_by_name(new), below)
        else:
            yield place


def _list_named_changes(before: dict[str, Section], after: dict[str, Section], prefix: str) -> Iterator[str]:
    for name, new in after.items():
        if (old := before.get(name)) is None:
            yield f"{prefix}{name} (added)"
        elif old != new:
            yield from list_changes(old, new, f"{prefix}{name}.")
    for name in before:
        if name not in after:
            yield f"{prefix}{name} (removed)"


def _index_by_name(sections: Any) -> dict[str, Section]:
    """Return sections, or pairs of a name and a section, by their names."""
    return dict(one if isinstance(one, tuple) else (one.name, one) for one in sections)
