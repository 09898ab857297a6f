"""The jobs of the SQL workers. They run in worker processes, so this module imports nothing that jobs do not use."""

from dataclasses import dataclass

from mcp_mirror.query.sql import FileRemoved, SqlFailure, SqlQuery, SqlResult, run_sql


def prepare() -> None:
    """Import the database."""
    import duckdb  # noqa: F401, PLC0415  # an extra


@dataclass(frozen=True, slots=True)
class SqlJob:
    """One query."""

    query: SqlQuery

    def __call__(self) -> SqlResult | SqlFailure | FileRemoved:
        """Run the query."""
        return run_sql(self.query)
