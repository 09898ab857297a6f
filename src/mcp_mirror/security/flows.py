"""What may flow where: labels joined, and each flow allowed or refused, by the user's policy.

Labels are a lattice: more sources, less integrity and more confidentiality are higher, and what is made of values is
as high as all of them together. Pure: who asks, and what a refusal becomes, is not known here.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Final

from mcp_mirror.settings.labels import (
    FILES,
    FUNCTIONS,
    MODEL,
    UNKNOWN,
    WORDS,
    ZONE,
    FlowRule,
    FlowsPolicy,
    Labels,
    PlacePolicy,
)
from mcp_mirror.settings.policies import Config
from mcp_mirror.types import Descriptor

EVERYBODY: Final = "local"
"""The zone of every place that is in no other, where there is one user."""

_SIDE: Final = r"\s*((?:the |local )?\S+)\s*"
RULE: Final = f"{_SIDE}->{_SIDE}"
"""The pattern of a rule."""
_PLAIN: Final = PlacePolicy()


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a value may not go somewhere."""

    rule: str
    """The key of the configuration that says so, and what it says."""
    why: str
    """The same as a clause: what is so of the value, and what the place wants."""


@dataclass(frozen=True, slots=True)
class Flows:
    """The policy at work."""

    policy: FlowsPolicy = field(default_factory=FlowsPolicy)
    upstreams: Mapping[str, PlacePolicy] = field(default_factory=dict)
    is_isolated: bool = False
    """Several principals use the gateway: each place that is in no zone is one of its own."""
    lowest: Labels = field(init=False, compare=False, repr=False)
    """The labels of something without a source."""
    can_hide: bool = field(init=False, compare=False, repr=False)
    """Whether the policy can hide any value from the model."""
    can_refuse: bool = field(init=False, compare=False, repr=False)
    """Whether the policy can refuse any flow."""
    _labels: dict[str, Labels] = field(init=False, default_factory=dict, compare=False, repr=False)
    """The labels of results of calls without input values, by upstream."""

    def __post_init__(self) -> None:
        """Evaluate once what every call needs."""
        policy = self.policy
        can_hide = bool(policy.deny) or policy.model.accepts != _PLAIN.accepts
        accepts = any(place.accepts != _PLAIN.accepts for place in (policy.files, *self.upstreams.values()))
        has_zones = policy.default == "deny" and (self.is_isolated or self._has_zones)
        object.__setattr__(self, "lowest", Labels(frozenset(), "trusted", policy.levels[0]))
        object.__setattr__(self, "can_hide", can_hide)
        object.__setattr__(self, "can_refuse", can_hide or accepts or has_zones)

    def join(self, *labels: Labels) -> Labels:
        """What a value is that was made of others; of none, the lowest."""
        if not labels:
            return self.lowest
        return Labels(
            frozenset().union(*(one.sources for one in labels)),
            "trusted" if all(one.integrity == "trusted" for one in labels) else "untrusted",
            self.policy.levels[max(self._rank(one.confidentiality) for one in labels)],
        )

    def place(self, name: str) -> PlacePolicy:
        """What the user decided on a place; of one that is none any more, nothing."""
        others = {MODEL: self.policy.model, FILES: self.policy.files}
        return others[name] if name in others else self.upstreams.get(name, _PLAIN)

    def zone_of(self, name: str) -> str | None:
        """The zone of a place; None for the model, which is in all. One that is no more is kept apart from zones."""
        if name == MODEL:
            return None
        is_gone = name not in {*self.upstreams, FILES, FUNCTIONS}
        return self.place(name).zone or (name if self.is_isolated or (is_gone and self._has_zones) else EVERYBODY)

    @property
    def _has_zones(self) -> bool:
        """Whether a place that is no more may have been in another zone than everybody."""
        return any(one.zone for one in (self.policy.files, *self.upstreams.values()))

    def labels_from(self, name: str) -> Labels:
        """What a value gets that comes from a place: where nothing is said, the least trust and the fewest readers.

        What the model writes is no worse than the worst that it may be shown.
        """
        place = self.place(name)
        accepts = place.accepts if name == MODEL else _PLAIN.accepts
        return Labels(
            frozenset({name}),
            place.integrity or accepts.integrity or "untrusted",
            self._level(place.confidentiality or accepts.confidentiality or self.policy.levels[-1]),
        )

    def labels_of(self, known: Descriptor) -> Labels:
        """The labels of a stored value; of one from before there were any, the worst that they can be."""
        told = known.labels
        if not {"sources", "integrity", "confidentiality"} <= told.keys():
            made = known.provenance
            is_whole = made.upstream in {*self.upstreams, FUNCTIONS} and not made.inputs
            sources = {made.upstream} if is_whole else {made.upstream, UNKNOWN}
            return Labels(frozenset(sources), "untrusted", self.policy.levels[-1])
        return Labels(
            frozenset(told["sources"].split(",")),
            "trusted" if told["integrity"] == "trusted" else "untrusted",
            self._level(told["confidentiality"]),
        )

    def labels_of_result(self, upstream: str, given: Labels, ifc: object = None) -> Labels:
        """The labels of what an upstream answers.

        Args:
            upstream: Its name.
            given: The join of the values that the call was given.
            ifc: What `_meta.ifc` of the result says, as JSON read; None where it says nothing.
        """
        if ifc is None and not given.sources:
            if upstream not in self._labels:
                self._labels[upstream] = self.join(self.labels_from(upstream), self.lowest)
            return self._labels[upstream]
        own, lowers = self.labels_from(upstream), self.place(upstream).may_lower
        if ifc is None:
            return self.join(own, given)
        if lowers == "nothing":
            return self.join(own, given, self._said(ifc, self.lowest))
        said = self._said(ifc, own if lowers == "own" else self.join(own, given))
        return self.join(said, given) if lowers == "own" else said

    def refusal(self, labels: Labels, to: str) -> Refusal | None:
        """Why a value may not go to a place; None where it may."""
        if not (self.can_hide if to == MODEL else self.can_refuse):
            return None
        return next((found for check in _CHECKS if (found := check(self, labels, to))), None)

    def may_show(self, labels: Labels) -> bool:
        """Whether the model may see a value."""
        return not self.can_hide or self.refusal(labels, MODEL) is None

    def _said(self, ifc: object, before: Labels) -> Labels:
        """Labels with what `_meta.ifc` says in place of what they were; what it says unreadably is the worst.

        Confidentiality is a level, or a list of readers of whom `public` is everybody.
        """
        if not isinstance(ifc, Mapping):
            return replace(before, integrity="untrusted", confidentiality=self.policy.levels[-1])
        integrity, level = before.integrity, before.confidentiality
        if "integrity" in ifc:
            integrity = "trusted" if ifc["integrity"] == "trusted" else "untrusted"
        if "confidentiality" in ifc:
            readers = ifc["confidentiality"]
            named = readers if isinstance(readers, list) and readers else [readers]
            level = self.policy.levels[max(self._rank(one) for one in named)]
        return replace(before, integrity=integrity, confidentiality=level)

    def _rank(self, level: object) -> int:
        """How few may see it; what is no level (any more) is seen by the fewest."""
        levels: tuple[object, ...] = self.policy.levels
        return levels.index(level) if level in levels else len(levels) - 1

    def _level(self, level: str) -> str:
        return self.policy.levels[self._rank(level)]

    def _matching(self, rules: Iterable[FlowRule], source: str, to: str) -> FlowRule | None:
        return next((rule for rule in rules if self._is(rule.source, source) and self._is(rule.target, to)), None)

    def _is(self, side: str, name: str) -> bool:
        if side.startswith(ZONE):
            return self.zone_of(name) == side.removeprefix(ZONE)
        return WORDS[side] == name if side in WORDS else fnmatchcase(name, side)

    def _denied(self, labels: Labels, to: str) -> Refusal | None:
        for source in sorted(labels.sources):
            if rule := self._matching(self.policy.deny, source, to):
                return Refusal(f"flows.deny: {rule}", f"it holds data of {told(source)}, and `flows.deny` has '{rule}'")
        return None

    def _unnamed(self, labels: Labels, to: str) -> Refusal | None:
        globs = self.place(to).accepts.sources
        for source in sorted(labels.sources - {to, MODEL}) if globs is not None else ():
            if not any(self._is(glob, source) for glob in globs or ()):
                key = f"{key_of(to)}.accepts.sources"
                return Refusal(key, f"it holds data of {told(source)}, and `{key}` does not name that")
        return None

    def _untrusted(self, labels: Labels, to: str) -> Refusal | None:
        if self.place(to).accepts.integrity != "trusted" or labels.integrity == "trusted":
            return None
        key = f"{key_of(to)}.accepts.integrity"
        return Refusal(f"{key}: trusted", f"it is untrusted{_hand(labels)}, and `{key}` is trusted")

    def _secret(self, labels: Labels, to: str) -> Refusal | None:
        most = self.place(to).accepts.confidentiality
        if most is None or self._rank(labels.confidentiality) <= self._rank(most):
            return None
        key = f"{key_of(to)}.accepts.confidentiality"
        return Refusal(f"{key}: {most}", f"it is {labels.confidentiality}{_hand(labels)}, and `{key}` is {most}")

    def _beyond(self, labels: Labels, to: str) -> Refusal | None:
        """Whether a source is in another zone, and nothing lets it out of there."""
        target = self.zone_of(to)
        for source in sorted(labels.sources) if self.policy.default == "deny" and target is not None else ():
            zone = self.zone_of(source)
            if zone not in (None, target) and not self._matching(self.policy.allow, source, to):
                said = f"it holds data of {told(source)}, which is in zone '{zone}' and not in '{target}', and no rule "
                return Refusal("flows.default: deny", f"{said}of `flows.allow` lets it pass")
        return None


_CHECKS: Final[tuple[Callable[[Flows, Labels, str], Refusal | None], ...]] = (
    Flows._denied,  # noqa: SLF001  # the table of this class's own checks, in their order
    Flows._unnamed,  # noqa: SLF001
    Flows._untrusted,  # noqa: SLF001
    Flows._secret,  # noqa: SLF001
    Flows._beyond,  # noqa: SLF001
)


def flows_of(config: Config, *, is_isolated: bool) -> Flows:
    """The policy of a configuration."""
    return Flows(config.flows, {one.name: one.place for one in config.upstreams}, is_isolated)


def written(labels: Labels) -> dict[str, str]:
    """Labels as a descriptor keeps them."""
    return {
        "sources": ",".join(sorted(labels.sources)),
        "integrity": labels.integrity,
        "confidentiality": labels.confidentiality,
    }


def read_rule(text: str) -> FlowRule | None:
    """`from -> to`; None where it is something else."""
    match = re.fullmatch(RULE, text)
    return FlowRule(match[1], match[2]) if match else None


def told(name: str) -> str:
    """A place in a sentence."""
    return _TOLD.get(name, f"upstream '{name}'")


def _hand(labels: Labels) -> str:
    return " (the model had a hand in it: `flows.model.labels`)" if MODEL in labels.sources else ""


def key_of(name: str) -> str:
    """Where in a configuration a place is."""
    return _KEYS.get(name, f"upstreams.{name}")


_TOLD: Final = {MODEL: MODEL, FILES: FILES, FUNCTIONS: FUNCTIONS, UNKNOWN: "unknown origin"}
_KEYS: Final = {MODEL: "flows.model", FILES: "flows.files"}
