"""The tool `memory_run`: runs a script over stored values and captures its result.

Everything that a script receives joins one set of flow labels: its inputs, the results of its calls and their errors.
Each call carries the set as labels of its arguments, and so does everything that leaves the script. A model that may
not see the set gets a memory path and nothing else, whether the script returned or failed.
"""

import hashlib
from collections.abc import Collection, Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from mcp_mirror.core.resolve import Pointer
from mcp_mirror.errors import ToolError
from mcp_mirror.memory.code.failures import build_error, explain_unknown_names, takes_text_for_rows
from mcp_mirror.memory.code.inputs import (
    ValueBudget,
    check_variables,
    read_content,
    read_files,
    read_inputs,
)
from mcp_mirror.memory.code.progress import Progress
from mcp_mirror.memory.code.sandbox import TYPE_CHECK, CallAnswer, Failure, Outcome, Script
from mcp_mirror.memory.code.script_result import keep_result
from mcp_mirror.memory.code.scripts import ScriptCall, Scripts, ScriptTool, ScriptToolResult
from mcp_mirror.memory.code.stubs import (
    find_names,
    name_tools,
    select_tools,
    write_prelude,
    write_stubs,
)
from mcp_mirror.memory.tools.save import NewValue, save_hidden, save_value, show
from mcp_mirror.memory.tools.table import RUN
from mcp_mirror.memory.tools.tool import Content, MemoryTool, ToolInput, build_text_content
from mcp_mirror.paths import BASE_PATTERN, SHOWN_END
from mcp_mirror.settings.policies import CodePolicy, ScriptAccess
from mcp_mirror.system.fair_threads import run_fairly
from mcp_mirror.system.patterns import lazy_pattern
from mcp_mirror.system.slices import run_by_size

_MAX_CODE: Final = 100_000
"""Characters of a script."""
_CHARACTERS_PER_TOKEN: Final = 3
"""Printed characters that are shown for each token of the read budget."""
_LITERAL: Final = lazy_pattern(rf"""(['"])({BASE_PATTERN}(?:/[^'"\s]*)?)\1""")
"""A memory path in quotes."""
_NO_VALUE: Final = (
    "The script returned None. Let its last line be the value to return, or print text. Then call memory_run again."
)


async def run(call: ToolInput) -> Content:
    """Run a script and return its result; ToolError, with the line, if it cannot run or fails."""
    scripts, memory = call.memory.scripts, call.memory
    if scripts is None:
        raise ToolError("Scripts cannot run here. Call memory_run as a tool.")
    code = call.arguments.code("code")
    if len(code) > _MAX_CODE:
        raise ToolError(f"The script has {len(code):,} characters; {_MAX_CODE:,} are accepted. Shorten it.")
    raw_inputs = call.arguments.json("inputs") if call.arguments.has("inputs") else b"{}"
    await _check_literals(call, code, raw_inputs)
    policy = scripts.policy
    without_files = await read_inputs(
        call, raw_inputs, check_variables, lambda size: ValueBudget(policy.values).take(size)
    )
    inputs = await read_files(without_files, policy.values, call.namespace)
    most_printed = min(policy.output, _CHARACTERS_PER_TOKEN * memory.mirror.read_budget)
    budget = ValueBudget(policy.values)
    progress = Progress(code, inputs, inputs.labels, inputs.preview, memory.flows.join, budget, most_printed)
    try:
        outcome = await _execute(call, scripts, progress)
    finally:
        memory.trace.detail = {
            "script": hashlib.sha256(code.encode("utf-8", "replace")).hexdigest(),
            "inputs": " ".join(inputs.paths),
            "calls": str(progress.calls),
        }
        memory.trace.labels = progress.labels
    memory.trace.returned = None if outcome.failure else outcome.value
    memory.trace.printed = progress.text
    is_rejected = outcome.failure is not None and outcome.failure.kind == TYPE_CHECK  # before it ran
    if not memory.flows.may_show(progress.labels) and not is_rejected:
        return await _reply_hidden(call, progress, outcome)
    if failure := outcome.failure:
        if progress.names and progress.preview and not progress.calls and takes_text_for_rows(failure):
            raise await memory.unknown_path_error(call.namespace, progress.names[0])  # a name in place of a path
        raise await run_fairly(call.namespace, build_error, failure, policy, progress)
    return await _reply(call, progress, outcome.value)


async def _check_literals(call: ToolInput, code: str, raw_inputs: bytes) -> None:
    """Raise an error for a path that a script contains as a text and is not an input; tools accept such paths."""
    written = [match[2] for match in _LITERAL.finditer(code) if match[2].encode() not in raw_inputs]
    if not written or "tools" in find_names(code):
        return
    found = await call.memory.find_pointers(call.namespace, msgspec.json.encode(written))
    if any(isinstance(one, Pointer) and one.is_known for one in found):
        raise ToolError(
            f'The script contains the path "{written[0]}" as a text. Give it in inputs: {{"value": "{written[0]}"}}, '
            "and use value. Then call memory_run again."
        )


async def _execute(call: ToolInput, scripts: Scripts, progress: Progress) -> Outcome:
    """Run a script, with its tools if it uses any."""
    tools: Mapping[str, ScriptTool] = {}
    names = find_names(progress.code)
    if "tools" in names:
        tools = await run_fairly(call.namespace, name_tools, await scripts.list_tools())
    script = await _prepare_script(call, scripts.policy, tools, names, progress)

    async def call_tool(name: str, arguments: str) -> CallAnswer:
        result = await _call_tool(scripts, tools, progress, name, arguments)
        return await _convert_result(name, result, progress, call.namespace)

    outcome = await scripts.sandbox.run(call.namespace, script, call_tool)
    if outcome.failure is None:
        return outcome
    failure, listed = outcome.failure, await scripts.list_tools()

    def explain() -> Failure:
        return explain_unknown_names(failure, name_tools(listed), progress.code)

    return Outcome(failure=await run_fairly(call.namespace, explain))


async def _prepare_script(
    call: ToolInput,
    policy: CodePolicy,
    tools: Mapping[str, ScriptTool],
    names: Collection[str],
    progress: Progress,
) -> Script:
    """Return the script with the inputs and tools that it uses, and note these inputs in the progress.

    `names` are those in the script. If the model may not see its inputs, the check before the run is the only place
    for mistakes.
    """
    code, inputs, uses_tools = progress.code, progress.inputs, "tools" in names
    used = [given for given in inputs.inputs if given.name in names]
    for given in used:
        progress.budget.take(len(given.blob))

    def read_variables() -> dict[str, str | bytes]:
        return {given.name: given.read_variable() for given in used}

    variables = await run_by_size(sum(len(given.blob) for given in used), read_variables, principal=call.namespace)
    progress.parsed |= {name: value for name, value in variables.items() if isinstance(value, bytes)}
    opened = [given for given in inputs.inputs if f"/memory/{given.name}" in code]
    progress.texts |= {given.name: given.blob for given in (*used, *opened) if given.name not in progress.parsed}
    progress.names += (given.read_text() for given in used if given.is_name and not given.is_stored)
    is_checked = uses_tools or not call.memory.flows.may_show(inputs.labels)

    def write_declarations() -> tuple[str, str, str | None]:
        selected, prelude = select_tools(code, tools), ""
        if used or uses_tools:
            prelude = write_prelude(selected, tuple(progress.parsed), has_tools=uses_tools)
        stubs = write_stubs(selected, inputs.names) if is_checked else None
        return code if "print" in names else keep_result(code), prelude, stubs

    returning, prelude, stubs = await run_fairly(call.namespace, write_declarations)
    return Script(
        code=returning,
        prelude=prelude,
        inputs=variables,
        files=inputs.files(progress.budget),
        stubs=stubs,
        policy=policy,
        on_print=progress.add_text,
    )


async def _call_tool(
    scripts: Scripts, tools: Mapping[str, ScriptTool], progress: Progress, name: str, arguments: str
) -> ScriptToolResult:
    """Call a tool for the script; its result joins the labels of the script before the script gets it."""
    progress.calls += 1
    if progress.calls > (most := scripts.policy.calls):
        return ScriptToolResult(error=f"A script may make {most:,} tool calls (`code.calls`).")
    if (tool := tools.get(name)) is None:
        return ScriptToolResult(error=f"Unknown tool {name!r}.")
    encoded = arguments.encode("utf-8", "replace")
    result = await scripts.call_tool(ScriptCall(tool, encoded, progress.labels, progress.preview))
    progress.preview = progress.preview and result.preview
    if result.labels is not None:  # another call may have changed the labels in the meantime
        progress.labels = progress.join(progress.labels, result.labels)
    if result.path:
        progress.stored.append((tool.name, result.path))
    if result.error is None and not tool.is_read_only:
        progress.changes += 1
    return result


async def _convert_result(name: str, result: ScriptToolResult, progress: Progress, principal: str) -> CallAnswer:
    """Return the result in the form of the sandbox: JSON text, or an exception."""
    value, error = result.value, result.error
    if error and result.is_refused:
        progress.refusals.add(error)
    if error is None:
        try:
            progress.budget.take(len(value))
        except ToolError as over:
            error = str(over)
    if error is not None:
        return {"exc_type": "RuntimeError", "message": error}

    def read_result() -> str:
        parsed = read_content(value)
        progress.parsed.setdefault(f"the result of {name}", parsed)
        return str(parsed, "utf-8", "replace")

    return {"return_value": await run_by_size(len(value), read_result, principal=principal)}


async def _reply(call: ToolInput, progress: Progress, value: bytes) -> Content:
    """Return the printed text and the value: a small one as it is, others as a notice."""
    printed = progress.text
    blocks: list[str] = []
    if printed and progress.preview:
        blocks.append(printed)
    elif printed:
        saved = await save_value(call, _build_value(progress, msgspec.json.encode(printed)))
        blocks.append(
            f"The printed text is not shown, because a value that the script read has no preview:\n{saved.notice}"
        )
    is_whole = progress.preview and progress.printed_characters <= progress.most_printed
    if value != b"null":
        returned = _build_value(progress, value)
        shown = show(call, returned)
        is_whole = is_whole and shown is not None
        blocks.append((await save_value(call, returned)).notice if shown is None else shown)
    if not blocks:
        return build_text_content(_NO_VALUE)
    if len(blocks) > 1 and progress.preview:
        blocks = [f"printed:\n{blocks[0]}", f"returned:\n{blocks[1]}"]
    if is_whole:
        blocks.append(SHOWN_END)  # as in `build_answer_content`
    return build_text_content(*blocks)


def _build_value(progress: Progress, value: bytes) -> NewValue:
    paths = (*progress.inputs.paths, *(path for _, path in progress.stored))
    return NewValue(
        (value,),
        labels=(progress.labels,),
        paths=tuple(dict.fromkeys(paths)),
        preview=progress.preview,
        size=len(value),
    )


async def _reply_hidden(call: ToolInput, progress: Progress, outcome: Outcome) -> Content:
    """Store the returned value or the failure, and return only its path: an error message may depend on the values."""
    value = outcome.value
    if outcome.failure:
        failed = {"error": outcome.failure.message, "line": outcome.failure.line, "printed": progress.text}
        value = msgspec.json.encode(failed)
    elif value == b"null":
        value = msgspec.json.encode({"returned": None, "printed": progress.text})
    return await save_hidden(call, _build_value(progress, value))


_DESCRIPTION: Final = (
    "Answer a question about whole stored values with Python: join, count, sum, filter. inputs names them: "
    '{"trips": path, "drivers": path}. code has one statement per line; the last line is the answer'
)
_EXAMPLE: Final = """:
names = {d["id"]: d["name"] for d in drivers}
sums = {}
for t in trips:
    name = names[t[...]]
    sums[name] = sums.get(name, 0) + t[...]
max(sums.items(), key=lambda s: s[1])
"""
_CALL: Final = "await tools.name(argument=...)."
_TOOLS: Final[Mapping[ScriptAccess, str]] = {
    "none": "",
    "read_only": f"\nTools that only read: {_CALL}",
    "listed": f"\nTools: {_CALL}",
    "all": f"\nTools: {_CALL}",
}
"""Follows the example, by the tools that a script may call without asking the user."""
_TOOL: Final = MemoryTool(
    RUN,
    f"{_DESCRIPTION}{_EXAMPLE}".rstrip(),
    {"inputs": {"type": "object"}, "code": {"type": "string"}},
    ("inputs", "code"),
    run,
    {"openWorldHint": True},
    optional=("inputs",),
)


def add_run(tools: Mapping[str, MemoryTool], access: ScriptAccess) -> Mapping[str, MemoryTool]:
    """Return `memory_run` and the memory tools.

    `access`: the tools that a script may call without asking the user.

    `memory_run` comes first and has an example, because small models call it only where it is first, and need the
    example (docs/evaluation/wording.md).
    """
    return {RUN: replace(_TOOL, description=f"{_TOOL.description}{_TOOLS[access]}"), **tools}
