"""The connectors that a message lists."""

from __future__ import annotations

from importlib.metadata import entry_points

__all__ = ["listed"]


def listed(*others: str) -> str:
    """Return the names of all plugins that are installed, be they ours or not, and of *others*, as messages do."""
    return ", ".join(map(repr, sorted({*entry_points(group="enrichkit").names, *others})))
