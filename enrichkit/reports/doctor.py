"""`doctor()`: a small job that says, before a real job fails, what each executor lacks."""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass
from importlib.metadata import packages_distributions, version
from typing import TYPE_CHECKING, Any

from .. import errors
from ..driver.pickling import functions_of, is_installed, pickle_module_of, pickle_value
from ..options import Options
from ..secrets import redact
from ..sources.config import find_source
from ..sources.tiers import Tiers
from ..version import VERSION
from .examination import examine
from .executors import run_everywhere
from .text import Report, paragraph, plural, seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import SparkSession
    from typing_extensions import Unpack

    from ..interface import ConnectorConfig
    from ..options import OptionsDict

__all__ = ["Diagnosis", "Finding", "doctor"]

HOLD = 0.5
"""Seconds that each task takes at least, so that Spark sends the other tasks to other executors."""
CLOCK = 30.0
"""Seconds by which an executor's clock may differ from the driver's; tokens and certificates tolerate about as much."""
PROCESS = 100 * 2**20
"""Memory of a worker process before its first row, in bytes; docs/cluster.md names the same number."""
UNITS = {"b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
EVERY = "every"


@dataclass(frozen=True)
class Finding:
    """
    One problem that `doctor` found on an executor.

    Attributes:
        kind: `"package"`, `"version"`, `"python"`, `"client"`, `"secret"`, `"certificate"`, `"route"`, `"refused"`,
            `"clock"`, `"memory"`, `"task"` (a task could not run) or `"silent"` (the executor said nothing).
        host: Name or address of the executor's host.
        executor: Id of the executor, as Spark's web UI shows it; `"every"`: all executors.
        what: What is wrong; the text holds no secret.
        remedy: What to do.
    """

    kind: str
    host: str
    executor: str
    what: str
    remedy: str


@dataclass(frozen=True, repr=False)
class Diagnosis(Report):
    """
    The result of `doctor`; its `str` is the text to print.

    Attributes:
        reached: Number of executors that answered.
        expected: Number of executors that the session has, those included that came for this job; None: Spark does not
            tell, as on Spark Connect.
        sources: Names of the sources that each executor has tried.
        findings: What is wrong, by executor; empty: nothing was found.
    """

    reached: int
    expected: int | None
    sources: tuple[str, ...]
    findings: tuple[Finding, ...]

    def __str__(self) -> str:
        of = f" of {self.expected}" if self.expected is not None else ""
        tried = ", ".join(map(repr, self.sources)) or "no source"
        lines = [f"{self.reached}{of} executors answered; tried: {tried}; {plural(len(self.findings), 'finding')}"]
        for finding in self.findings:
            where = "every executor" if finding.executor == EVERY else f"executor {finding.executor} on {finding.host}"
            lines += ["", f"{where}: {finding.kind}", *paragraph(finding.what), *paragraph(finding.remedy)]
        return "\n".join(lines)


def doctor(
    spark: SparkSession,
    *sources: str | ConnectorConfig | Tiers,
    tasks: int | None = None,
    **options: Unpack[OptionsDict],
) -> Diagnosis:
    """
    Run a small job that checks every executor: packages, versions, client packages, secrets, certificates, the clock,
    and whether the executor reaches each of *sources*.

    Each executor opens each source with one connection and asks it for one key, which the source need not hold. If
    calls of the source cost more than a request (for example tokens), or may not be repeated, the executor opens the
    source and asks for no key. The job runs on classic Spark and on Spark Connect, even if the executors lack
    enrichkit.

    Args:
        spark: The session.
        sources: Names of sources, or their configs, or tiers (`enrichkit.tiers`) of them; none: no source is asked.
        tasks: Number of tasks, 1 to 100,000; None: twice as many as the session has task slots.
        options: Options of `enrich` as in your job: `timeout` limits the seconds of the check of one source, and
            `window_bytes`, `reuse_bytes` and `cache` count as memory of a worker process.

    Raises:
        ConfigError: An argument, an option or the config of a source is wrong. Raised on the driver.
        UnknownConnectorError: There is no source with one of the names. Raised on the driver.
    """
    if tasks is not None and not (isinstance(tasks, int) and 1 <= tasks <= 100_000):
        raise errors.ConfigError(f"tasks is {tasks!r}; it must be a whole number from 1 to 100,000, or None.")
    found = [find_source(each) for source in sources for each in _each(source)]
    chosen = Options.of({**options})
    asked = {
        "version": VERSION,
        "sources": [_asked(*each) for each in found],
        "timeout": chosen.timeout or 10.0,
        "hold": HOLD,
    }
    began = time.time()
    run = run_everywhere(spark, pickle_module_of(examine), asked, tasks)
    ended = time.time()
    findings: dict[Finding, None] = {}  # a dict as an ordered set, because tasks on one executor find the same faults
    reached: set[tuple[str, str]] = set()
    wrong: set[tuple[str, str]] = set()
    for host, executor, text in run.answers:
        said = json.loads(text)
        where = (host or said["host"], executor or said["place"])
        reached.add(where)
        clock = () if where in wrong else tuple(_clock(said["time"], began, ended))
        wrong.update({where} if clock else ())
        for kind, what, remedy in (*said["findings"], *clock):
            findings[Finding(kind, *where, redact(what), remedy)] = None
    for host, executor, message in run.failures:
        findings[Finding(*_failure(host, executor, message))] = None
    # Executors are compared by id alone, because Spark's list may name a host in another way than the tasks do.
    heard = {executor for _, executor in reached} | {executor for _, executor, _ in run.failures}
    for executor, host in sorted((run.expected or {}).items()):
        if executor in heard:
            continue
        what = "no task has answered there"
        findings[
            Finding("silent", host, executor, what, "Run the doctor again, with more tasks or while it is idle")
        ] = None
    findings.update(dict.fromkeys(_memory(spark, chosen, run.cores)))
    names = tuple(name for name, _, _ in found)
    count = len(run.expected) if run.expected is not None else None
    return Diagnosis(len(reached), count, names, tuple(findings))


def _each(source: str | ConnectorConfig | Tiers) -> Iterable[str | ConnectorConfig]:
    return source.sources if isinstance(source, Tiers) else (source,)


def _asked(name: str, connector: Any, config: ConnectorConfig) -> dict[str, Any]:
    """
    Return the facts about a source that an executor needs.

    The names of the source and its packages are outside the pickled payload. An executor that cannot unpickle the
    payload can thus still report which package it lacks.
    """
    module = connector.__module__.partition(".")[0]
    package = next(iter(packages_distributions().get(module, ())), None) if is_installed(connector) else None
    if package is None and is_installed(connector):
        package = _package_of(module)
    return {
        "name": name,
        "module": module,
        "package": package if module != "enrichkit" else None,
        "version": version(package) if package is not None else None,
        "requires": connector.requires,
        "install": connector.pip or f"pip install {' '.join(connector.requires)}",
        "payload": pickle_value((connector, config), connector, type(config), *functions_of(config)),
    }


def _package_of(module: str) -> str | None:
    """
    Return the package that has an entry point for a plugin in *module*, or None.

    This function serves packages in editable mode, because `packages_distributions` does not list their modules.
    """
    from importlib.metadata import entry_points

    points = (point for point in entry_points(group="enrichkit") if point.module.partition(".")[0] == module)
    return next((point.dist.name for point in points if point.dist), None)


def _clock(told: float, began: float, ended: float) -> Iterator[tuple[str, str, str]]:
    """
    Yield a finding if *told*, an executor's time during the job, is more than `CLOCK` seconds before or after the job.
    """
    off = max(began - told, told - ended)
    if off > CLOCK:
        way = "behind" if told < began else "ahead of"
        what = f"the clock is {seconds(off)} {way} the driver's"
        yield "clock", what, "Let NTP or chrony set the clock of that host; tokens and certificates depend on it"


def _failure(host: str, executor: str, message: str) -> tuple[str, str, str, str, str]:
    """Return the finding for a task that Spark could not run."""
    versions = re.search(r"different version[^\d]*(\d+\.\d+)[^\d]+(\d+\.\d+)", message)
    if "PYTHON_VERSION_MISMATCH" in message and versions is not None:
        what = f"Python is {versions[1]}, and that of the driver is {versions[2]}"
        return "python", host, executor, what, "Set spark.pyspark.python to a Python of the driver's version there"
    lines = [line.strip() for line in message.splitlines() if line.strip() and not line.strip().startswith("at ")]
    last = next((line for line in reversed(lines) if re.match(r"[\w.]+(Error|Exception)\b", line)), lines[0])
    return "task", host, executor, f"a task failed: {redact(last)[:500]}", "Look at the log of that executor"


def _memory(spark: SparkSession, options: Options, cores: int | None) -> Iterator[Finding]:
    """Yield a finding if an executor has less memory outside the JVM than its worker processes may take."""

    def conf(name: str, default: str | None = None) -> str | None:
        value: str | None = spark.conf.get(name, default)
        return value

    if str(conf("spark.master", "")).startswith("local["):
        return  # with a local master, no executor has a memory limit
    heap = _bytes(conf("spark.executor.memory", "1g"), "b")
    given = conf("spark.executor.memoryOverhead")
    share = max(384 * 2**20, int(float(conf("spark.executor.memoryOverheadFactor", "0.1") or 0.1) * heap))
    python = _bytes(conf("spark.executor.pyspark.memory", "0"), "m")
    has = (_bytes(given, "m") if given is not None else share) + python
    slots = cores or int(conf("spark.executor.cores", "1") or 1)
    cache = options.cache.max_bytes if options.cache is not None else 0
    each = PROCESS + options.window_bytes + options.reuse_bytes + cache
    if has < slots * each:
        what = (
            f"spark.executor.memoryOverhead is {has / 2**20:,.0f} MiB; an executor has "
            f"{plural(slots, 'task slot')}, and their worker processes may take {each / 2**20:,.0f} MiB each"
        )
        remedy = f"Set spark.executor.memoryOverhead={slots * each // 2**20 + 1}m, or smaller window_bytes or cache"
        yield Finding("memory", "", EVERY, what, remedy)


def _bytes(text: str | None, unit: str) -> int:
    """Return the bytes of *text*, a size in Spark's settings such as `2g`; a number without a unit is in *unit*."""
    found = re.fullmatch(r"(\d+)\s*([bkmgt]?)b?", (text or "0").strip().lower())
    return int(found[1]) * UNITS[found[2] or unit] if found is not None else 0
