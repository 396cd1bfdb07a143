"""
Whether an installed package works: run by `./run release` with the Python of an environment that has only that package.

    python -I smoke.py VERSION [CONNECTOR]

The connectors of servers ask a port at which nobody listens, so that their client packages are imported and connect.
"""

import asyncio
import sqlite3
import sys
import tempfile
from pathlib import Path

import pyarrow as pa

import enrichkit
from enrichkit.engine.bridge import Bridge
from enrichkit.engine.engine import Engine
from enrichkit.engine.loop import loop_thread
from enrichkit.engine.run import Run
from enrichkit.errors import UnavailableError
from enrichkit.options import Options
from enrichkit.outcome import Outcomes
from enrichkit.plugin import Call, Connector, ConnectorConfig
from enrichkit.sources.registry import load, require_driver
from enrichkit.values.decode import decoder
from enrichkit.worker.assemble import assemble
from enrichkit.worker.keys import encode

NOBODY = "127.0.0.1:1"


class Doubling(Connector[ConnectorConfig]):
    """Answers a number with its double."""

    name = "doubling"
    config_class = ConnectorConfig

    async def fetch_many(self, keys, call):
        return {key: str(2 * key) for key in keys}


def looked_up(connector: type, config: object, keys: list) -> list:
    """Return the values of *keys*, by the engine, as text."""
    options, loop = Options(), loop_thread()
    decode = decoder(pa.string(), connector(config).encoding)

    def run(emit):
        engine = loop.engine("smoke", lambda: Engine(connector(config), 4))
        return Run(engine, "smoke", options, decode, emit, batch_size=100)

    rows = pa.array(keys)
    found, codes = encode([rows])
    (part,) = Bridge(loop, 10_000, 10_000, "smoke", options, run).process(iter([Outcomes(found, len(rows), codes)]))
    return assemble(part.outcomes.values, codes, pa.string()).to_pylist()


async def refused(connector: Connector) -> None:
    """Ask a server that is not there."""
    try:
        await connector.open()
        await connector.fetch_many(("k",), Call(timeout=5.0))
    except UnavailableError:
        return
    finally:
        await connector.close()
    raise AssertionError("an answer from nobody")


def main(version: str, *names: str) -> None:
    """Raise an error unless enrichkit has the *version* and exactly the connectors *names*, and they work."""
    assert enrichkit.__version__ == version, enrichkit.__version__
    there = {*names, *(["http"] if "llm" in names else [])}  # whose client it uses
    assert {*enrichkit.connectors()} == there, enrichkit.connectors()
    if not names:
        assert looked_up(Doubling, ConnectorConfig(), [1, None, 2, 1]) == ["2", None, "4", "2"]
    for name in names:
        kind = load(name)
        require_driver(kind)
        if name == "sqlite":
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / "shop.db"
                with sqlite3.connect(file) as database:
                    database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT)")
                    database.execute("INSERT INTO t VALUES (1, 'one'), (2, 'two')")
                found = looked_up(kind, kind.config_class(path=str(file), table="t"), [2, 3, 1])
                assert found == ["two", None, "one"], found
            continue
        fields = {
            "http": {"url": f"http://{NOBODY}/{{0}}"},
            "llm": {"base_url": f"http://{NOBODY}/v1", "model": "m", "prompt": "{0}"},
            "mariadb": {"url": f"mariadb://u@{NOBODY}/d", "table": "t"},
            "postgres": {"dsn": f"postgresql://u@{NOBODY}/d", "table": "t"},
            "redis": {"url": f"redis://{NOBODY}"},
        }[name]
        asyncio.run(refused(kind(kind.config_class(**fields))))
    print("works", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
