"""Writes a worker's log to a file, for the program that started Spark on the same machine (`enrichkit.local.spark`)."""

from __future__ import annotations

import logging
import os

__all__ = ["LOG_FILE", "log_to_file"]

LOG_FILE = "ENRICHKIT_LOG_FILE"
"""Environment variable with the path of a file to which workers append their log."""


def log_to_file() -> None:
    """Let the logger `enrichkit` of this process append to the file that `LOG_FILE` names, if the variable is set."""
    path, logger = os.environ.get(LOG_FILE), logging.getLogger("enrichkit")
    if path and not any(isinstance(handler, logging.FileHandler) for handler in logger.handlers):
        logger.addHandler(logging.FileHandler(path, encoding="utf-8", delay=True))
