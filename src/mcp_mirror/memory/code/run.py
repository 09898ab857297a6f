"""The tool `memory_run`: runs a script over stored values and captures its result.

Everything that a script receives joins one set of flow labels: its inputs, the results of its calls and their errors.
Each call carries the set as labels of its arguments, and so does everything that leaves the script. A model that may
not see the set gets a memory path and nothing else, whether the script returned or failed.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import islice
from typing import Final

import msgspec

from mcp_mirror.core.amounts import format_count
from mcp_mirror.core.similar_names import find_nearest
from mcp_mirror.errors import ToolError
from mcp_mirror.memory.code.inputs import (
    Inputs,
    ValueBudget,
    check_variables,
    describe_keys,
    describe_text,
    read_inputs,
    read_python_literal,
)
from mcp_mirror.memory.code.sandbox import INPUT, RESULT, TYPE_CHECK, Failure, Limits, Outcome, Script, Settled
from mcp_mirror.memory.code.scripts import ScriptCall, Scripts, ScriptTool, ScriptToolResult
from mcp_mirror.memory.code.stubs import mentions, name_tools, select_tools, write_prelude, write_stubs
from mcp_mirror.memory.tools.save import NewValue, save_hidden, save_value, show
from mcp_mirror.memory.tools.table import TOOLS
from mcp_mirror.memory.tools.tool import Content, MemoryTool, ToolInput, build_text_content
from mcp_mirror.paths import SHOWN_END
from mcp_mirror.payload.floods import run_by_size
from mcp_mirror.security.flows import format_labels
from mcp_mirror.settings.labels import Labels
from mcp_mirror.settings.policies import CodePolicy
from mcp_mirror.system.fair_threads import run_fairly
from mcp_mirror.types import Buffer

RUN: Final = "memory_run"

_MAX_CODE: Final = 100_000
"""Characters of a script."""
_MAX_STORED: Final = 20
"""Stored values that an error names."""
_MAX_NAMED: Final = 10
"""Inputs and results whose fields an error names."""
_CHARACTERS_PER_TOKEN: Final = 3
"""Printed characters that are shown for each token of the read budget."""
_PARSED: Final = "Inputs and results of tools are parsed values already: use them without json.loads."
_PRINTED: Final = "Lists and dictionaries that Python printed are parsed already: use them without ast.literal_eval."
_ONE_LINE: Final = "Write each statement on a line of its own."
_AGAIN: Final = "Call memory_run again with a corrected script."
"""Without "Correct the script" at its beginning: small models then call `memory_edit`."""
_NO_METHOD: Final = "A method is not a value here: use a lambda, such as key=lambda name: counts[name]."
_MEMORY_TOOLS: Final = (
    "A script cannot call the gateway's memory tools. "
    "Pass paths in `inputs` instead: each variable is the whole value, and the script computes with it."
)
_MODULES: Final = (
    *("asyncio", "base64", "collections", "csv", "datetime", "decimal", "functools", "hashlib", "itertools", "json"),
    *("math", "random", "re"),
)
_IMPORTABLE: Final = f"A script can import {', '.join(_MODULES[:-1])} and {_MODULES[-1]}."
_FILES: Final = 'Each input is a file too: csv.DictReader(open("/memory/NAME", newline="")).'
_EPOCH: Final = "Write datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=int(number))."
_ADVICE: Final[Mapping[str, str]] = {
    "the JSON object must be str": _PARSED,  # json.loads(value)
    "has no attribute 'read'": _PARSED,  # json.load(value)
    "'dict' object has no attribute 'get'": _NO_METHOD,  # key=counts.get
    "fromtimestamp'": _EPOCH,  # datetime.fromtimestamp(number)
    "No module named 'ast'": _PRINTED,
    "No module named 'io'": _FILES,  # io.StringIO(text)
    "No module named": _IMPORTABLE,
    "must be separated by newlines": _ONE_LINE,
    "not allowed on the same line": _ONE_LINE,
}
"""Parts of messages of exceptions, with advice."""
_TEXT_FOR_ROWS: Final = (
    "string indices must be integers",
    "'str' object has no attribute",
    "'str' object is not a mapping",
)
"""Parts of messages of a script that takes a text, or the keys of an object, for parsed rows."""
_WRONG_SHAPE: Final = (
    *_TEXT_FOR_ROWS,
    "list indices must be integers",
    "'list' object has no attribute",
    "'dict' object has no attribute",
)
"""Parts of messages of a script that takes values for others."""
_UNDEFINED: Final = re.compile(r"name '(\w+)' is not defined")
_MISSPELLED: Final = 0.75
"""The similarity (`difflib`) from which a name is a misspelled other one; *drivers* and *trips* have 0.5."""
_MAX_COMPARED: Final = 60
"""Characters of a name that may be a misspelled other one."""
_MAX_VARIABLES: Final = 200
"""Variables of a script with which an undefined name is compared."""
_VARIABLE: Final = re.compile(r"\b([A-Za-z_]\w*)\s*=")
_UNKNOWN_NAME: Final = ("has no attribute", "used when not defined", "is not defined")
"""Parts of messages about a name that a script does not have."""
_NO_VALUE: Final = (
    "The script returned None. Let its last line be the value to return, or print text. Then call memory_run again."
)


class _Progress(msgspec.Struct):
    """The values that one script has received and made until now, and its printed text."""

    code: str
    inputs: tuple[str, ...]
    """The names of all inputs."""
    labels: Labels
    preview: bool
    join: Callable[..., Labels]
    """Joins labels."""
    budget: ValueBudget
    most_printed: int
    """Characters of printed text that are kept."""
    calls: int = 0
    changes: int = 0
    """Successful calls of tools that are not read-only."""
    refusals: set[str] = msgspec.field(default_factory=set)
    """The messages of calls that were refused; see `ScriptToolResult.is_refused`."""
    stored: list[tuple[str, str]] = msgspec.field(default_factory=list)
    """The tool and the memory path of each stored result."""
    parsed: dict[str, Buffer] = msgspec.field(default_factory=dict)
    """The JSON text of each input that the script uses and of the first result of each tool."""
    texts: dict[str, Buffer] = msgspec.field(default_factory=dict)
    """The JSON text of each other input that the script uses, a text."""
    names: list[str] = msgspec.field(default_factory=list)
    """The inputs that the script uses and that may be meant as a path, short texts."""
    printed: list[str] = msgspec.field(default_factory=list)
    printed_characters: int = 0

    def add_text(self, text: str) -> None:
        """Keep printed text up to the limit."""
        room = self.most_printed - self.printed_characters
        self.printed_characters += len(text)
        if room > 0:
            self.printed.append(text[:room])

    @property
    def text(self) -> str:
        """The printed text, and how much of it is missing."""
        text = "".join(self.printed).rstrip("\n")
        missing = self.printed_characters - self.most_printed
        return f"{text}\n... {format_count(missing, 'more character')} (`code.output`)" if missing > 0 else text


async def run(call: ToolInput) -> Content:
    """Run a script and return its result.

    Raises:
        ToolError: The script cannot run or failed; the message names the line.
        StoreError: The store failed.
    """
    scripts, memory = call.memory.scripts, call.memory
    if scripts is None:
        raise ToolError("Scripts cannot run here. Call memory_run as a tool.")
    code = call.arguments.text("code")
    if len(code) > _MAX_CODE:
        raise ToolError(f"The script has {len(code):,} characters; {_MAX_CODE:,} are accepted. Shorten it.")
    raw_inputs = call.arguments.json("inputs") if call.arguments.has("inputs") else b"{}"
    inputs = await read_inputs(call, raw_inputs, check_variables)
    policy = scripts.policy
    most_printed = min(policy.output, _CHARACTERS_PER_TOKEN * memory.mirror.read_budget)
    budget = ValueBudget(policy.values)
    given = tuple(one.name for one in inputs.inputs)
    progress = _Progress(code, given, inputs.labels, inputs.preview, memory.flows.join, budget, most_printed)
    try:
        outcome = await _execute(call, scripts, inputs, progress)
    finally:
        memory.trace.detail = {
            "script": hashlib.sha256(code.encode("utf-8", "replace")).hexdigest(),
            "inputs": " ".join(inputs.paths),
            "calls": str(progress.calls),
        }
        memory.trace.labels = format_labels(progress.labels)
    memory.trace.returned = None if outcome.failure else outcome.value
    memory.trace.printed = progress.text
    is_rejected = outcome.failure is not None and outcome.failure.kind == TYPE_CHECK  # before it ran
    if not memory.flows.may_show(progress.labels) and not is_rejected:
        return await _reply_hidden(call, inputs, progress, outcome)
    if outcome.failure:
        if progress.names and progress.preview and not progress.calls and _mentions(outcome.failure, _TEXT_FOR_ROWS):
            raise await memory.unknown_path_error(call.namespace, progress.names[0])
        size = sum(map(len, (*progress.parsed.values(), *progress.texts.values())))
        raise await run_by_size(size, _build_error, outcome.failure, policy, progress)
    return await _reply(call, inputs, progress, outcome.value)


async def _execute(call: ToolInput, scripts: Scripts, inputs: Inputs, progress: _Progress) -> Outcome:
    """Run a script. If the model may not see its inputs, the check before the run is the only place for mistakes."""
    policy, code = scripts.policy, call.arguments.text("code")
    is_hidden = not call.memory.flows.may_show(inputs.labels)
    uses_tools = mentions("tools", code)
    tools = name_tools(await scripts.tools.list_tools()) if uses_tools else {}
    used = [one for one in inputs.inputs if mentions(one.name, code)]
    for one in used:
        progress.budget.take(len(one.blob))

    def read_variables() -> dict[str, str | bytes]:
        return {one.name: one.read_variable() for one in used}

    variables = await run_by_size(sum(len(one.blob) for one in used), read_variables)
    progress.parsed |= {name: value for name, value in variables.items() if isinstance(value, bytes)}
    progress.texts |= {one.name: one.blob for one in used if one.name not in progress.parsed}
    progress.names += (one.read_text() for one in used if one.is_name and not one.is_stored)
    prelude, stubs = "", None
    selected = select_tools(code, tools)
    if used or uses_tools:
        prelude = write_prelude(selected, tuple(progress.parsed), has_tools=uses_tools)
    if uses_tools or is_hidden:
        stubs = write_stubs(selected, (one.name for one in inputs.inputs))
    script = Script(
        code=code,
        prelude=prelude,
        inputs=variables,
        files=inputs.files(progress.budget),
        stubs=stubs,
        limits=Limits(policy.seconds, policy.memory, policy.calls, policy.values),
        on_print=progress.add_text,
    )

    async def call_tool(name: str, arguments: str) -> Settled:
        result = await _call_tool(scripts, tools, progress, name, arguments)
        return await _settle(name, result, progress)

    outcome = await scripts.sandbox.run(call.namespace, script, call_tool)
    if outcome.failure is None:
        return outcome
    return Outcome(failure=await run_fairly(call.namespace, _explain_unknown_names, outcome.failure, tools))


async def _call_tool(
    scripts: Scripts, tools: Mapping[str, ScriptTool], progress: _Progress, name: str, arguments: str
) -> ScriptToolResult:
    """Call a tool for the script; its result joins the labels of the script before the script gets it."""
    policy = scripts.policy
    progress.calls += 1
    if progress.calls > policy.calls:
        return ScriptToolResult(error=f"A script may make {policy.calls:,} tool calls (`code.calls`).")
    if (tool := tools.get(name)) is None:
        return ScriptToolResult(error=f"Unknown tool {name!r}.")
    if policy.tools == "none":
        return ScriptToolResult(error="Scripts may not call tools here (`code.tools: none`).", is_refused=True)
    is_admitted = policy.admits(tool.tool, is_read_only=tool.is_read_only)
    encoded = arguments.encode("utf-8", "replace")
    result = await scripts.tools.call_tool(ScriptCall(tool, encoded, progress.labels, progress.preview, is_admitted))
    progress.preview = progress.preview and result.preview
    if result.labels is not None:  # another call may have changed the labels in the meantime
        progress.labels = progress.join(progress.labels, result.labels)
    if result.path:
        progress.stored.append((tool.name, result.path))
    if result.error is None and not tool.is_read_only:
        progress.changes += 1
    return result


async def _settle(name: str, result: ScriptToolResult, progress: _Progress) -> Settled:
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
        parsed = read_python_literal(value) or value
        progress.parsed.setdefault(f"the result of {name}", parsed)
        return str(parsed, "utf-8", "replace")

    return {"return_value": await run_by_size(len(value), read_result)}


async def _reply(call: ToolInput, inputs: Inputs, progress: _Progress, value: bytes) -> Content:
    """Return the printed text and the value: a small one as it is, others as a notice."""
    printed = progress.text
    blocks: list[str] = []
    if printed and progress.preview:
        blocks.append(printed)
    elif printed:
        saved = await save_value(call, _build_value(inputs, progress, msgspec.json.encode(printed)))
        blocks.append(
            f"The printed text is not shown, because a value that the script read has no preview:\n{saved.notice}"
        )
    is_whole = progress.preview and progress.printed_characters <= progress.most_printed
    if value != b"null":
        returned = _build_value(inputs, progress, value)
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


def _build_value(inputs: Inputs, progress: _Progress, value: bytes) -> NewValue:
    paths = (*inputs.paths, *(path for _, path in progress.stored))
    return NewValue(
        (value,),
        labels=(progress.labels,),
        paths=tuple(dict.fromkeys(paths)),
        preview=progress.preview,
        size=len(value),
    )


async def _reply_hidden(call: ToolInput, inputs: Inputs, progress: _Progress, outcome: Outcome) -> Content:
    """Store the returned value or the failure, and return only its path: an error message may depend on the values."""
    value = outcome.value
    if outcome.failure:
        failed = {"error": outcome.failure.message, "line": outcome.failure.line, "printed": progress.text}
        value = msgspec.json.encode(failed)
    elif value == b"null":
        value = msgspec.json.encode({"returned": None, "printed": progress.text})
    return await save_hidden(call, _build_value(inputs, progress, value))


def _build_error(failure: Failure, policy: CodePolicy, progress: _Progress) -> ToolError:
    """Return the error of a failed script: what failed, the printed text and the stored values."""
    parts = [_describe_failure(failure, policy, progress)]
    if progress.changes and progress.preview:
        calls = format_count(progress.changes, "call")
        parts.append(f"Before that it made {calls} of tools that can change something. Do not repeat them.")
    if progress.text and progress.preview:
        parts.append(f"printed:\n{progress.text}")
    if progress.stored:
        listed = "\n".join(f'{tool}: "{path}"' for tool, path in progress.stored[-_MAX_STORED:])
        parts.append(f"The results of its calls stay stored:\n{listed}")
    return ToolError("\n".join(parts))


def _describe_failure(failure: Failure, policy: CodePolicy, progress: _Progress) -> str:
    """Return the line and the exception; only the class of the exception if the script read a value without preview."""
    where = f" in line {failure.line}" if failure.line else ""
    if failure.limit:
        return f"The script was ended{where}: {_describe_limit(failure.limit, policy)}"
    if failure.kind == RESULT:
        return failure.message
    if failure.kind == TYPE_CHECK:
        return f"The script was not run.\n{failure.message}\n{_AGAIN}"
    if not progress.preview:
        hidden = "The message is not shown, because a value that the script read has no preview."
        return f"The script failed{where} with {failure.kind}. {hidden}"
    if failure.kind == INPUT:
        return f'An input cannot be parsed: {failure.message}. Read it as text with open("/memory/name").read().'
    source = f"\n    {failure.source[:200]}" if failure.source else ""
    return "\n".join((f"The script failed{where}:{source}", failure.message, *_advise(failure, progress)))


def _advise(failure: Failure, progress: _Progress) -> Iterator[str]:
    """Yield what corrects a script that failed, a sentence per line."""
    if name := _find_missing_input(failure.message, progress):
        yield f"inputs has no {name}: first call the tool that gets it, then give its path in inputs."
        return
    if (undefined := _UNDEFINED.search(failure.message)) and undefined[1] in _MODULES:
        yield f"Begin with `import {undefined[1]}`."
    general = next((text for part, text in _ADVICE.items() if part in failure.message), None)
    if failure.kind == "KeyError":
        yield from _describe_keys(progress)
    elif general:
        yield general
    elif _mentions(failure, _WRONG_SHAPE):
        yield from _describe_texts(progress)
        yield from _describe_keys(progress)
    if not any(refusal in failure.message for refusal in progress.refusals):
        yield _AGAIN


def _find_missing_input(message: str, progress: _Progress) -> str | None:
    """Return an undefined name that a script reads as a collection: models forget to give an input.

    A module that is not imported and a misspelled name are other mistakes.
    """
    if (found := _UNDEFINED.search(message)) is None or found[1] in _MODULES:
        return None
    name, code = found[1], progress.code
    if len(name) > _MAX_COMPARED:
        return None
    variables = dict.fromkeys(one for one in _VARIABLE.findall(code) if len(one) <= _MAX_COMPARED)
    known = (*progress.inputs, *islice(variables, _MAX_VARIABLES))
    is_read = re.search(rf"\bin\s+{name}\b(?!\()|\b{name}\s*[\[.]", code)
    return name if is_read and not get_close_matches(name, known, cutoff=_MISSPELLED) else None


def _mentions(failure: Failure, parts: Sequence[str]) -> bool:
    return any(part in failure.message for part in parts)


def _describe_texts(progress: _Progress) -> Iterator[str]:
    """Yield a sentence about each text that the script has, at most 10."""
    described = (describe_text(name, value) for name, value in (*progress.texts.items(), *progress.parsed.items()))
    return islice(filter(None, described), _MAX_NAMED)


def _describe_keys(progress: _Progress) -> Iterator[str]:
    """Yield one sentence about the keys of the values that the script has, at most 10, if there are any."""
    described = (describe_keys(name, value) for name, value in progress.parsed.items())
    if clauses := list(islice(filter(None, described), _MAX_NAMED)):
        yield f"{'; '.join(clauses)}."


def _describe_limit(limit: str, policy: CodePolicy) -> str:
    described = {
        "seconds": f"it computed longer than {policy.seconds:g} s (`code.seconds`). Use a part of the values.",
        "memory": f"it used more than {policy.memory >> 20:,} MiB (`code.memory`). Use a part of the values, or read "
        'lines with open("/memory/name").',
        "calls": f"it made too many calls ({policy.calls:,} tool calls are accepted, `code.calls`).",
    }
    return described[limit]


def _explain_unknown_names(failure: Failure, tools: Mapping[str, ScriptTool]) -> Failure:
    """Add advice to a mistake that names a memory tool, or similar tools to one that names an unknown tool."""
    if not any(part in failure.message for part in _UNKNOWN_NAME):
        return failure
    unknown = [word for word in re.split("[`']", failure.message) if word.isidentifier() and word not in tools]
    if not {*TOOLS, RUN}.isdisjoint(unknown):
        return msgspec.structs.replace(failure, message=f"{failure.message}\n{_MEMORY_TOOLS}")
    near = [name for word in unknown for name in find_nearest(word, tools)]
    if failure.kind != TYPE_CHECK or "has no attribute" not in failure.message or not near:
        return failure
    return msgspec.structs.replace(
        failure, message=f"{failure.message}\nSimilar tools: {', '.join(dict.fromkeys(near))}."
    )


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
_TOOLS: Final = "Tools: await tools.name(argument=...)."
_TOOL: Final = MemoryTool(
    RUN,
    f"{_DESCRIPTION}{_EXAMPLE}{_TOOLS}",
    {"inputs": {"type": "object"}, "code": {"type": "string"}},
    ("inputs", "code"),
    run,
    {"openWorldHint": True},
    optional=("inputs",),
)


def add_run(tools: Mapping[str, MemoryTool]) -> Mapping[str, MemoryTool]:
    """Return `memory_run` and the memory tools.

    `memory_run` comes first and has an example, because small models call it only where it is first, and need the
    example (docs/evaluation/wording.md).
    """
    return {RUN: _TOOL, **tools}
