"""The durable store: SQLAlchemy Core on SQLite. `open_store` for whoever works with it, `StoreReader` to look at one.

Layers, each importing only what stands below it:

    opening                                     look, lock, make, write
    store                                       what trio sees
    writer, reader                              the one thread that writes; questions from anywhere
    batches                                     transactions, and COMMITs that fail
    operations, pending, retention, schema      what can be done in a transaction
    reading, transaction                        questions; what operations work on
    chain, prepared, tables                     the hash chain of the audit log; statements; what is in the database
    sqlite                                      what is true of SQLite alone
    wal, reserve, files                         what lies beside it
"""

from ztrio_sql.chain import Verification
from ztrio_sql.opening import open_store
from ztrio_sql.reader import StoreReader
from ztrio_sql.retention import Retention
from ztrio_sql.store import SqlStore
from ztrio_sql.writer import WriterStatistics

__all__ = [
    "Retention",
    "SqlStore",
    "StoreReader",
    "Verification",
    "WriterStatistics",
    "open_store",
]
