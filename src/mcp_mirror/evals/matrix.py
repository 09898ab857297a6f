"""What is run: cases x models x notice styles x wordings x few-shot x gateway, repeated; and each run's key.

Pure. A key holds all that decides what a run measures, so that a log knows what it has already.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Final, get_args

from mcp_mirror.errors import ConfigError
from mcp_mirror.evals.cases import Case
from mcp_mirror.evals.dialects import ToolsMode
from mcp_mirror.settings.policies import NoticeStyle

STYLES: Final[tuple[NoticeStyle, ...]] = get_args(NoticeStyle)
PLAIN: Final = "-"
"""The name of the wording that changes nothing; and of the style where there is no gateway."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model, where it answers, and how it is spoken to."""

    name: str
    base_url: str
    model: str = ""
    """Its name at the endpoint; empty: `name`."""
    tools: ToolsMode = "native"
    temperature: float | None = None
    max_tokens: int | None = None
    """Of one reply."""
    system: str = ""
    """Put in the place of our own first words to it."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Members of each request."""
    api_key_env: str = ""
    """The environment variable that holds the key."""
    timeout: float = 600.0
    """Seconds that one reply may take."""
    harness: str = ""
    """What lets it work, if not our own loop."""

    @property
    def measured(self) -> dict[str, Any]:
        """What of it changes what it says, and what tells it from the others of a matrix.

        Not where it is served: a log goes on at another port.
        """
        return {
            "name": self.name,
            "model": self.model or self.name,
            "tools": self.tools,
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "system": self.system,
            "extra": dict(self.extra),
            "harness": self.harness,
        }


@dataclass(frozen=True, slots=True)
class Setting:
    """One run, but for what came of it."""

    case: Case
    model: Model
    style: str
    variant: str
    changes: Mapping[str, Any]
    """What the variant changes of the gateway's configuration."""
    few_shot: bool
    gateway: bool
    repeat: int
    seed: int

    @property
    def labels(self) -> dict[str, Any]:
        """What tells it from others, for a reader."""
        return {
            "case": self.case.name,
            "model": self.model.name,
            "notice": self.style,
            "variant": self.variant,
            "few_shot": self.few_shot,
            "gateway": self.gateway,
            "repeat": self.repeat,
            "seed": self.seed,
        }

    @property
    def key(self) -> str:
        """A digest of all that decides what is measured; 16 hexadecimal digits."""
        parts = {
            **self.labels,
            "case": self.case.digest,
            "model": self.model.measured,
            "variant": self.changes,
            "few_shot": [part.model_dump(mode="json") for part in self.case.few_shot] if self.few_shot else None,
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def config(self) -> dict[str, Any]:
        """The gateway's configuration: in memory alone, but for what the case and the variant say."""
        style = {"mirror": {"notice": self.style}} if self.gateway else {}
        return merged(merged(merged({"store": {"kind": "memory"}}, self.case.servers), style), self.changes)


@dataclass(frozen=True, slots=True)
class Matrix:
    """All that is combined."""

    cases: Sequence[Case]
    models: Sequence[Model]
    styles: Sequence[str] = ("compact",)
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {PLAIN: {}})
    few_shot: Sequence[bool] = (False,)
    gateway: Sequence[bool] = (True,)
    repeats: int = 1
    seed: int = 1

    def settings(self) -> Iterator[Setting]:
        """Every run, all combinations once before any is repeated: what is broken off is balanced.

        Without the gateway there are no notices, and no wording of ours; a case that needs it is left out there, and
        one that has no examples where examples are wanted.
        """
        for repeat, model, gateway in product(range(self.repeats), self.models, self.gateway):
            styles = self.styles if gateway else (PLAIN,)
            variants = self.variants if gateway else {PLAIN: {}}
            for style, variant, few_shot, case in product(styles, variants, self.few_shot, self.cases):
                if (case.gateway == "required" and not gateway) or (few_shot and not case.few_shot):
                    continue
                seed = self.seed + repeat
                yield Setting(case, model, style, variant, variants[variant], few_shot, gateway, repeat, seed)


def check_style(name: str) -> str:
    """The name of a style of notices.

    Raises:
        ConfigError: There is no such style.
    """
    if name not in STYLES:
        raise ConfigError(f"--notice: there is no style {name!r}. There are {', '.join(STYLES)}.")
    return name


def merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Two mappings as one: where both have a mapping these are merged too, else the other's value stands."""
    both = dict(one)
    for key, value in other.items():
        mine = both.get(key)
        both[key] = merged(mine, value) if isinstance(mine, Mapping) and isinstance(value, Mapping) else value
    return both
