"""Labels of values, and the settings of flows: the labels and accepted values of each place, and the rules.

A label names the sources of a value, its integrity and its confidentiality. `security/flows.py` applies the rules.
"""

from collections.abc import Mapping
from typing import Annotated, Final, Literal, NamedTuple

from mcp_mirror.settings.declarations import SINGLE, AtLeast, Example, Globs, Group, Level, Section, Text, Without, Zone

Integrity = Literal["trusted", "untrusted"]

Lowering = Literal["nothing", "own", "all"]
"""The labels of results that an upstream's annotation (`_meta.ifc`) may lower: none; those that its `labels` give; also
those of the values in the call. An annotation never removes sources."""

OnRefusal = Literal["error", "ask"]

FlowDefault = Literal["allow", "deny"]

LEVELS: Final = ("public", "internal", "private")
"""The default levels of confidentiality, from those that all may see to those that the fewest may see."""

MODEL: Final = "the model"
"""The place that reads results and writes arguments. An upstream cannot have this name."""
FILES: Final = "local files"
"""The place that memory_import reads and memory_export writes. An upstream cannot have this name."""
FUNCTIONS: Final = "local functions"
"""The upstream of a program's own functions. Another upstream cannot have this name."""
UNKNOWN: Final = "?"
"""The source of a value that was made of values without known sources."""
WORDS: Final[Mapping[str, str]] = {"model": MODEL, "files": FILES, "functions": FUNCTIONS}
"""The words in rules for places that are not upstreams."""
ZONE: Final = "zone:"
"""The prefix of a zone in a rule."""


class Labels(Section, frozen=True):
    """The labels of one value."""

    sources: frozenset[str]
    """The places whose data the value contains."""
    integrity: Integrity
    confidentiality: str
    """One of the policy's levels."""


_LABELS: Final = Group("labels", "The labels of values from here, if nothing else determines them.")


class Accepts(Section, frozen=True):
    """The values that a place may receive. Default: all."""

    integrity: Annotated[Integrity | None, Example("untrusted")] = None
    """trusted: only values without untrusted content."""
    confidentiality: Annotated[Level | None, Example("internal")] = None
    """The highest of `flows.levels` that the place may see."""
    sources: Annotated[Globs | None, SINGLE, Example(("*",))] = None
    """Globs of the upstreams whose data the place may receive, besides its own; `files`; `zone:` and a zone."""


class PlacePolicy(Section, frozen=True):
    """The labels of values that come from a place, and what the place may receive."""

    integrity: Annotated[Integrity | None, _LABELS, Example("untrusted")] = None
    """trusted: outsiders cannot write here. Default: untrusted."""
    confidentiality: Annotated[Level | None, _LABELS, Example("internal")] = None
    """One of `flows.levels`. Default: the last, which the fewest may see; for the model, the highest that it may
    see."""
    accepts: Accepts = Accepts()
    """The values that the place may receive. Default: all."""
    zone: Annotated[Zone | None, Example("local")] = None
    """Data flows between zones only by a rule. Default: all places share one zone; over HTTP with `auth`, each place
    has a zone of its own."""
    may_lower: Lowering = "nothing"
    """The labels that the place's own annotation of a result, `_meta.ifc`, may lower; it may raise all. own: the labels
    that `labels` gives its results. all: also those of the values that the call received."""


class FlowRule(NamedTuple):
    """`source -> target`: each a glob of upstreams' names, `model`, `files`, `functions`, or `zone:` and a zone."""

    source: str
    target: str

    def __str__(self) -> str:
        return f"{self.source} -> {self.target}"


_SIDE: Final = r"\s*((?:the |local )?\S+)\s*"
RULE: Final = f"{_SIDE}->{_SIDE}"
"""The pattern of a rule."""
Rules = Annotated[tuple[Annotated[FlowRule, Text("a flow such as 'crm -> mail'", RULE)], ...], SINGLE]


class FlowsPolicy(Section, frozen=True):
    """The allowed data flows. A rule is `from -> to`; sides are upstreams, globs, `model`, `files`, `zone:NAME`."""

    levels: Annotated[tuple[Level, ...], SINGLE, AtLeast(2, "a list of two levels or more")] = LEVELS
    """The levels of confidentiality, from those that all may see to those that the fewest may see."""
    default: FlowDefault = "deny"
    """Whether a flow between zones without a rule is allowed."""
    allow: Annotated[Rules, Example(("filesystem -> git",))] = ()
    """Flows between zones to allow. The `accepts` of a place still applies."""
    deny: Annotated[Rules, Example(("* -> files",))] = ()
    """Flows to refuse regardless of all other rules."""
    on_refusal: OnRefusal = "error"
    """error: the model gets an error that names the rule. ask: if the client supports elicitation, the user decides
    whether to allow the flow once."""
    model: Annotated[PlacePolicy, Without(("zone", "may_lower"))] = PlacePolicy()
    """The values that the model may see, and the labels of its own text."""
    files: Annotated[PlacePolicy, Without(("may_lower",))] = PlacePolicy()
    """The values that memory_export may write, and the labels of those that memory_import reads."""
