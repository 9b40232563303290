"""How alembic runs the migrations: in the connection, and so in the transaction, of whoever opens the store."""

from __future__ import annotations

from alembic import context

from ztrio_sql.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
