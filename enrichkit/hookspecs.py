"""The pluggy hooks that a plugin package may implement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from .interface import Connector, TaskInfo
    from .observe.stats import Stats

__all__ = ["hookimpl", "hookspec"]

hookspec = pluggy.HookspecMarker("enrichkit")
hookimpl = pluggy.HookimplMarker("enrichkit")


@hookspec
def enrichkit_connector() -> type[Connector[Any]]:  # type: ignore[empty-body]  # pluggy calls the implementations
    """
    Return the connector class that this entry point offers. Its attribute `config_class` is the class of its configs.

    The hook is called on the driver, once per process, when a user first names the source.
    """


@hookspec
def enrichkit_task_finished(stats: Stats, source: str, task: TaskInfo) -> None:
    """
    Observe the end of a run, i.e. of one enrichment in one attempt of a Spark task.

    The hook is called on the worker, once for each run, after the last row of the run.

    An entry point of the group `enrichkit.observers` names the implementation, which may leave out arguments that it
    does not need.

    Args:
        stats: Statistics of the run.
        source: Name of the source of the run.
        task: The Spark task.
    """
