"""The flow policy: joins labels, and allows or refuses each flow of a value to a destination.

Labels are a lattice: more sources, less integrity and more confidentiality are higher. A value that is made of others
has the join of their labels. Pure.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from typing import ClassVar, Final

import msgspec
from msgspec.structs import replace

from mcp_mirror.settings.labels import (
    FILES,
    FUNCTIONS,
    MODEL,
    RULE,
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

DEFAULT_ZONE: Final = "local"
"""The zone of every place without a configured zone, if there is one user."""

_PLAIN: Final = PlacePolicy()


class Refusal(msgspec.Struct, frozen=True):
    """Why a value may not go somewhere."""

    rule: str
    """The configuration key that refuses the flow, and its value."""
    why: str
    """The reason as a clause: the property of the value, and the requirement of the place."""


@dataclass(frozen=True)
class Flows:
    """The flow policy of a configuration."""

    policy: FlowsPolicy = field(default_factory=FlowsPolicy)
    upstreams: Mapping[str, PlacePolicy] = field(default_factory=dict)
    is_isolated: bool = False
    """Several principals use the gateway, so each place without a zone is its own zone."""
    _labels: dict[str, Labels] = field(init=False, default_factory=dict, compare=False, repr=False)
    """The labels of results of calls without input values, by upstream."""

    @cached_property
    def lowest(self) -> Labels:
        """The labels of something without a source."""
        return Labels(frozenset(), "trusted", self.policy.levels[0])

    @cached_property
    def can_hide(self) -> bool:
        """Whether the policy can hide any value from the model."""
        return bool(self.policy.deny) or self.policy.model.accepts != _PLAIN.accepts

    @cached_property
    def can_refuse(self) -> bool:
        """Whether the policy can refuse any flow."""
        is_selective = any(one.accepts != _PLAIN.accepts for one in (self.policy.files, *self.upstreams.values()))
        separates_zones = self.policy.default == "deny" and (self.is_isolated or self._has_zones)
        return self.can_hide or is_selective or separates_zones

    def join(self, *labels: Labels) -> Labels:
        """The labels of a value that was made of others; the lowest labels without others."""
        if not labels:
            return self.lowest
        return Labels(
            frozenset().union(*(one.sources for one in labels)),
            "trusted" if all(one.integrity == "trusted" for one in labels) else "untrusted",
            self.policy.levels[max(self._rank(one.confidentiality) for one in labels)],
        )

    def place(self, name: str) -> PlacePolicy:
        """The configured policy of a place; the default policy for a place that is not configured (any more)."""
        others = {MODEL: self.policy.model, FILES: self.policy.files}
        return others[name] if name in others else self.upstreams.get(name, _PLAIN)

    def find_zone(self, name: str) -> str | None:
        """The zone of a place; None for the model, which is in all zones.

        If zones are configured, a place that is no longer configured is its own zone.
        """
        if name == MODEL:
            return None
        if zone := self.place(name).zone:
            return zone
        is_gone = name not in {*self.upstreams, FILES, FUNCTIONS}
        is_own_zone = self.is_isolated or (is_gone and self._has_zones)
        return name if is_own_zone else DEFAULT_ZONE

    @property
    def _has_zones(self) -> bool:
        """Whether zones are configured, so that a removed place may have been in one of them."""
        return any(one.zone for one in (self.policy.files, *self.upstreams.values()))

    def labels_of_place(self, name: str) -> Labels:
        """The labels of a value that comes from a place.

        Without configuration, a value is untrusted and most confidential. A value that the model wrote has the highest
        labels that the model may see.
        """
        place = self.place(name)
        accepts = place.accepts if name == MODEL else _PLAIN.accepts
        return Labels(
            frozenset({name}),
            place.integrity or accepts.integrity or "untrusted",
            self._clamp_level(place.confidentiality or accepts.confidentiality or self.policy.levels[-1]),
        )

    def read_labels(self, known: Descriptor) -> Labels:
        """The labels of a stored value; the highest labels for a value that was stored without any."""
        stored = known.labels
        if not {"sources", "integrity", "confidentiality"} <= stored.keys():
            made = known.provenance
            is_whole = made.upstream in {*self.upstreams, FUNCTIONS} and not made.inputs
            sources = {made.upstream} if is_whole else {made.upstream, UNKNOWN}
            return Labels(frozenset(sources), "untrusted", self.policy.levels[-1])
        return Labels(
            frozenset(stored["sources"].split(",")),
            "trusted" if stored["integrity"] == "trusted" else "untrusted",
            self._clamp_level(stored["confidentiality"]),
        )

    def labels_of_result(self, upstream: str, given: Labels, ifc: object = None) -> Labels:
        """The labels of an upstream's result, from the joined labels `given` of the arguments and its `_meta.ifc`."""
        if ifc is None and not given.sources:
            if upstream not in self._labels:
                self._labels[upstream] = self.join(self.labels_of_place(upstream), self.lowest)
            return self._labels[upstream]
        own, lowers = self.labels_of_place(upstream), self.place(upstream).may_lower
        if ifc is None:
            return self.join(own, given)
        if lowers == "nothing":
            return self.join(own, given, self._apply_ifc(ifc, self.lowest))
        if lowers == "own":
            return self.join(self._apply_ifc(ifc, own), given)
        return self._apply_ifc(ifc, self.join(own, given))

    def refusal(self, labels: Labels, to: str) -> Refusal | None:
        """Why a value may not flow to a place; None if it may."""
        if not (self.can_hide if to == MODEL else self.can_refuse):
            return None
        return next((found for check in self._CHECKS if (found := check(self, labels, to))), None)

    def may_show(self, labels: Labels) -> bool:
        """Whether the model may see a value."""
        return not self.can_hide or self.refusal(labels, MODEL) is None

    def _apply_ifc(self, ifc: object, before: Labels) -> Labels:
        """Labels with the integrity and confidentiality of `_meta.ifc`; the highest for malformed values.

        Confidentiality is a level, or a list of readers in which `public` means every reader.
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
        """The rank of a level; the highest for an unknown level."""
        levels: tuple[object, ...] = self.policy.levels
        return levels.index(level) if level in levels else len(levels) - 1

    def _clamp_level(self, level: str) -> str:
        return self.policy.levels[self._rank(level)]

    def _find_rule(self, rules: Iterable[FlowRule], source: str, to: str) -> FlowRule | None:
        for rule in rules:
            if self._matches_side(rule.source, source) and self._matches_side(rule.target, to):
                return rule
        return None

    def _matches_side(self, side: str, name: str) -> bool:
        if side.startswith(ZONE):
            return self.find_zone(name) == side.removeprefix(ZONE)
        return WORDS[side] == name if side in WORDS else fnmatchcase(name, side)

    def _check_deny_rules(self, labels: Labels, to: str) -> Refusal | None:
        for source in sorted(labels.sources):
            if rule := self._find_rule(self.policy.deny, source, to):
                why = f"it contains data of {describe_place(source)}, and `flows.deny` has '{rule}'"
                return Refusal(f"flows.deny: {rule}", why)
        return None

    def _check_accepted_sources(self, labels: Labels, to: str) -> Refusal | None:
        globs = self.place(to).accepts.sources
        if globs is None:
            return None
        key = f"{find_config_key(to)}.accepts.sources"
        for source in sorted(labels.sources - {to, MODEL}):
            if not any(self._matches_side(glob, source) for glob in globs):
                return Refusal(key, f"it contains data of {describe_place(source)}, and `{key}` does not name that")
        return None

    def _check_integrity(self, labels: Labels, to: str) -> Refusal | None:
        if self.place(to).accepts.integrity != "trusted" or labels.integrity == "trusted":
            return None
        key = f"{find_config_key(to)}.accepts.integrity"
        return Refusal(f"{key}: trusted", f"it is untrusted{_explain_model_label(labels)}, and `{key}` is trusted")

    def _check_confidentiality(self, labels: Labels, to: str) -> Refusal | None:
        most = self.place(to).accepts.confidentiality
        if most is None or self._rank(labels.confidentiality) <= self._rank(most):
            return None
        key = f"{find_config_key(to)}.accepts.confidentiality"
        return Refusal(
            f"{key}: {most}", f"it is {labels.confidentiality}{_explain_model_label(labels)}, and `{key}` is {most}"
        )

    def _check_zones(self, labels: Labels, to: str) -> Refusal | None:
        """Why a source in another zone may not flow to this place."""
        target = self.find_zone(to)
        if self.policy.default != "deny" or target is None:
            return None
        for source in sorted(labels.sources):
            zone = self.find_zone(source)
            if zone not in (None, target) and not self._find_rule(self.policy.allow, source, to):
                why = (
                    f"it contains data of {describe_place(source)}, which is in zone '{zone}' and not in '{target}', "
                    "and no rule of `flows.allow` permits the flow"
                )
                return Refusal("flows.default: deny", why)
        return None

    _CHECKS: ClassVar[tuple[Callable[["Flows", Labels, str], Refusal | None], ...]] = (
        _check_deny_rules,
        _check_accepted_sources,
        _check_integrity,
        _check_confidentiality,
        _check_zones,
    )


def build_flows(config: Config, *, is_isolated: bool) -> Flows:
    """The flow policy of a configuration."""
    return Flows(config.flows, {one.name: one.place for one in config.upstreams}, is_isolated)


def format_labels(labels: Labels) -> dict[str, str]:
    """Labels as a descriptor stores them."""
    return {
        "sources": ",".join(sorted(labels.sources)),
        "integrity": labels.integrity,
        "confidentiality": labels.confidentiality,
    }


def read_rule(text: str) -> FlowRule | None:
    """Parse `from -> to`; None for any other text."""
    match = re.fullmatch(RULE, text)
    return FlowRule(match[1], match[2]) if match else None


def describe_place(name: str) -> str:
    """The name of a place in a sentence."""
    return _PLACES.get(name, f"upstream '{name}'")


def _explain_model_label(labels: Labels) -> str:
    return " (the model took part in making it: `flows.model.labels`)" if MODEL in labels.sources else ""


def find_config_key(name: str) -> str:
    """The configuration key of a place."""
    return _KEYS.get(name, f"upstreams.{name}")


_PLACES: Final = {MODEL: MODEL, FILES: FILES, FUNCTIONS: FUNCTIONS, UNKNOWN: "unknown origin"}
_KEYS: Final = {MODEL: "flows.model", FILES: "flows.files"}
