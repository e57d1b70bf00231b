"""Runs the migrations on the connection that `chatd.store.migrate` hands over.

There is no offline mode and no ini file: the only caller is the server's start.
"""

from alembic import context

context.configure(connection=context.config.attributes["connection"], transactional_ddl=True)
with context.begin_transaction():
    context.run_migrations()
