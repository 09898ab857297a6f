"""The errors of scripts that fail: what failed, what the script did before, and how to correct it."""

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import chain, islice
from typing import Final

import msgspec

from mcp_mirror.core.amounts import format_count
from mcp_mirror.core.similar_names import find_nearest
from mcp_mirror.errors import ToolError
from mcp_mirror.memory.code.inputs import describe_keys, describe_text
from mcp_mirror.memory.code.progress import Progress
from mcp_mirror.memory.code.sandbox import INPUT, TYPE_CHECK, UNUSABLE, Failure
from mcp_mirror.memory.code.scripts import ScriptTool
from mcp_mirror.memory.tools.table import RUN, TOOLS
from mcp_mirror.settings.policies import CodePolicy
from mcp_mirror.system.patterns import lazy_pattern

_MAX_STORED: Final = 20
"""Stored values that an error names."""
_INPUTS: Final = "inputs"
_MAX_NAMED: Final = 10
"""Inputs and results whose fields an error names."""
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
_NO_TOOLS: Final = (
    "This server has no tools that a script can call. Call the tool first, then give the path of its result in "
    "`inputs`."
)
_MODULES: Final = (
    *("asyncio", "base64", "collections", "csv", "datetime", "decimal", "functools", "hashlib", "itertools", "json"),
    *("math", "random", "re", "time", "tomllib", "unicodedata"),
)
_CLASSES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("date", "datetime", "timedelta", "timezone"), "datetime"),
    **dict.fromkeys(("Counter", "defaultdict"), "collections"),
    "Decimal": "decimal",
}
"""Modules by the classes that scripts use without an import."""
_MEMBERS: Final = r"(?:\(|\.(?:combine|fromisoformat|fromtimestamp|now|strptime|today|utc|utcnow)\b)"
"""What follows the name of a class, but not that of a module or an input."""
_LIBRARIES: Final = ("np", "pd")
"""Names of libraries that a script does not have."""
_IMPORTABLE: Final = f"A script can import {', '.join(_MODULES[:-1])} and {_MODULES[-1]}."
_QUERIED: Final = (
    "memory_query with the `expression` @ reads YAML, XML and INI as JSON: give the script the path of its result."
)
_FILES: Final = 'Each input is a file too: csv.DictReader(open("/memory/NAME", newline="")).'
_WRITER: Final = "csv.writer needs an object with a method write(self, text): define a class that collects the texts."
_UNREAD: Final = "Write open(path).readlines() in place of open(path)."
_EPOCH: Final = "Write datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=int(number))."
_NO_TYPE_METHOD: Final = "A method is not a value here: use a lambda, such as lambda text: text.lower()."
_NO_DELETION: Final = "Write rows.pop(key) in place of del rows[key]."
_FIRST_ITEM: Final = "Write next(iter(...), None), which is None if nothing is found."
_NO_GENERATOR: Final = "Collect the items in a list and return it, in place of yield."
_NO_FUNCTION: Final = (
    "Loop over re.finditer(pattern, text): append text[end:m.start()] and the replacement to a list, and set end = "
    "m.end(). Then join the list and text[end:]."
)
_STATISTICS: Final = (
    "Write sum(x) / len(x) for a mean. With s = sorted(x), a median is (s[(len(s) - 1) // 2] + s[len(s) // 2]) / 2."
)
_OPERATOR: Final = 'Write a lambda, such as key=lambda row: row["name"].'
_ADVICE: Final[Mapping[str, str]] = {
    "the JSON object must be str": _PARSED,  # json.loads(value)
    "has no attribute 'read'": _PARSED,  # json.load(value)
    "'dict' object has no attribute 'get'": _NO_METHOD,  # key=counts.get
    "type object 'str' has no attribute": _NO_TYPE_METHOD,  # key=str.lower
    "the 'del' statement": _NO_DELETION,
    "support yield": _NO_GENERATOR,
    "is not an iterator": _FIRST_ITEM,  # next(row for row in rows)
    "StopIteration": _FIRST_ITEM,
    "callable replacement": _NO_FUNCTION,  # re.sub(pattern, lambda m: ..., text)
    "fromtimestamp'": _EPOCH,  # datetime.fromtimestamp(number)
    "No module named 'statistics'": _STATISTICS,
    "No module named 'operator'": _OPERATOR,
    "No module named 'ast'": _PRINTED,
    "No module named 'io'": _FILES,  # io.StringIO(text)
    "No module named 'yaml'": _QUERIED,
    "No module named 'xml": _QUERIED,
    "No module named 'configparser'": _QUERIED,
    "No module named": _IMPORTABLE,
    "iterating an unread": _UNREAD,  # list(open(path))
    "must be separated by newlines": _ONE_LINE,
    "not allowed on the same line": _ONE_LINE,
}
"""Parts of messages of exceptions, with advice."""
_TEXT_FOR_ROWS: Final = (
    "string indices must be integers",
    "string index out of range",
    "'str' object has no attribute",
    "'str' object is not a mapping",
)
"""Parts of messages of a script that takes a text, or the keys of an object, for parsed rows."""
_WRONG_SHAPE: Final = (
    *_TEXT_FOR_ROWS,
    "list indices must be integers",
    "'list' object has no attribute",
    "'dict' object has no attribute",
    "expected string or bytes-like object, got",
    '(not "dict") to str',
)
"""Parts of messages of a script that takes values for others."""
_ATTRIBUTE: Final = lazy_pattern(r"'dict' object has no attribute '(\w+)'")
"""The error of `row.price`."""
_CALLED: Final = lazy_pattern(r"(?<![.\w])(\w++)\s*+\(")
"""A function that is called."""
_CSV_WRITER: Final = lazy_pattern(r"\bcsv\.(?:Dict[Ww]riter|writer)\b")
"""A script that needs `io` to write a table, not to read one."""
_UNDEFINED: Final = lazy_pattern(r"name '(\w+)' is not defined")
_MISSPELLED: Final = 0.75
"""The similarity (`difflib`) from which a name is a misspelled other one; *drivers* and *trips* have 0.5."""
_MAX_COMPARED: Final = 60
"""Characters of a name that may be a misspelled other one."""
_MAX_VARIABLES: Final = 200
"""Variables of a script with which an undefined name is compared."""
_VARIABLE: Final = lazy_pattern(r"\b([A-Za-z_]\w*)\s*=")
_UNKNOWN_NAME: Final = ("has no attribute", "used when not defined", "is not defined")
"""Parts of messages about a name that a script does not have."""


def build_error(failure: Failure, policy: CodePolicy, progress: Progress) -> ToolError:
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


def _describe_failure(failure: Failure, policy: CodePolicy, progress: Progress) -> str:
    """Return the line and the exception; only the class of the exception if the script read a value without preview."""
    where = f" in line {failure.line}" if failure.line else ""
    if failure.limit:
        limits = {
            "seconds": f"it computed longer than {policy.seconds:g} s (`code.seconds`). Use a part of the values.",
            "memory": f"it used more than {policy.memory >> 20:,} MiB (`code.memory`). Use a part of the values, or "
            'read lines with open("/memory/name").',
            "calls": f"it made too many calls ({policy.calls:,} tool calls are accepted, `code.calls`).",
        }
        return f"The script was ended{where}: {limits[failure.limit]}"
    if failure.kind == UNUSABLE:
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


def _advise(failure: Failure, progress: Progress) -> Iterator[str]:
    """Yield what corrects a script that failed, a sentence per line."""
    if name := _find_missing_input(failure.message, progress):
        yield from _describe_missing_input(name, progress)
        return
    if undefined := _UNDEFINED.search(failure.message):
        yield from _describe_import(undefined[1], progress.code)
    general = _find_general_advice(failure.message, progress.code)
    if failure.kind == "KeyError":
        yield from _describe_keys(progress)
        yield from _describe_texts(progress, only_csv=True)  # read without its heading or delimiter
    elif general:
        yield general
    elif _mentions(failure, _WRONG_SHAPE):
        yield from _describe_attribute(failure.message)
        yield from _describe_texts(progress)
        yield from _describe_keys(progress)
    elif failure.kind.endswith(("JSONDecodeError", "IndexError")):
        yield from _describe_texts(progress, only_csv=failure.kind == "IndexError")
    if not any(refusal in failure.message for refusal in progress.refusals):
        yield _AGAIN


def _find_general_advice(message: str, code: str) -> str | None:
    """Return the advice for a common mistake; None for other mistakes."""
    general = next((text for part, text in _ADVICE.items() if part in message), None)
    return _WRITER if general == _FILES and _CSV_WRITER.search(code) else general


def _describe_missing_input(name: str, progress: Progress) -> Iterator[str]:
    """Yield how a script gets an input that it does not have, or reads its inputs if it reads them as an object."""
    names = progress.inputs.names
    if name == _INPUTS and names:
        yield f"Each input is a variable: write {', '.join(names[:_MAX_NAMED])}."
        yield _AGAIN
    else:
        yield f"inputs has no {name}: first call the tool that gets it, then give its path in inputs."


def _describe_attribute(message: str) -> Iterator[str]:
    """Yield how to read a key that a script reads as an attribute, as in JavaScript."""
    if (found := _ATTRIBUTE.search(message)) and not hasattr(dict, found[1]):
        yield f'An object has keys, not attributes: write ["{found[1]}"] in place of .{found[1]}.'


def _describe_import(name: str, code: str) -> Iterator[str]:
    if _is_class(name, code):
        yield f"Begin with `from {_CLASSES[name]} import {name}`."
    elif name in _MODULES:
        yield f"Begin with `import {name}`."
    elif name in _LIBRARIES:
        yield _IMPORTABLE


def _is_class(name: str, code: str) -> bool:
    return name in _CLASSES and re.search(rf"(?<![.\w]){name}{_MEMBERS}", code) is not None


def _find_missing_input(message: str, progress: Progress) -> str | None:
    """Return an undefined name that a script reads as a collection: models forget to give an input.

    A module or class that is not imported and a misspelled name are other mistakes.
    """
    found, code = _UNDEFINED.search(message), progress.code
    name = found[1] if found else ""
    if not name or name in (*_MODULES, *_LIBRARIES) or len(name) > _MAX_COMPARED or _is_class(name, code):
        return None
    if not re.search(rf"\bin\s+{name}\b(?!\()|\b{name}\s*[\[.]", code):  # it is not read as a collection
        return None
    variables = dict.fromkeys(variable for variable in _VARIABLE.findall(code) if len(variable) <= _MAX_COMPARED)
    known = (*progress.inputs.names, *islice(variables, _MAX_VARIABLES))
    return None if get_close_matches(name, known, cutoff=_MISSPELLED) else name


def takes_text_for_rows(failure: Failure) -> bool:
    """Whether a script takes a text, or the keys of an object, for parsed rows."""
    return _mentions(failure, _TEXT_FOR_ROWS)


def _mentions(failure: Failure, parts: Sequence[str]) -> bool:
    return any(part in failure.message for part in parts)


def _describe_texts(progress: Progress, *, only_csv: bool = False) -> Iterator[str]:
    """Yield a sentence about each text that the script has, at most 10."""
    values = (*progress.texts.items(), *progress.parsed.items())
    described = (describe_text(name, value, only_csv=only_csv) for name, value in values)
    yield from islice(filter(None, described), _MAX_NAMED)


def _describe_keys(progress: Progress) -> Iterator[str]:
    """Yield one sentence about the keys of the values that the script has, at most 10, if there are any."""
    described = (describe_keys(name, value) for name, value in progress.parsed.items())
    if clauses := list(islice(filter(None, described), _MAX_NAMED)):
        yield f"{'; '.join(clauses)}."


def explain_unknown_names(failure: Failure, tools: Mapping[str, ScriptTool], code: str) -> Failure:
    """Add advice to a mistake that names a memory tool, a tool without `tools`, or a tool that does not exist."""
    if not _mentions(failure, _UNKNOWN_NAME):
        return failure
    words = [word for word in re.split("[`']", failure.message) if word.isidentifier()]
    unknown = [word for word in words if word not in tools]
    bare = frozenset(_CALLED.findall(code)).intersection(tools)
    if called := [word for word in words if word in bare]:
        advice = f"Write await tools.{called[0]}(argument=...)."
    elif not {*TOOLS, RUN}.isdisjoint(unknown):
        advice = _MEMORY_TOOLS
    elif not tools and not {"tools", "_Tools"}.isdisjoint(words):
        advice = _NO_TOOLS
    elif failure.kind == TYPE_CHECK and "has no attribute" in failure.message:
        near = dict.fromkeys(chain.from_iterable(find_nearest(word, tools) for word in unknown))
        advice = f"Similar tools: {', '.join(near)}." if near else ""
    else:
        advice = ""
    return msgspec.structs.replace(failure, message=f"{failure.message}\n{advice}") if advice else failure
