"""The matrix of runs: cases x models x notice styles x variants x few-shot x gateway x repeats; and the keys of runs.

Pure. A key is a digest of everything that influences the measurement: by it, a log recognizes the runs that it has.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from typing import Annotated, Any, ClassVar, Final, get_args

from pydantic import ConfigDict, Field

from mcp_mirror.config import NoticeStyle
from mcp_mirror.errors import ConfigError
from mcp_mirror.evals.cases import Case
from mcp_mirror.evals.dialects import ToolsMode

STYLES: Final[tuple[NoticeStyle, ...]] = get_args(NoticeStyle)
PLAIN: Final = "-"
"""The name of the variant without changes, and of the notice style without the gateway."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model, its endpoint, and the settings of its requests: what a profile file has under the model's name."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    name: str
    base_url: str = ""
    model: str = ""
    """The model's name at the endpoint; empty: `name`."""
    tools: ToolsMode = "native"
    temperature: Annotated[float | None, Field(ge=0)] = None
    max_tokens: Annotated[int | None, Field(gt=0)] = None
    """Limit of one reply."""
    system: str = ""
    """Replaces the beginning of our system prompt."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Additional members of each request."""
    api_key_env: str = ""
    """The environment variable with the API key."""
    timeout: Annotated[float, Field(gt=0)] = 600.0
    """Seconds that one reply may take."""
    vision: bool = False
    harness: str = ""
    """The agent framework that calls the tools; empty: our own loop."""

    def can_do(self, case: Case) -> bool:
        """Whether the model has everything that a case requires."""
        return self.vision or "vision" not in case.requires

    @property
    def measured_settings(self) -> dict[str, Any]:
        """The settings that influence the model's replies or distinguish it from the other models of a matrix.

        The URL is not one of them, so that a log can continue with another port.
        """
        unmeasured = {"base_url", "api_key_env", "timeout"} | (set() if self.vision else {"vision"})
        measured = {name: value for name, value in asdict(self).items() if name not in unmeasured}
        return {**measured, "model": self.model or self.name}


@dataclass(frozen=True, slots=True)
class Setting:
    """The settings of one run."""

    case: Case
    model: Model
    style: str
    variant: str
    changes: Mapping[str, Any]
    """The variant's changes to the gateway's configuration."""
    few_shot: bool
    gateway: bool
    repeat: int
    seed: int

    @property
    def labels(self) -> dict[str, Any]:
        """The settings by name, for the log and the table."""
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
        """A digest of everything that influences the measurement, 16 hexadecimal digits."""
        parts = {
            **self.labels,
            "case": self.case.digest,
            "model": self.model.measured_settings,
            "variant": self.changes,
            "few_shot": [part.model_dump(mode="json") for part in self.case.few_shot] if self.few_shot else None,
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def config(self) -> dict[str, Any]:
        """The gateway's configuration: a memory store, the case's `servers`, the notice style, and the variant."""
        style = {"mirror": {"notice": self.style}} if self.gateway else {}
        return merge(merge(merge({"store": {"kind": "memory"}}, self.case.servers), style), self.changes)


@dataclass(frozen=True, slots=True)
class Matrix:
    """The values that are combined."""

    cases: Sequence[Case]
    models: Sequence[Model]
    styles: Sequence[str] = ("compact",)
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {PLAIN: {}})
    few_shot: Sequence[bool] = (False,)
    gateway: Sequence[bool] = (True,)
    repeats: int = 1
    seed: int = 1

    def skipped(self) -> Iterator[tuple[Case, Model]]:
        """Yield the cases that are skipped with a model, because it has not everything that they require."""
        return ((case, model) for model, case in product(self.models, self.cases) if not model.can_do(case))

    def settings(self) -> Iterator[Setting]:
        """Yield the settings of every run: all combinations once, then the repeats, so that partial logs are balanced.

        Without the gateway, styles and variants do not apply, and cases that require the gateway are left out. With
        examples, cases without examples are left out. Cases that a model cannot do are left out; see `skipped`.
        """
        for repeat, model, gateway in product(range(self.repeats), self.models, self.gateway):
            styles = self.styles if gateway else (PLAIN,)
            variants = self.variants if gateway else {PLAIN: {}}
            for style, variant, few_shot, case in product(styles, variants, self.few_shot, self.cases):
                if (case.gateway == "required" and not gateway) or (few_shot and not case.few_shot):
                    continue
                if not model.can_do(case):
                    continue
                seed = self.seed + repeat
                yield Setting(case, model, style, variant, variants[variant], few_shot, gateway, repeat, seed)


def check_style(name: str) -> str:
    """Return the name of a notice style; ConfigError for an unknown one."""
    if name not in STYLES:
        raise ConfigError(f"--notice: unknown style {name!r}. The styles are {', '.join(STYLES)}.")
    return name


def merge(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two mappings at all levels; of two other values, that of `other` counts."""
    both = dict(one)
    for key, value in other.items():
        mine = both.get(key)
        both[key] = merge(mine, value) if isinstance(mine, Mapping) and isinstance(value, Mapping) else value
    return both
