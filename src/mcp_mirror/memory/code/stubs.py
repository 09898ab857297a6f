"""The code around a script: type stubs of tools from their JSON Schemas, and the prelude. Pure."""

import json
import keyword
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from mcp_mirror.core.schemas.references import read_required
from mcp_mirror.memory.code.mistakes import TOOLS_CLASS
from mcp_mirror.memory.code.sandbox import CALL_FUNCTION, FOLDER
from mcp_mirror.memory.code.scripts import ScriptTool
from mcp_mirror.system.patterns import lazy_pattern

_TYPES: Final = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "array": "list[Any] | tuple[Any, ...]",
    "object": "dict[Any, Any]",
    "null": "None",
}
_RECEIVER: Final = "_tools"
"""The first parameter of the methods: an argument of a tool may have the name `self`."""
_NAME: Final = lazy_pattern(r"\w+")
_FILE: Final = lazy_pattern(rf"{FOLDER}/\w+")
_MAX_LITERALS: Final = 30
"""Values of an enumeration that a stub names."""


def name_tools(tools: Sequence[ScriptTool]) -> Mapping[str, ScriptTool]:
    """Return the tools by their names in scripts: the twin's name, and the tool's own name where it is unique."""
    own = [_to_identifier(tool.tool) for tool in tools]
    times = Counter(own)
    named = {name: one for name, one in zip(own, tools, strict=True) if times[name] == 1}
    return named | {_to_identifier(tool.name): tool for tool in tools}


def select_tools(code: str, tools: Mapping[str, ScriptTool]) -> Mapping[str, ScriptTool]:
    """Return the tools that a script can use: those that it names, or all if it uses `tools` in another way."""
    uses = re.findall(r"\btools\b(?:\s*\.\s*(\w+))?", code)
    if not all(uses):
        return tools
    return {name: tools[name] for name in dict.fromkeys(uses) if name in tools}


def find_names(code: str) -> frozenset[str]:
    """Return the names of the variables that a script may use; the files of inputs do not count."""
    return frozenset(_NAME.findall(_FILE.sub("/", code)))


def write_prelude(tools: Iterable[str], parsed: Iterable[str], *, has_tools: bool) -> str:
    """Return the code that runs before a script; `parsed` has the names of the inputs that are JSON text."""
    lines = ["import json"]
    if has_tools:
        lines += ["class _Tools:", "    pass"]
        for name in tools:
            lines.append(f"    async def {name}({_RECEIVER}, **arguments):")
            encoded = "json.dumps(arguments, allow_nan=False)"
            lines.append(f"        return json.loads(await {CALL_FUNCTION}({json.dumps(name)}, {encoded}))")
        lines.append("tools = _Tools()")
    lines += [f"{name} = json.loads({name})" for name in parsed]
    return "\n".join(lines)


def write_stubs(tools: Mapping[str, ScriptTool], inputs: Iterable[str]) -> str:
    """Return the declarations for the type check. Types of members are not declared: the gateway validates them."""
    lines = ["from typing import Any, Literal", "import json", f"class {TOOLS_CLASS}:", "    pass"]
    lines += [f"    async def {name}({_write_parameters(tool.schema)}) -> Any: ..." for name, tool in tools.items()]
    lines += [f"tools: {TOOLS_CLASS}", *(f"{name}: Any" for name in inputs)]
    return "\n".join(lines)


def _write_parameters(schema: Mapping[str, Any]) -> str:
    properties = schema.get("properties")
    if not isinstance(properties, Mapping) or not properties:
        return f"{_RECEIVER}, **arguments: Any"
    required = read_required(schema)
    named = [name for name in properties if _is_name(name) and name != _RECEIVER]
    parameters = [_RECEIVER, "*"] if named else [_RECEIVER]
    for name in named:
        default = "" if name in required else " = ..."
        parameters.append(f"{name}: {_write_type(properties[name])}{default}")
    if len(named) < len(properties) or schema.get("additionalProperties"):
        parameters.append("**arguments: Any")
    return ", ".join(parameters)


def _write_type(schema: object) -> str:
    if not isinstance(schema, Mapping):
        return "Any"
    values = schema.get("enum")
    if isinstance(values, list) and len(values) <= _MAX_LITERALS and all(isinstance(value, str) for value in values):
        return f"Literal[{', '.join(map(repr, values))}]" if values else "Any"
    kinds = schema.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if values is not None or not all(isinstance(kind, str) and kind in _TYPES for kind in kinds):
        return "Any"
    return " | ".join(_TYPES[kind] for kind in kinds)


def _to_identifier(name: str) -> str:
    text = re.sub(r"\W", "_", name, flags=re.ASCII)
    return text if _is_name(text) else f"_{text}"


def _is_name(text: object) -> bool:
    return isinstance(text, str) and text.isidentifier() and text.isascii() and not keyword.iskeyword(text)
