"""Settings of the dashboard, a web page for people: who sees it, and the prices that its savings use."""

from dataclasses import dataclass
from typing import Annotated

from mcp_mirror.settings.declarations import NAME, Example, Number, Scopes

Price = Annotated[float, Number("a price in USD per million tokens, 0 or more", minimum=0)]


@dataclass(frozen=True, slots=True)
class PricePolicy:
    """The price of one model's input, in USD per million tokens."""

    name: Annotated[str, NAME]
    input: Annotated[Price, Example(3)]
    """Input that the provider reads for the first time."""
    cached_input: Annotated[Price | None, Example(0.3)] = None
    """Input that the provider has cached. Default: a tenth of `input`."""

    @property
    def cached(self) -> float:
        """The price of cached input."""
        return self.input / 10 if self.cached_input is None else self.cached_input


@dataclass(frozen=True, slots=True)
class DashboardPolicy:
    """The web page at `/` of the HTTP server, and `mcp-mirror dashboard`: calls, values, lineage and savings."""

    enabled: bool = True
    """Serve the page at `/` of the HTTP server, behind its authentication. A gateway on stdio never serves it;
    `mcp-mirror dashboard` shows its store."""
    operator_scopes: Annotated[Scopes, Example(("mirror.operator",))] = ()
    """The scopes that a token needs to see the calls and the metadata of all principals. Needs `auth`. Default: each
    principal sees only its own."""
    operators_read_values: bool = False
    """Operators may also read the values, arguments and notices of others. The audit log records each read."""
    prices: Annotated[tuple[PricePolicy, ...], Example("claude-sonnet")] = ()
    """Prices by the name of the model, in addition to those that the page contains; the same name replaces one."""
