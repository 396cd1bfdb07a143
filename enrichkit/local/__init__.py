"""
Throw-away real servers for the demo, the examples and tests.

Each is a context manager. It starts the server on a free loopback port with everything in a temporary folder, says on
stderr which version runs, and stops it at the end. A server dies with its process, however that ends; a process that is
killed leaves its temporary folder. Needs `enrichkit[local]`.

>>> from enrichkit import local
>>> with local.redis() as server:
...     server.url.startswith("redis://127.0.0.1:")
True
"""

from .http import Fault, HttpService, Stats
from .http import http_service as http
from .http_service import value_of
from .mariadb import MariadbServer, mariadb
from .pgbouncer import pgbouncer
from .postgres import PostgresServer, postgres, postgres_servers
from .process import LocalServerError
from .redis import RedisServer, redis, redis_servers
from .spark import spark

__all__ = [
    "Fault",
    "HttpService",
    "LocalServerError",
    "MariadbServer",
    "PostgresServer",
    "RedisServer",
    "Stats",
    "http",
    "mariadb",
    "pgbouncer",
    "postgres",
    "postgres_servers",
    "redis",
    "redis_servers",
    "spark",
    "value_of",
]
