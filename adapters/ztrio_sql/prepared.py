"""Statements that every call needs: Core says once what they are, and the driver runs them from then on.

Through Core each would take a tenth of a millisecond of the processor, in a thread that has just been woken several
times what the database takes for it; and while it does, nobody else in this process runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import attrs
import sqlalchemy as sa
from sqlalchemy.sql.compiler import SQLCompiler

__all__ = ["Prepared"]


@attrs.frozen
class _Parameter:
    name: str
    # What is taken where nothing is given.
    own: Any
    # How the driver wants it, or None for as it is.
    encode: Callable[[Any], Any] | None


@attrs.frozen
class _Compiled:
    text: str
    parameters: tuple[_Parameter, ...]

    def row(self, values: Mapping[str, Any]) -> list[Any]:
        """The parameters in the order of the text."""
        row = []
        for parameter in self.parameters:
            value = values.get(parameter.name, parameter.own)
            row.append(value if parameter.encode is None or value is None else parameter.encode(value))
        return row


class Prepared:
    """A statement, compiled when it is first used.

    Args:
        statement: It; an INSERT without values gets those of `columns`.
        columns: Names of the columns that an INSERT sets.
    """

    def __init__(
        self, statement: sa.Select[Any] | sa.Insert | sa.Update | sa.Delete, columns: Iterable[str] | None = None
    ) -> None:
        self._statement = statement
        self._columns = None if columns is None else list(columns)
        # One for each database that is open; in any number of threads.
        self._compiled: WeakKeyDictionary[sa.Dialect, _Compiled] = WeakKeyDictionary()

    def run(self, connection: sa.Connection, values: Mapping[str, Any]) -> Any:
        """Run it in the connection's transaction; the driver's cursor."""
        compiled = self._for(connection.dialect)
        cursor = connection.connection.cursor()
        cursor.execute(compiled.text, compiled.row(values))
        return cursor

    def run_many(self, connection: sa.Connection, rows: Iterable[Mapping[str, Any]]) -> None:
        """Run it for each row."""
        compiled = self._for(connection.dialect)
        connection.connection.cursor().executemany(compiled.text, [compiled.row(row) for row in rows])

    def _for(self, dialect: sa.Dialect) -> _Compiled:
        compiled = self._compiled.get(dialect)
        if compiled is None:
            compiled = self._compiled[dialect] = _compile(self._statement, dialect, self._columns)
        return compiled


def _compile(statement: sa.ClauseElement, dialect: sa.Dialect, columns: list[str] | None) -> _Compiled:
    compiled = statement.compile(dialect=dialect, column_keys=columns)
    assert isinstance(compiled, SQLCompiler)
    assert compiled.positiontup is not None  # every dialect can be told to count its parameters
    own, binds = compiled.params, compiled.binds
    return _Compiled(
        compiled.string,
        tuple(
            _Parameter(name, own[name], binds[name].type.dialect_impl(dialect).bind_processor(dialect))
            for name in compiled.positiontup
        ),
    )
