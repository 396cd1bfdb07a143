"""Makes the view of a monitor's state: all figures that a page, a terminal or a report shows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from .advice import Situation, advice, arithmetic, sentence
from .spending import spending_of
from .stats import LARGEST, Distribution, Stats

if TYPE_CHECKING:
    from .state import Moment, State, Task
    from .view import (
        Bar,
        Point,
        Progress,
        Reason,
        SourceView,
        TaskView,
        TimeName,
        TimeShare,
        Totals,
        View,
        WorkerView,
    )

from .view import VERSION

__all__ = ["view_of"]

RECENT = 10
"""The current rates are means over this many of the last steps of the history. A step is mostly one second long."""
MINUTE = 60.0
TASKS_SHOWN = 200

_LABELS: dict[TimeName, str] = {
    "source": "Waiting for the source",
    "limit": "Rate limit or outage",
    "input": "Waiting for Spark's input",
    "output": "Waiting for Spark to take rows",
    "cpu": "Computing",
}


def view_of(
    state: State, now: float, *, rows: int | None = None, slots: int | None = None, closed: bool = False
) -> View:
    """
    Return the view of *state*.

    Args:
        state: What the workers have pushed.
        now: Time in seconds since 1970.
        rows: Rows of the job; None: not known.
        slots: Number of tasks that can run at the same time; None: not known.
        closed: Whether the monitor has ended.
    """
    total = state.total()
    tasks = state.of()
    running = [task for task in tasks if task.state == "running"]
    sources = [_source(state, name, now, rows, slots) for name in state.sources()]
    recent = list(state.history)[-RECENT:]
    seconds = sum(moment.seconds for moment in recent)
    slowest = max(sources, key=lambda source: _weight(source["time"]), default=None)
    return {
        "version": VERSION,
        "at": now,
        "started": state.began,
        "state": "closed" if closed else "running" if running else "idle" if total.tasks else "waiting",
        "sentence": _sentence(sources, slowest),
        "advice": [] if slowest is None else slowest["advice"],
        "progress": _progress(state, rows, now),
        "time": time_shares(total),
        "totals": totals_of(total, state.total(failed=True)),
        "in_flight": sum(task.facts["in_flight"] for task in running),
        "capacity": sum(task.facts["capacity"] for task in running),
        "rows_per_second": sum(moment.stats.rows for moment in recent) / seconds if seconds else 0.0,
        "calls_per_second": sum(moment.stats.calls for moment in recent) / seconds if seconds else 0.0,
        "p50": total.calls_took.quantile(0.5),
        "p90": total.calls_took.quantile(0.9),
        "p99": total.calls_took.quantile(0.99),
        "history": [_point(moment) for moment in state.history],
        "outages": [{"source": away.source, "since": away.since, "until": away.until} for away in state.away],
        "sources": sources,
        "workers": _workers(tasks),
        "tasks": [_task(task, now) for task in _worth_showing(tasks)],
        "more_tasks": state.added + max(0, len(tasks) - TASKS_SHOWN),
    }


def _sentence(sources: Sequence[SourceView], slowest: SourceView | None) -> str:
    """
    Return the sentence about *slowest*, the source for which tasks have waited longest.

    If there are several sources, the sentence begins with the name of *slowest*.
    """
    if slowest is None:
        return "Waiting for the first task."
    return f"{slowest['name']}: {slowest['sentence']}" if len(sources) > 1 else slowest["sentence"]


def time_shares(stats: Stats) -> list[TimeShare]:
    """Return where the seconds of *stats* went; the shares add up to 1 if there are any seconds."""
    return [
        {
            "name": name,
            "label": label,
            "seconds": (seconds := getattr(stats, f"{name}_seconds")),
            "share": seconds / stats.seconds if stats.seconds else 0.0,
        }
        for name, label in _LABELS.items()
    ]


def totals_of(stats: Stats, failed: Stats) -> Totals:
    """Return the counters of *stats*, and the numbers of tasks and calls in *failed*, the sum of all failed tasks."""
    return {
        "rows": stats.rows,
        "keys": stats.rows - stats.null_keys,
        "distinct": stats.keys,
        "calls": stats.calls,
        "sent": stats.sent,
        "ok": stats.ok,
        "missing": stats.missing,
        "errors": stats.errors,
        "timeouts": stats.timeouts,
        "rejected": stats.rejected,
        "over_budget": stats.over_budget,
        "without_answer": stats.without_answer,
        "retries": sum(stats.retries.values()),
        "returned": stats.returned,
        "preloaded": stats.preloaded,
        "reused": stats.reused,
        "journaled": stats.journaled,
        "cached": stats.cached,
        "stale": stats.stale,
        "tiered": stats.tiered,
        "skipped": stats.skipped,
        "shared": stats.shared,
        "late": stats.late,
        "zombies": stats.zombies,
        "abandoned": stats.abandoned,
        "bytes": stats.bytes,
        "tasks": stats.tasks,
        "failed_tasks": failed.tasks,
        "failed_calls": failed.calls,
    }


def _source(state: State, name: str, now: float, rows: int | None, slots: int | None) -> SourceView:
    total, tasks = state.total(name), state.of(name)
    running = [task for task in tasks if task.state == "running"]
    facts = state.facts(name)
    away = max((task.facts["away"] for task in running if task.facts["away"] is not None), default=None)
    began = min((task.facts["began"] for task in tasks), default=state.began)
    elapsed = max(1e-3, max((task.seen for task in tasks), default=now) - began)
    situation = Situation(
        source=name,
        stats=_of_now(tasks, facts, now) or total,
        capacity=facts["capacity"],
        capacity_max=facts["capacity_max"],
        batch_size=facts["batch_size"],
        batch_size_max=facts["batch_size_max"],
        rate=facts["rate"],
        cached=bool(facts["cache"]),
        running=len(running) or min(float(slots or len(tasks)), total.seconds / elapsed),
        slots=slots,
        in_flight=sum(task.facts["in_flight"] for task in running) // len(running) if running else None,
        away=away,
    )
    return {
        "name": name,
        "connector": facts["connector"],
        "sentence": sentence(situation),
        "arithmetic": arithmetic(situation),
        "advice": list(advice(situation)),
        "progress": _progress(state, rows, now, name),
        "time": time_shares(total),
        "totals": totals_of(total, state.total(name, failed=True)),
        "spending": spending_of(total, elapsed),
        "running": len(running),
        "in_flight": sum(task.facts["in_flight"] for task in running),
        "capacity": facts["capacity"],
        "batch_size": facts["batch_size"],
        "rate": facts["rate"],
        "away_since": None if away is None else now - away,
        "p50": total.calls_took.quantile(0.5),
        "p90": total.calls_took.quantile(0.9),
        "p99": total.calls_took.quantile(0.99),
        "latency": _bars(total.calls_took),
        "queue_wait": _bars(total.queued),
        "batch_fill": _bars(total.fill),
        "errors": _reasons(total.failures),
        "retries": _reasons(total.retries),
        "held_back": [
            {"reason": reason, "seconds": held}
            for reason, held in sorted({**total.limits, "window_bytes": total.bytes_seconds}.items())
            if held >= 0.05
        ],
        "slow": [{"key": key, "seconds": seconds, "source": name} for seconds, key in total.slow],
        "hot": [
            {"key": key, "share": count / max(1, total.rows), "source": name}
            for key, count in sorted(total.hot.items(), key=lambda entry: -entry[1])[:LARGEST]
        ],
    }


def _of_now(tasks: Sequence[Task], facts: dict[str, Any], now: float) -> Stats | None:
    """
    Return the summed statistics of those tasks that show what limits the source now.

    These are the tasks that have not failed, have pushed in the last minute, and have the current options. Tasks with
    other options are left out, because the user may have followed earlier advice and changed the options. Return None
    if no task runs, or if none of these tasks has made a call.
    """
    if not any(task.state == "running" for task in tasks):
        return None
    fixed = ("batch_size", "rate", "cache", "capacity_max", *(("capacity",) if facts["capacity_max"] is None else ()))
    alike = [task for task in tasks if all(task.facts[name] == facts[name] for name in fixed) and not task.failed]
    stats = sum((task.stats for task in alike if now - task.seen <= MINUTE), Stats())
    return stats if stats.calls else None


def _progress(state: State, rows: int | None, now: float, source: str | None = None) -> Progress:
    """
    Return how many rows the tasks have emitted, and, if *rows* is known, which share of the work is done.

    Each enrichment of the job emits each of the *rows* once, so the work is *rows* times the number of enrichments.
    """
    done, in_vain = state.emitted(source)
    plans = {task.facts["plan"] for task in state.of(source) if task.stats.rows}  # fallbacks have no rows
    if rows is None:
        return {"rows": done, "total": None, "share": None, "eta": None}
    wanted = rows * max(1, len(plans))
    share = min(1.0, (done - in_vain) / wanted)
    took = now - (now if state.first is None else state.first)
    eta = took * (1 - share) / share if 0 < share < 1 else 0.0 if share == 1 else None
    return {"rows": done, "total": wanted, "share": share, "eta": eta}


def _point(moment: Moment) -> Point:
    stats, seconds = moment.stats, moment.seconds or 1.0
    shares = {share["name"]: share["share"] for share in time_shares(stats)}
    return {
        "at": moment.at,
        "rows": stats.rows / seconds,
        "calls": stats.calls / seconds,
        "in_flight": float(moment.in_flight),
        "capacity": moment.capacity,
        "p50": stats.calls_took.quantile(0.5),
        "p99": stats.calls_took.quantile(0.99),
        "errors": stats.without_answer / seconds,
        "retries": sum(stats.retries.values()) / seconds,
        **shares,  # type: ignore[typeddict-item]  # the names are those of `TimeName`
    }


def _task(task: Task, now: float) -> TaskView:
    facts, stats = task.facts, task.stats
    return {
        "id": facts["id"],
        "source": facts["source"],
        "stage": facts["stage"],
        "partition": facts["partition"],
        "attempt": facts["attempt"],
        "batch": facts["batch"],
        "worker": _worker(facts),
        "state": task.state,
        "seconds": stats.seconds + (now - task.seen if task.state == "running" else 0.0),
        "rows": facts["emitted"],
        "calls": stats.calls,
        "in_flight": facts["in_flight"],
        "capacity": facts["capacity"],
        "p50": stats.calls_took.quantile(0.5),
        "p99": stats.calls_took.quantile(0.99),
        "errors": stats.without_answer,
        "retries": sum(stats.retries.values()),
        "time": time_shares(stats),
        "error": facts["error"],
    }


def _worth_showing(tasks: Sequence[Task]) -> list[Task]:
    """
    Return at most `TASKS_SHOWN` of *tasks*, in the same order.

    Failed tasks are chosen first, then running tasks, then the others; within each group, the latest first.
    """
    ranked = sorted(tasks, key=lambda task: (not task.failed, task.state != "running", -task.facts["began"]))
    shown = {task.facts["id"] for task in ranked[:TASKS_SHOWN]}
    return [task for task in tasks if task.facts["id"] in shown]


def _workers(tasks: Iterable[Task]) -> list[WorkerView]:
    by_worker: dict[str, list[Task]] = {}
    for task in tasks:
        by_worker.setdefault(_worker(task.facts), []).append(task)
    found: list[WorkerView] = []
    for name, theirs in sorted(by_worker.items()):
        running = [task for task in theirs if task.state == "running"]
        seconds = sum(task.stats.seconds for task in theirs)
        found.append(
            {
                "id": name,
                "host": theirs[0].facts["host"],
                "pid": theirs[0].facts["pid"],
                "seen": max(task.seen for task in theirs),
                "running": len(running),
                "rows": sum(task.facts["emitted"] for task in theirs),
                "calls": sum(task.stats.calls for task in theirs),
                "in_flight": sum(task.facts["in_flight"] for task in running),
                "cpu": sum(task.stats.cpu_seconds for task in theirs) / seconds if seconds else 0.0,
                "lag": max((task.facts["lag"] for task in running), default=0.0),
            }
        )
    return found


def _worker(facts: dict[str, Any]) -> str:
    return f"{facts['host']}:{facts['pid']}"


def _weight(time: Iterable[TimeShare]) -> float:
    """Return the seconds that the tasks of a source have waited for the source or for a limit."""
    return sum(part["seconds"] for part in time if part["name"] in ("source", "limit"))


def _bars(values: Distribution) -> list[Bar]:
    return [{"low": low, "high": high, "count": count} for low, high, count in values.bars()]


def _reasons(counts: Any) -> list[Reason]:
    return [{"reason": name, "count": count} for name, count in sorted(counts.items(), key=lambda each: -each[1])]
