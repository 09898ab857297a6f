"""The tool that queries a value with JMESPath; `sql.py` adds SQL to it. A large result is stored as a new value."""

from typing import Final

from mcp_mirror.core.amounts import format_bytes
from mcp_mirror.core.value_sizes import count_value_tokens
from mcp_mirror.errors import ToolError
from mcp_mirror.memory.memory import Memory
from mcp_mirror.memory.tools.lookup import find_argument
from mcp_mirror.memory.tools.save import NewValue, save_and_reply
from mcp_mirror.memory.tools.tool import Content, ToolInput, build_answer_content, build_text_content
from mcp_mirror.payload.json_rpc import as_plain_text
from mcp_mirror.query.select import Select

_SQL_ADVICE: Final = (
    'Give one SELECT as `sql`, such as SELECT count(*) FROM t, with `inputs` {{"t": {path}}}, in place of `expression`.'
)
_SCRIPT_ADVICE: Final = 'Use memory_run with `inputs` {{"t": {path}}}, where t is the text{readers}.'
_READERS: Final = ("memory_grep", "memory_read")
_MAX_SHOWN_BYTES: Final = 1 << 20
"""Results above this size are stored without an estimate of their tokens."""


async def query(call: ToolInput) -> Content:
    """Return the result of an expression if it is small; store it otherwise."""
    memory = call.memory
    found_value = await find_argument(call)
    max_bytes = memory.tools.query_bytes
    if len(found_value.blob) > max_bytes:
        size, limit = format_bytes(len(found_value.blob)), format_bytes(max_bytes)
        raise ToolError(
            f"{found_value.quoted_path} has {size}; only values up to {limit} can be queried "
            f"(`memory_tools.query_bytes`). Query a part of it (path/key){_name_readers(memory, ', or use ')}."
        )
    text_advice = f"{_name_readers(memory, 'Use ') or 'Use its path as the argument of another tool'}."
    table_advice, group_advice = text_advice, ""
    if memory.services.sql is not None:
        table_advice = _SQL_ADVICE.format(path=found_value.quoted_path)
        group_advice = f"SQL groups rows. {table_advice}"
    elif "memory_run" in memory.own_tools:
        readers = _name_readers(memory, ", or ")
        table_advice = _SCRIPT_ADVICE.format(path=found_value.quoted_path, readers=readers)
    selection = Select(call.arguments.text("expression"), max_bytes, text_advice, table_advice, group_advice)
    # Also for a small value: an expression can take any time, and JMESPath checks no deadline.
    async with memory.services.queries.run_in_worker(
        found_value.blob, found_value.file, selection, memory.tools.timeout, call.namespace
    ) as found:
        if found == b"null":
            return build_text_content("null: the expression finds nothing.")
        is_small = found[:1] != b"{" and len(found) <= _MAX_SHOWN_BYTES
        if is_small and count_value_tokens(found, memory.estimate) <= memory.mirror.inline_budget:
            return build_answer_content(as_plain_text(found))
        return await save_and_reply(call, NewValue((found,), (found_value,), size=len(found)))


def _name_readers(memory: Memory, before: str) -> str:
    """Return `before` and the tools that read texts, of those that the client sees; an empty text without one."""
    readers = " or ".join(name for name in _READERS if name in memory.own_tools)
    return readers and before + readers
