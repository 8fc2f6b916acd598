"""A store in PostgreSQL, which several bridges share. Imported only when it is chosen."""
