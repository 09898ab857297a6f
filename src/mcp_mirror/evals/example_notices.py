"""Writes the notices of an example: a mirror calls functions that return the example's values."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from mcp_mirror import Mirror
from mcp_mirror.config import NoticeStyle
from mcp_mirror.evals.cases import Turn
from mcp_mirror.evals.few_shot import path_of, with_values


async def write_notices(turns: Iterable[Turn], style: NoticeStyle) -> Sequence[str]:
    """Return the notice of each stored result of an example, with the path that the example gives it."""
    stored = [turn for turn in turns if turn.stored is not None]
    values = {turn.tool: turn.stored for turn in stored}
    mirror = Mirror(store="memory", upstreams={"upstreams": {}, "mirror": {"notice": style}})
    for tool in values:
        names = {name for turn in stored if turn.tool == tool for name in turn.arguments}
        mirror.tool(name=tool, capture="always", inline_budget=0)(_function_that_returns(values, tool, sorted(names)))
    notices: list[str] = []
    async with mirror:
        for number, turn in enumerate(stored):
            values[turn.tool] = turn.stored
            arguments = with_values(turn.arguments, [one.stored for one in stored])
            reply = await mirror.call(f"{turn.tool}_mirrored", arguments)
            assert reply.path is not None, reply.text  # noqa: S101  # everything is stored
            notices.append(reply.text.replace(reply.path, path_of(turn, number)))
    return notices


def _function_that_returns(values: Mapping[str, Any], tool: str, parameters: Iterable[str]) -> Callable[..., Any]:
    def function(**_arguments: Any) -> Any:
        return values[tool]

    function.__annotations__ = dict.fromkeys(parameters, Any)
    function.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # functions may have one
        [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Any) for name in parameters]
    )
    return function
