"""The keys that say how values are labelled and what may flow where."""

from typing import Annotated, Final

from pydantic import BeforeValidator, Field

from mcp_mirror.config.fields import Answers, Flow, Globs, Integrities, Level, Listed, Lowerings, OrNothing, Zonal, Zone
from mcp_mirror.config.trust import Section
from mcp_mirror.settings.labels import Accepts, FlowsPolicy, PlacePolicy

_FLOWS: Final = FlowsPolicy()
_PLACE: Final = PlacePolicy()
_ACCEPTS: Final = Accepts()


class LabelsSection(Section):
    """What values get that come from a place."""

    integrity: Integrities | None = Field(
        default=_PLACE.integrity,
        description="trusted: nobody from outside has written in it. By default untrusted.",
    )
    confidentiality: Level | None = Field(
        default=_PLACE.confidentiality,
        description="One of `flows.levels`. By default the last, which the fewest may see.",
        examples=["internal"],
    )


class AcceptsSection(Section):
    """What a place may receive. By default anything."""

    integrity: Integrities | None = Field(
        default=_ACCEPTS.integrity, description="trusted: no value that holds anything untrusted."
    )
    confidentiality: Level | None = Field(
        default=_ACCEPTS.confidentiality,
        description="The highest of `flows.levels` that it may see.",
        examples=["public"],
    )
    sources: Annotated[Globs, Listed] | None = Field(
        default=_ACCEPTS.sources,
        description="Globs of the upstreams whose data it may receive, beside its own; `files`; `zone:` and a zone.",
        examples=[["crm", "zone:office"]],
    )


class ModelPlaceSection(Section):
    """The model: it reads what is shown, and writes arguments."""

    labels: Annotated[LabelsSection, OrNothing] = Field(
        default=LabelsSection(),
        description="What values get that come from here, whose labels nothing else says.",
    )
    accepts: Annotated[AcceptsSection, OrNothing] = Field(
        default=AcceptsSection(), description="What may be sent or shown here."
    )


class FilesPlaceSection(ModelPlaceSection):
    """Local files, which memory_import reads and memory_export writes."""

    zone: Zone | None = Field(
        default=_PLACE.zone,
        description="Between zones nothing flows that no rule lets pass. By default all are in one; where `auth` lets "
        "several people in, each is in one of its own.",
        examples=["office"],
    )


class UpstreamPlaceSection(FilesPlaceSection):
    """What an upstream's results are labelled, and what it may receive."""

    may_lower: Lowerings = Field(
        default=_PLACE.may_lower,
        description="Which labels its own word, `_meta.ifc` of a result, may lower; any may be raised. own: those that "
        "`labels` gives its results. all: those of what the call was given too.",
    )


class FlowsSection(Section):
    """What may flow where. A rule is `from -> to`; sides are upstreams, globs, `model`, `files`, `zone:NAME`."""

    levels: Annotated[tuple[Level, ...], Listed] = Field(
        default=_FLOWS.levels,
        min_length=2,
        description="The levels of confidentiality, from what all may see to what the fewest may.",
    )
    default: Zonal = Field(default=_FLOWS.default, description="What flows from one zone to another without a rule.")
    allow: Annotated[tuple[Flow, ...], Listed] = Field(
        default=(),
        description="Flows from one zone to another. What a place accepts binds them too.",
        examples=[["crm -> mail"]],
    )
    deny: Annotated[tuple[Flow, ...], Listed] = Field(
        default=(), description="Flows that are refused whatever else is said.", examples=[["zone:web -> files"]]
    )
    on_refusal: Answers = Field(
        default=_FLOWS.on_refusal,
        description="error: the model hears which rule refuses. ask: where the client can, the user is asked "
        "whether to let it pass once.",
    )
    model: Annotated[ModelPlaceSection, OrNothing] = Field(
        default=ModelPlaceSection(), description="What the model may see, and how what it says is labelled."
    )
    files: Annotated[FilesPlaceSection, OrNothing] = Field(
        default=FilesPlaceSection(), description="What may be written to local files, and how theirs is labelled."
    )


def _flows_of_list(value: object) -> object:
    return {"allow": value} if isinstance(value, list) else value


Flowing = Annotated[FlowsSection, OrNothing, BeforeValidator(_flows_of_list)]
"""A list stands for the flows that are allowed."""
