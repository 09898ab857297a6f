"""The oracle with `mirror.listing: search`: a search for each tool before its first call, and calls by name."""

import re
from typing import Final

from loca_arms import CLAIM
from loca_oracle import Ask, Script, Step, ask

_IN_SCRIPT: Final = re.compile(r"await tools\.(\w+)\(")


def with_search(script: Script) -> Script:
    """The steps of a script, with a search for each tool that it, or a script of `memory_run`, calls first.

    A search has the words of the tool's name. If the tool is not among the matches with arguments, a second search asks
    for its definition.
    """
    found = ""
    step: Step | None = next(script)
    while step is not None:
        missing = [tool for tool in _tools_of(step) if not _find_name(tool, found)]
        if missing:
            texts = yield [ask("find_tools", query=tool.tool.replace("_", " ")) for tool in missing]
            found = "\n".join([found, *texts])
        names = [_match_name(tool, found) for tool in missing if not _find_name(tool, found)]
        if names:
            texts = yield [ask("find_tools", name=name) for name in names]
            found = "\n".join([found, *texts])
        results = yield [_as_call(one, found) for one in step]
        try:
            step = script.send(results)
        except StopIteration:
            step = None if _is_claim(step) else [ask(f"{CLAIM}.{CLAIM}")]


def _is_claim(step: Step) -> bool:
    return any(one.tool == CLAIM for one in step)


def _tools_of(step: Step) -> list[Ask]:
    """The tools that the calls of a reply, and the scripts in it, use."""
    tools = {one.tool: one for one in step if one.server}
    codes = [str(one.arguments.get("code", "")) for one in step if one.tool == "memory_run"]
    used = [name for code in codes for name in _IN_SCRIPT.findall(code)]
    return [*tools.values(), *(Ask("", name, {}) for name in dict.fromkeys(used) if name not in tools)]


def _names(tool: Ask) -> tuple[str, ...]:
    return (f"{tool.tool}_mirrored", f"{tool.server}_{tool.tool}_mirrored")


def _find_name(tool: Ask, found: str) -> str:
    """The listed name of a tool whose arguments a search has shown, or nothing."""
    return next((name for name in _names(tool) if re.search(rf'(?m)^{name}\(|"name":"{name}"', found)), "")


def _match_name(tool: Ask, found: str) -> str:
    """The listed name of a tool that a search has only named.

    Raises:
        LookupError: No search has named it.
    """
    for name in _names(tool):
        if re.search(rf"\b{name}\b", found):
            return name
    raise LookupError(f"No search finds the tool {tool.tool!r}.")


def _as_call(one: Ask, found: str) -> Ask:
    return ask("call_tool", name=_find_name(one, found), arguments=dict(one.arguments)) if one.server else one
