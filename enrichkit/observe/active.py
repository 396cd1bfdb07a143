"""The address of the monitor of this driver program, if there is one; plans carry the address to the workers."""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING

from ..errors import ConfigError
from .monitor import Monitor, active

if TYPE_CHECKING:
    from .sender import Address

__all__ = ["active", "address"]

SETTING = "spark.enrichkit.monitor"
VARIABLE = "ENRICHKIT_MONITOR"
_ON = ("1", "true", "yes", "on")

_lock = threading.Lock()
_failed = False
_log = logging.getLogger("enrichkit")


def address() -> Address | None:
    """
    Return the address of the monitor to which new tasks report; None if there is no monitor.

    Without a monitor, start one if the environment variable `VARIABLE` or Spark's setting `SETTING` asks for one.
    """
    with _lock:
        monitor = active()
        if monitor is None and _wanted():
            monitor = _started()
        return None if monitor is None else monitor.address


def _started() -> Monitor | None:
    """
    Start and return a monitor. If it cannot start, log a warning and return None, because the job can run without one.

    After one failure, no further start is tried.
    """
    global _failed
    if _failed:
        return None
    try:
        return Monitor().start()
    except ConfigError as error:
        _failed = True
        _log.warning("No monitor shows this program, although %s or %s asks for it: %s", VARIABLE, SETTING, error)
        return None


def _wanted() -> bool:
    if os.environ.get(VARIABLE, "").lower() in _ON:
        return True
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    context = getattr(session, "sparkContext", None) if session is not None else None
    return context is not None and str(context.getConf().get(SETTING, "")).lower() in _ON
