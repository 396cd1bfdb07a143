"""The hook `enrichkit_task_finished`: which packages implement it, and how a worker calls them."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..interface import TaskInfo
    from .stats import Stats

__all__ = ["GROUP", "observers", "tell_observers"]

_log = logging.getLogger("enrichkit")

GROUP = "enrichkit.observers"
"""Entry points of this group name observers: objects, mostly modules, that implement `enrichkit_task_finished`."""


@functools.lru_cache(maxsize=1)
def observers() -> tuple[str, ...]:
    """Return the names of the installed observers. Called on the driver; the workers get the names with the plan."""
    return tuple(sorted({entry.name for entry in entry_points(group=GROUP)}))


def tell_observers(names: Sequence[str], stats: Stats, source: str, task: TaskInfo) -> None:
    """Call `enrichkit_task_finished` of the observers *names*; log an exception of an observer, and do not raise it."""
    manager = _manager(tuple(names))
    if manager is None:
        return
    try:
        manager.hook.enrichkit_task_finished(stats=stats, source=source, task=task)
    except Exception:  # noqa: BLE001  # a fault of an observer must not fail the job
        _log.exception("An observer raised in enrichkit_task_finished; the task does not change by that.")


@functools.lru_cache(maxsize=8)
def _manager(names: tuple[str, ...]) -> Any:
    """Return the pluggy manager with the observers *names*; None if none of them can be loaded."""
    import pluggy

    from .. import hookspecs

    manager = pluggy.PluginManager("enrichkit")
    manager.add_hookspecs(hookspecs)
    for entry in entry_points(group=GROUP):
        if entry.name in names:
            try:
                manager.register(entry.load(), entry.name)
            except Exception:  # noqa: BLE001  # importing an observer may raise anything
                _log.exception("The observer %r cannot be loaded; the job goes on without it.", entry.name)
    return manager if manager.list_name_plugin() else None
