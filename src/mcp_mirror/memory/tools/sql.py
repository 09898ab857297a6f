"""The SQL form of `memory_query`: each input is a table, and the rows of the result are captured like any result.

The result has the joined flow labels of all inputs. A model that may not see them gets a memory path and nothing else,
whether the query worked or failed, as from a script.
"""

import hashlib
import re
from collections.abc import Collection
from typing import Final

import msgspec
from msgspec.structs import replace

from mcp_mirror.core.amounts import format_bytes
from mcp_mirror.errors import ToolError
from mcp_mirror.memory.code.inputs import Inputs, read_inputs
from mcp_mirror.memory.tools.lookup import PATH
from mcp_mirror.memory.tools.query import query
from mcp_mirror.memory.tools.save import NewValue, save_and_reply, save_hidden, show
from mcp_mirror.memory.tools.tool import Arguments, Content, MemoryTool, ToolInput, build_answer_content
from mcp_mirror.query.sql_errors import SqlFailure
from mcp_mirror.security.sanitize import as_json_string
from mcp_mirror.system.patterns import lazy_pattern
from mcp_mirror.types import Buffer
from mcp_mirror.workers.sql import SqlCall

_MAX_SQL: Final = 100_000
"""Characters of a query."""
_MAX_TABLES: Final = 100
_NAME: Final = lazy_pattern(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_MAX_PATH: Final = 200
"""Bytes of a path that an error quotes."""
_AGAIN: Final = "Call memory_query again with a corrected query."
_NO_PATHS: Final = (
    "No value of `inputs` is a memory path. If the data is not stored yet, call the tool that returns it first: its "
    "result has the path."
)
_EXAMPLE: Final = (
    "Answer a question about whole stored values with one SELECT (DuckDB), such as SELECT d.name, SUM(t.km) FROM trips "
    't JOIN drivers d ON ... GROUP BY d.name ORDER BY 2 DESC LIMIT 1 with inputs {"trips": path, "drivers": path}.'
)
"""The join has no columns, since small models copy them."""
_SHORT: Final = "One SELECT (DuckDB) over stored values; inputs names its tables."
_FORMS: Final = (
    "Use `memory_path` with `expression` (JMESPath) for one value, or `sql` with `inputs`, such as "
    '{"orders": "<memory path>"}, where each name is a table.'
)
_NO_TABLE: Final = (
    "`sql` reads the tables of `inputs`. Give the path there, with the name of its table, such as "
    '{"orders": "<memory path>"}, and leave `memory_path` out.'
)
_SELECT: Final = lazy_pattern(r"\s*(?:select|with|from)\s+[\w*\"]", re.IGNORECASE)
"""The beginning of an SQL query, which no JMESPath expression has."""
_TABLE: Final = lazy_pattern(
    r"(?:\A\s*(?:describe|pivot|summarize)|(?<!distinct )\b(?:from|join))\s+"
    r"(?!(?:order|group)\s+by\b|(?:and|as|asc|between|desc|from|having|in|is|like|limit|not|or|where)\b)"
    r"([a-z_]\w*+)(?!\s*\()",
    re.IGNORECASE | re.ASCII,
)
"""A name from which a query reads rows, not that of a function such as `UNNEST`, nor what follows a column `from`."""
_PART_OF: Final = lazy_pattern(r"\b(?:extract|overlay|substring|trim)\s*\([^()]*\bfrom\b", re.IGNORECASE)
"""A function in which `FROM` follows a unit, as in `EXTRACT(year FROM "at")`."""
_CTE: Final = lazy_pattern(r"\b([a-z_]\w*+)(?:\s*\([^()]*\))?\s+as\s*\(", re.IGNORECASE | re.ASCII)
"""The name of a common table expression."""
_NOT_JMESPATH: Final = (
    "`expression` is JMESPath, not SQL. Give the query as `sql`, and the value by the name of its table in `inputs`, "
    'such as {{"t": {path}}}, in place of `memory_path` and `expression`.'
)
_NOT_OF_TABLES: Final = (
    "`expression` (JMESPath) reads one value, that of `memory_path`. To query the tables of `inputs`, give one SELECT "
    "as `sql` in place of `expression`."
)


def with_sql(tool: MemoryTool, *, has_run: bool) -> MemoryTool:
    """Return `memory_query` with the arguments of its SQL form, which come first: models fill arguments in order.

    `has_run`: `memory_run` is served too. Then that tool has the example for questions about whole values.
    """
    return replace(
        tool,
        description=f"{_SHORT if has_run else _EXAMPLE} Or {tool.description[0].lower()}{tool.description[1:]}",
        properties={"inputs": {"type": "object"}, "sql": {"type": "string"}, **tool.properties},
        required=(),
        run=_query_either,
    )


async def _query_either(call: ToolInput) -> Content:
    """Run the form of the query that the arguments name.

    Small models add a `memory_path` to a complete SQL form. Others give it in place of `inputs`, where it is the table.
    """
    given = {name for name in (PATH, "expression", "sql", "inputs") if call.arguments.has(name)}
    if "inputs" in given and not call.arguments.json("inputs").strip(b"{} \t\r\n"):
        given.remove("inputs")
    if "sql" in given:
        if "expression" in given:
            raise ToolError("`sql` reads the tables of `inputs`. Leave `expression` out and call again.")
        is_named = "inputs" in given or PATH not in given
        return await _query_tables(call, None if is_named else _name_only_table(call.arguments))
    if given == {PATH, "expression"}:
        if _SELECT.match(call.arguments.text("expression")):
            raise ToolError(_NOT_JMESPATH.format(path=as_json_string(call.arguments.text(PATH), _MAX_PATH)))
        return await query(call)
    raise ToolError(_NOT_OF_TABLES if {"expression", "inputs"} <= given else _FORMS)


def _name_only_table(arguments: Arguments) -> bytes:
    """Return the inputs of a query of one table, whose value is that of `memory_path`.

    Raises:
        ToolError: The query reads no table or several, or the table has a name that an input cannot have.
    """
    sql = arguments.code("sql")[:_MAX_SQL]
    read = _PART_OF.sub("", sql)
    names = {name.casefold() for name in _TABLE.findall(read)} - {name.casefold() for name in _CTE.findall(sql)}
    if len(names) != 1:
        raise ToolError(_NO_TABLE)
    return msgspec.json.encode({names.pop(): arguments.text(PATH)})


async def _query_tables(call: ToolInput, given: bytes | None) -> Content:
    """Run an SQL query and return its rows: a few as they are, others as a notice.

    `given` has the inputs in place of the argument `inputs`, as JSON text.
    """
    memory, sql = call.memory, call.arguments.code("sql")
    if memory.services.sql is None:
        raise ToolError("SQL queries cannot run here. Use `memory_path` and `expression`.")
    if len(sql) > _MAX_SQL:
        raise ToolError(f"`sql` has {len(sql):,} characters; {_MAX_SQL:,} are accepted. Shorten it.")
    raw = call.arguments.json("inputs") if given is None and call.arguments.has("inputs") else given or b"{}"
    inputs = await _read_tables(call, raw)
    memory.trace.detail = {
        "sql": hashlib.sha256(sql.encode("utf-8", "replace")).hexdigest(),
        "inputs": " ".join(inputs.paths),
    }
    memory.trace.labels = inputs.labels
    sql_call = SqlCall(sql, inputs.inputs, call.namespace, memory.tools.timeout, memory.tools.query_bytes)
    async with memory.services.sql.run(sql_call, memory.services.spool) as answer:
        is_shown = memory.flows.may_show(inputs.labels)
        if isinstance(answer, SqlFailure):
            if is_shown or answer.is_mistake:
                raise ToolError(_describe_failure(answer, inputs))
            rows: Buffer = msgspec.json.encode({"error": answer.message})
        else:
            rows = memory.trace.returned = answer
        table = NewValue((rows,), labels=(inputs.labels,), paths=inputs.paths, preview=inputs.preview, size=len(rows))
        if not is_shown:  # only the path, because whether a query fails may depend on the values
            return await save_hidden(call, table)
        shown = show(call, table)
        return await save_and_reply(call, table) if shown is None else build_answer_content(shown)


async def _read_tables(call: ToolInput, raw: bytes) -> Inputs:
    """Resolve the inputs of a query."""
    limit = call.memory.tools.query_bytes

    def check_size(size: int) -> None:
        if size > limit:
            raise ToolError(
                f"The inputs are too large together: a query reads up to {format_bytes(limit)} "
                "(`memory_tools.query_bytes`). Use parts of them (path/key)."
            )

    inputs = await read_inputs(call, raw, _check_tables, check_size)
    given = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    for table in inputs.inputs:
        if table.is_name and bytes(table.blob) == bytes(given[table.name]).strip():
            raise await call.memory.unknown_path_error(call.namespace, table.read_text())
    check_size(sum(len(table.blob) for table in inputs.inputs))
    return inputs


def _check_tables(names: Collection[str]) -> None:
    if len(names) > _MAX_TABLES:
        raise ToolError(f"A query may have {_MAX_TABLES} inputs. Join some of them in one value.")
    if len({name.casefold() for name in names}) < len(names):
        raise ToolError("Two inputs have the same name: upper and lower case are equal in SQL. Rename one.")
    for name in names:
        if not _NAME.fullmatch(name):
            raise ToolError(
                f"{name[:80]!r} cannot name an input: it becomes a table. Use a name such as `orders` or `users`."
            )


def _describe_failure(failure: SqlFailure, inputs: Inputs) -> str:
    """Return the message of a failure; if an input has no preview, only its class."""
    if failure.is_limit:
        return failure.message
    if failure.is_mistake and not inputs.paths:
        return f"{failure.message}\n{_NO_PATHS}"
    if inputs.preview or failure.is_mistake:
        return f"{failure.message}\n{_AGAIN}"
    hidden = "The message is not shown, because an input has no preview."
    return f"The query failed with {failure.kind}. {hidden} {_AGAIN}"
