"""The version number that enrichkit and all its plugins share."""

from __future__ import annotations

__all__ = ["VERSION"]

VERSION = "0.1.0"
