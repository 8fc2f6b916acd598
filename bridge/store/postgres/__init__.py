"""A store in PostgreSQL, which several bridges share. Imported only when it is chosen."""

from bridge.errors import ConfigError

try:
    import psycopg as psycopg
except ImportError as error:
    raise ConfigError(
        "PROXY_STORE=postgresql://… needs PostgreSQL's driver. Install it with: pip install 'turnbridge[postgres]'."
    ) from error
