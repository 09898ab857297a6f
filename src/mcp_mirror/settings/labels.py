"""What is known of a value beside what it is: whose data is in it, whether it can be trusted, who may see it.

And what the user decided on that: the labels that each place gives, what it takes, and which flows are let through.
Data alone: what follows from it is `flows`' to say.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

Integrity = Literal["trusted", "untrusted"]

Lowering = Literal["nothing", "own", "all"]
"""What of its results' labels an upstream's own word (`_meta.ifc`) may lower: nothing; what they are by its `labels`;
that and what they are by the values that the call was given. Sources are never taken away."""

OnRefusal = Literal["error", "ask"]

Across = Literal["allow", "deny"]

LEVELS: Final = ("public", "internal", "private")
"""Who may see a value, from all to fewest."""

MODEL: Final = "the model"
"""The place that reads what tools answer, and writes arguments. No upstream can have this name."""
FILES: Final = "local files"
"""The place that memory_import reads from and memory_export writes to. No upstream can have this name."""
FUNCTIONS: Final = "local functions"
"""The upstream that a program's own functions are."""
UNKNOWN: Final = "?"
"""The source of what was made of values whose own sources were not kept."""
WORDS: Final[Mapping[str, str]] = {"model": MODEL, "files": FILES, "functions": FUNCTIONS}
"""How rules name the places that have no name in a configuration."""
ZONE: Final = "zone:"
"""How a rule's side begins that means all places of a zone."""


@dataclass(frozen=True, slots=True)
class Labels:
    """The labels of one value."""

    sources: frozenset[str]
    """The places whose data went into it."""
    integrity: Integrity
    confidentiality: str
    """One of the policy's levels."""


@dataclass(frozen=True, slots=True)
class Accepts:
    """What a place may receive. None: anything."""

    integrity: Integrity | None = None
    """The least."""
    confidentiality: str | None = None
    """The highest level."""
    sources: tuple[str, ...] | None = None
    """Globs; each source of a value must match one."""


@dataclass(frozen=True, slots=True)
class PlacePolicy:
    """What values get that come from a place, and what it may receive."""

    integrity: Integrity | None = None
    """None: the default of its kind of place."""
    confidentiality: str | None = None
    """None: the default of its kind of place."""
    accepts: Accepts = Accepts()
    zone: str | None = None
    """None: everybody's where there is one user, else one of its own."""
    may_lower: Lowering = "nothing"


class FlowRule(NamedTuple):
    """`source -> target`: each a glob of upstreams' names, `model`, `files`, `functions`, or `zone:` and a zone."""

    source: str
    target: str

    def __str__(self) -> str:
        return f"{self.source} -> {self.target}"


@dataclass(frozen=True, slots=True)
class FlowsPolicy:
    """What may flow where."""

    levels: tuple[str, ...] = LEVELS
    default: Across = "deny"
    """From one zone to another, where no rule says anything."""
    allow: tuple[FlowRule, ...] = ()
    """They open zones to each other; what a place accepts binds all the same."""
    deny: tuple[FlowRule, ...] = ()
    """They win over all else."""
    on_refusal: OnRefusal = "error"
    model: PlacePolicy = PlacePolicy()
    files: PlacePolicy = PlacePolicy()
