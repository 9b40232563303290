"""Transactions of many operations on the one connection that writes, and what to do when a COMMIT fails.

An operation that is refused does not fail the others: what refuses by checking has changed nothing, and when the
database itself objects, the batch is done once more with a savepoint around each.

A COMMIT that failed is the one case in which nobody can tell. Its frames may lie in the log complete, unseen by every
connection, and be found by whoever opens the database after a crash. So the connection is closed, a new one looks
whether the batch is there, and a transaction that changes nothing is synced *after* it, which overwrites those frames.
Until that has succeeded everything is in doubt and nothing else is written. After an error of the disk the whole log is
copied into the file before: once a sync has failed, the system may take for written what is not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import sqlalchemy as sa
from outcome import Error, Outcome, Value

from ztrio.errors import StoreUnavailable, ZtrioError
from ztrio.store import StoreConflict
from ztrio_sql import reading
from ztrio_sql.chain import Anchor
from ztrio_sql.operations import Nothing, Touch
from ztrio_sql.sqlite import SqliteDatabase, trouble_of
from ztrio_sql.transaction import Operation, Transaction

__all__ = ["Batches", "CommitRaised"]

_CHECKPOINT: Final = 4 * 2**20  # bytes, roughly, after which the log is copied into the file
_OVERHEAD: Final = 16 * 1024  # bytes that a transaction writes beside its rows, roughly


class CommitRaised(Exception):
    """COMMIT raised, and its exception is the cause: nobody knows what became of the batch until `settle` returns.

    Args:
        answers: What comes of the operations if it is there.
    """

    def __init__(self, answers: list[Outcome[Any]]) -> None:
        super().__init__()
        self.answers = answers


class Batches:
    """Writes batches. Everything is called from one thread.

    Args:
        database: The database.
        now: Wall clock, seconds since the epoch.

    Attributes:
        in_doubt: Whether a COMMIT failed, and what became of it is not settled yet.
        written: Transactions committed so far.
        synced: Transactions that were synced.
    """

    def __init__(self, database: SqliteDatabase, now: Callable[[], float]) -> None:
        self._database = database
        self._now = now
        # None before the first transaction and after one that failed.
        self._connection: sa.Connection | None = None
        # The end of the log and the newest mark, as committed; meaningless while there is no connection. Every
        # transaction changes one of them, so it can be told whether it is there.
        self._head = Anchor()
        self._mark = 0
        self.in_doubt = False
        # What both are if the batch in doubt is there.
        self._expected = (self._head, self._mark)
        # Whether a sync failed, so that the log has to be copied into the file before anything else.
        self._distrust = False
        # Bytes written since the last checkpoint, roughly.
        self._unchecked = 0
        self.written = self.synced = 0

    def write(self, operations: Sequence[Operation]) -> list[Outcome[Any]]:
        """Do everything in one transaction, synced if any of them asks for it.

        Returns:
            What came of each: its answer, or the exception by which it was refused.

        Raises:
            CommitRaised: nobody can tell; `settle` must follow.
            Exception: nothing was done.
        """
        assert not self.in_doubt
        connection = self._connect()
        synced = any(operation.synced for operation in operations)
        try:
            self._database.set_synced(connection, synced)
            transaction, answers = self._apply(connection, operations)
            mark = self._mark
            if transaction.head == self._head and any(not isinstance(each, Nothing) for each in operations):
                mark += 1
                transaction.mark(mark)
        except BaseException:
            self._disconnect()
            raise
        self._commit(connection, (transaction.head, mark), answers)
        self._head, self._mark = transaction.head, mark
        self.written += 1
        self.synced += synced
        self._unchecked += _OVERHEAD + sum(operation.size for operation in operations)
        return answers

    def settle(self) -> bool:
        """After `CommitRaised`: whether the batch is there, for certain and durably.

        Raises:
            Exception: nobody can tell yet; to be repeated.
        """
        assert self.in_doubt
        connection = self._connect()
        there = (self._head, self._mark) == self._expected
        try:
            self._database.set_synced(connection, synced=True)
            connection.begin()
            Touch().apply(Transaction(connection, self._head, self._now()))
        except BaseException:
            self._disconnect()
            raise
        self._commit(connection, self._expected, [])
        self.in_doubt = False
        self.synced += 1
        return there

    def read(self, question: Callable[[sa.Connection], Any]) -> Any:
        """Ask something on the writing connection."""
        connection = self._connect()
        try:
            answer = question(connection)
            connection.rollback()
        except BaseException:
            self._disconnect()
            raise
        return answer

    def checkpoint(self) -> None:
        """Copy the log into the file if enough has come together. What fails is done next time."""
        if self._unchecked < _CHECKPOINT or self._connection is None:
            return
        try:
            self._database.checkpoint(self._connection, whole=False)
        except Exception as error:
            if trouble_of(error) is None:
                raise
            self._disconnect()
        self._unchecked = 0

    def close(self) -> None:
        """Let go of the database. Idempotent."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _commit(self, connection: sa.Connection, expected: tuple[Anchor, int], answers: list[Outcome[Any]]) -> None:
        try:
            connection.commit()
        except Exception as error:
            self.in_doubt, self._expected = True, expected
            trouble = trouble_of(error)
            self._distrust = self._distrust or trouble is None or trouble.kind == "io"
            self._disconnect()
            raise CommitRaised(answers) from error

    def _apply(
        self, connection: sa.Connection, operations: Sequence[Operation]
    ) -> tuple[Transaction, list[Outcome[Any]]]:
        connection.begin()
        try:
            transaction = Transaction(connection, self._head, self._now())
            answers = [_captured(operation, transaction) for operation in operations]
            transaction.flush()
        except Exception as error:
            if trouble_of(error) is not None:
                raise
        else:
            return transaction, answers
        # One of them broke off in the middle. Which, the savepoints tell.
        connection.rollback()
        connection.begin()
        transaction = Transaction(connection, self._head, self._now())
        answers = [_guarded(operation, transaction) for operation in operations]
        transaction.flush()
        return transaction, answers

    def _connect(self) -> sa.Connection:
        if self._connection is None:
            connection = self._database.writer()
            try:
                if self._distrust:
                    if not self._database.checkpoint(connection, whole=True):
                        raise StoreUnavailable("The store cannot be put in order while others read it.")
                    self._distrust = False
                self._head = reading.head(connection)
                self._mark = int(reading.fact(connection, "mark") or 0)
                connection.rollback()
            except BaseException:
                _drop(connection)
                raise
            self._connection = connection
        return self._connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            _drop(connection)


def _drop(connection: sa.Connection) -> None:
    """Close a connection in whatever state it is, without asking it anything."""
    connection.invalidate()
    connection.close()


def _captured(operation: Operation, transaction: Transaction) -> Outcome[Any]:
    try:
        return Value(operation.apply(transaction))
    except (StoreConflict, ZtrioError) as refusal:
        return Error(refusal)


def _guarded(operation: Operation, transaction: Transaction) -> Outcome[Any]:
    transaction.flush()
    head = transaction.head
    savepoint = transaction.connection.begin_nested()
    try:
        answer = _captured(operation, transaction)
        transaction.flush()
    except Exception as error:
        if trouble_of(error) is not None:
            raise
        savepoint.rollback()
        transaction.back_to(head)
        refusal = StoreConflict(f"the store does not take it: {type(error).__name__}: {error}")
        refusal.__cause__ = error
        return Error(refusal)
    savepoint.commit()
    return answer
