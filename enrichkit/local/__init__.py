"""
Throw-away real servers for the demo, the examples and tests.

Each server is a context manager. The context manager starts the server on a free loopback port, with all files in a
temporary folder, prints the server's version on stderr, and stops the server at the end. A server dies with the Python
process that started it, even if that process is killed. A process that is killed does not remove the temporary folders
of its servers. This package needs `enrichkit[local]`.

>>> from enrichkit import local
>>> with local.redis() as server:
...     server.url.startswith("redis://127.0.0.1:")
True
"""

from .cluster import Cluster, cluster
from .http import Fault, HttpService, Stats
from .http import http_service as http
from .http_service import value_of
from .llama import LlmServer, llm
from .mariadb import MariadbServer, mariadb
from .model_api import LlmBatches, LlmFault, LlmService, LlmStats, llm_service
from .pgbouncer import pgbouncer
from .postgres import PostgresServer, postgres, postgres_servers
from .process import LocalServerError
from .redis import RedisServer, redis, redis_servers
from .spark import spark

__all__ = [
    "Cluster",
    "Fault",
    "HttpService",
    "LlmBatches",
    "LlmFault",
    "LlmServer",
    "LlmService",
    "LlmStats",
    "LocalServerError",
    "MariadbServer",
    "PostgresServer",
    "RedisServer",
    "Stats",
    "cluster",
    "http",
    "llm",
    "llm_service",
    "mariadb",
    "pgbouncer",
    "postgres",
    "postgres_servers",
    "redis",
    "redis_servers",
    "spark",
    "value_of",
]
