"""
The driver program of `test_canary.py`: uses a password in every way, and keeps all that anybody could read afterwards.

A script of its own, as a job is. Each file below the folder `kept` is a place where no password may be. No frame of
this program holds one in a variable: it is read where a config is made, from a variable of the environment.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import shutil
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow as pa
from canary_web import web
from enrichkit_http import HttpConfig
from enrichkit_postgres import PostgresConfig
from enrichkit_redis import RedisConfig
from pyspark.sql import functions as F
from streams import started

from enrichkit import Cache, Secret, default, describe, enrich, enrich_frame, explain, local, register_function
from enrichkit.driver.pickling import pack
from enrichkit.driver.planner import make_plan
from enrichkit.engine.loop import loop_thread
from enrichkit.outcome import Outcomes
from enrichkit.plan import FrameTask
from enrichkit.worker.task import begin, key_slices

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from enrichkit import ConnectorConfig

ROWS = 20
MODES = ("simple", "extended", "codegen", "cost", "formatted")
LOG4J = """\
rootLogger.level = info
rootLogger.appenderRef.stderr.ref = stderr
logger.spark.name = org.apache.spark
logger.spark.level = debug
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""
# On the level DEBUG these two log the pickled expression, which holds a literal password: as numbers, and in base64.
SHIPPED_IN_JVM = """\
logger.registration.name = org.apache.spark.sql.classic.UDFRegistration
logger.registration.level = info
"""
SHIPPED_IN_PYTHON = "py4j"


class Sources:
    """
    The sources, as one user who has a password sees them.

    Args:
        asked: Addresses of the servers.
        number: Number of the user. The environment variable CANARY_<number> holds the password.
        literal: True when the configs hold the password itself, user 1 in the URL; else they hold a `Secret`.
    """

    def __init__(self, asked: dict[str, Any], number: int, literal: bool) -> None:
        self.asked, self.number, self.literal = asked, number, literal
        self.user, self.variable = f"canary-user-{number}", f"CANARY_{number}"
        self.in_url = literal and number == 1

    def redis(self, user: str = "", port: int = 0, **fields: Any) -> RedisConfig:
        user, address = user or self.user, f"127.0.0.1:{port or self.asked['redis']}"
        if self.in_url:
            return RedisConfig(url=f"redis://{user}:{self._quoted()}@{address}", **fields)
        return RedisConfig(url=f"redis://{address}", username=user, password=self._password(), **fields)

    def postgres(self, user: str = "", **fields: Any) -> PostgresConfig:
        user, address = user or self.user, f"127.0.0.1:{self.asked['postgres']}/postgres"
        fields = fields if "query" in fields else {"table": "users", **fields}
        if self.in_url:
            return PostgresConfig(dsn=f"postgresql://{user}:{self._quoted()}@{address}", **fields)
        return PostgresConfig(dsn=f"postgresql://{user}@{address}", password=self._password(), **fields)

    def http(self, **fields: Any) -> HttpConfig:
        url, fields = f"{self.asked['http']}/{{}}", {"value": "name", **fields}
        if self.in_url:
            return HttpConfig(url=f"{url}?token={self._quoted()}", headers=self._headers(), **fields)
        return HttpConfig(url=url, headers=self._headers(), **fields)

    def all(self) -> dict[str, ConnectorConfig]:
        return {"redis": self.redis(), "postgres": self.postgres(), "http": self.http()}

    def unencoded(self, kind: type[RedisConfig] | type[PostgresConfig] | type[HttpConfig]) -> ConnectorConfig:
        """Return a config with the password in its URL as it is, which is refused."""
        scheme, field = {RedisConfig: ("redis", "url"), PostgresConfig: ("postgresql", "dsn")}.get(
            kind, ("http", "url")
        )
        fields = {"table": "users"} if kind is PostgresConfig else {}
        return kind(**{field: f"{scheme}://{self.user}:{os.environ[self.variable]}@127.0.0.1/{{}}"}, **fields)

    def _password(self) -> str | Secret:
        return os.environ[self.variable] if self.literal else Secret.env(self.variable)

    def _headers(self) -> dict[str, str | Secret]:
        return {"X-User": self.user, "X-Api-Key": self._password()}

    def _quoted(self) -> str:
        return quote(os.environ[self.variable], safe="")


class Kept:
    """What anybody could read, in files of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def add(self, place: str, *texts: object) -> None:
        with (self.folder / place).open("a") as file:
            file.writelines(f"{text}\n" for text in texts)

    def error(self, run: Callable[[], object]) -> None:
        """Keep the error of *run*: its text, its repr, and its traceback without and with the variables of frames."""
        try:
            run()
        except Exception as error:  # each of its kinds is kept
            self.add("errors", error, repr(error), error.args)
            self.add("tracebacks", *traceback.format_exception(error))
            told = traceback.TracebackException.from_exception(error, capture_locals=True)
            self.add("tracebacks-with-locals", *told.format())
        else:
            raise AssertionError("nothing was wrong")


def keys_of(spark: SparkSession) -> DataFrame:
    return spark.range(0, ROWS, 1, 2).select(F.concat(F.lit("u"), "id").alias("key"))


def works(spark: SparkSession, sources: Sources, kept: Kept) -> dict[str, list[Any]]:
    """Look up each key in each source, in each form, and return the outcomes, by the form."""
    keys, configs = keys_of(spark), sources.all()
    columns = {name: enrich(config, "key", details=True, cache=Cache(ttl=60)) for name, config in configs.items()}
    frames = {"column": keys.select("key", *columns.values())}
    keys.createOrReplaceTempView("keys")
    for name, config in configs.items():
        kept.add("reprs", repr(columns[name]), columns[name], repr(config), vars(make_plan(config, 1, "string", {})[0]))
        kept.add("reprs", FrameTask(plan=pack(make_plan(config, 1, "string", {})[0]), width=1, keys=(0,), names=("v",)))
        kept.add("reports", describe(config), explain(config, keys=ROWS, on_error=config), repr(explain(config)))
        frames[f"frame {name}"] = enrich_frame(keys, config, on="key", into=name, details=True)
        register_function(spark, f"{name}_of", config, details=True)
        frames[f"sql {name}"] = spark.sql(f"SELECT key, {name}_of(key) AS {name} FROM keys")
        kept.add("functions", *spark.sql(f"DESCRIBE FUNCTION EXTENDED {name}_of").collect())
        kept.add("functions", spark.catalog.getFunction(f"{name}_of"))
    found = {}
    for form, frame in frames.items():
        for mode in MODES:
            with contextlib.redirect_stdout(io.StringIO()) as shown:
                frame.explain(mode=mode)
            kept.add("plans", shown.getvalue())
        kept.add("reprs", repr(frame), frame, frame.schema.json(), frame.schema.simpleString())
        found[form] = [row.asDict(recursive=True) for row in frame.collect()]
    return found


def mistakes(spark: SparkSession, sources: Sources, kept: Kept) -> None:
    """Make all mistakes that the driver finds."""
    s, keys = sources, keys_of(spark)
    kept.error(lambda: s.redis(kind="sorted set"))
    kept.error(lambda: s.redis(passwort="no such field"))
    kept.error(lambda: s.postgres(columns=("id", "id")))
    kept.error(lambda: s.http(method="PATCH"))
    kept.error(lambda: s.http(body="no JSON", method="POST"))
    if s.in_url:
        for kind in (RedisConfig, PostgresConfig, HttpConfig):
            kept.error(lambda kind=kind: s.unencoded(kind))
    kept.error(lambda: enrich(s.postgres("canary-other"), "key"))  # the server is asked for the type
    for config in s.all().values():
        kept.error(lambda config=config: enrich(config, "key", capacity=0))
        kept.error(lambda config=config: enrich(config, "key", batch_size=10**6))
        kept.error(lambda config=config: enrich(config, "key", returns="int", on_missing=default("many")))
        kept.error(lambda config=config: enrich(config, "key", returns="nonsense"))
        kept.error(lambda config=config: enrich(config, "key", "key"))
        kept.error(lambda config=config: enrich(config, "key", returns="int", on_error=s.http(returns="date")))
        kept.error(lambda config=config: enrich_frame(keys, config, on="no such column"))
        kept.error(lambda config=config: enrich_frame(keys, config, on="key", into="key"))
        kept.error(lambda config=config: register_function(spark, "abs", config))


def fails(spark: SparkSession, sources: Sources, kept: Kept) -> None:
    """Run jobs that fail on a worker: the password is refused, quoted by the server, or not heard at all."""
    n = sources.number
    jobs: list[tuple[ConnectorConfig, str, dict[str, Any]]] = [
        (sources.redis("canary-other"), "u1", {}),
        (sources.postgres("canary-other"), "u1", {"returns": "string"}),
        (sources.http(), f"refused-{n}", {}),
        (sources.redis(port=sources.asked["deaf_redis"]), "u1", {}),
        (sources.postgres(query=f"SELECT id, quote_{n}() FROM users WHERE id = ANY($1)"), "u1", {"returns": "string"}),
        (sources.http(), f"quoting-{n}", {}),
        (sources.http(), f"moved-{n}", {}),
        (sources.http(value=None, returns="int"), f"broken-{n}", {}),
        (sources.redis(port=1), "u1", {"stall_timeout": 1.0}),
    ]
    for config, key, options in jobs:
        frame = spark.range(1).select(enrich(config, F.lit(key), **options))
        kept.error(frame.collect)
        if isinstance(config, HttpConfig) and not key.startswith("refused"):  # a refused login fails the task anyway
            details = enrich(config, F.lit(key), details=True, on_error="null", **options)
            kept.add("outcomes", spark.range(1).select(details).collect())


def streams(spark: SparkSession, sources: Sources, kept: Kept, folder: Path) -> None:
    """Run a query that ends well and one that does not, each with a checkpoint among what is kept."""
    given = folder / f"given-{sources.number}"
    keys_of(spark).write.json(str(given))
    for name, configs in (("good", list(sources.all().values())), ("bad", [sources.redis("canary-other")])):
        at = kept.folder / f"stream-{name}-{sources.number}"
        events = spark.readStream.schema("key string").json(str(given))
        writer = events.select("key", *(enrich(config, "key") for config in configs)).writeStream.format("json")
        writer = (
            writer.queryName(at.name).option("path", str(at / "out")).option("checkpointLocation", str(at / "state"))
        )
        query = started(writer.trigger(availableNow=True).start)
        if name == "bad":
            kept.error(query.awaitTermination)
        else:
            query.awaitTermination()
        kept.add("streams", query.recentProgress, query.status, repr(query.exception()))


def statistics(sources: Sources, kept: Kept) -> None:
    """Look keys up in this process, as a worker does, and keep what the engine counted and how it shows itself."""
    for name, config in sources.all().items():
        plan, _ = make_plan(config, 1, "string", {"details": True})
        keys = (pa.array([f"u{n}" for n in range(ROWS)]),)
        bridge = begin(plan, keys)
        slices = (
            Outcomes(part.keys, part.rows, part.codes, details=True, key_array=part.key_array)
            for part in key_slices(plan, bridge, keys, 0, ROWS)
        )
        parts = list(bridge.process(slices))
        engines = list(loop_thread().engines.values())
        kept.add("statistics", name, bridge.run.stats.as_dict(), bridge.run.stats, bridge.run, parts, engines)
        kept.add("statistics", [engine.connector for engine in engines], [vars(engine) for engine in engines])
        if not sources.literal:
            (kept.folder / f"pickled-{name}-{sources.number}").write_bytes(pack(plan))


def main() -> None:
    asked = json.loads(sys.argv[1])
    folder, literal = Path(asked["folder"]), asked["kind"] == "literal"
    kept = Kept(folder / "kept")
    logging.basicConfig(filename=kept.folder / "driver.log", level=logging.DEBUG, force=True)
    if literal:
        logging.getLogger(SHIPPED_IN_PYTHON).setLevel(logging.INFO)
    (folder / "log4j2.properties").write_text(LOG4J + (SHIPPED_IN_JVM if literal else ""))
    (kept.folder / "events").mkdir()
    java = f"-Dlog4j2.configurationFile={folder}/log4j2.properties -Djava.io.tmpdir={folder} -XX:-UsePerfData"
    conf = {
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file://{kept.folder}/events",
        "spark.eventLog.compress": "false",
        "spark.task.maxFailures": "1",
        "spark.python.daemon.module": "tests.daemon",  # or each task that fails costs a second of imports
        "spark.driver.extraJavaOptions": java,
        "spark.executor.extraJavaOptions": java,
    }
    found = []
    # The executor is a process of its own, with a log of its own.
    with local.spark(master="local-cluster[1,1,1024]", **conf) as spark:
        for number in range(asked["users"]):
            sources = Sources(asked, number, literal)
            found.append(works(spark, sources, kept))
            mistakes(spark, sources, kept)
            fails(spark, sources, kept)
            streams(spark, sources, kept, folder)
            statistics(sources, kept)
        web(spark, kept.folder / "web")
        at = Path(spark.sparkContext.getConf().get("spark.local.dir"))
        shutil.copy(at / "log", kept.folder / "jvm.log")
        shutil.copytree(at / "home" / "work", kept.folder / "executors")
    (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
