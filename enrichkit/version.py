"""The version of enrichkit and of its plugins, which have the same one."""

from __future__ import annotations

__all__ = ["VERSION"]

VERSION = "0.1.0"
