"""
Packs the packages that executors need into one archive, checks the archive, and ships it to the executors.

Lookups do not use this code. `pack` fills a folder with packages (`collect.py`), writes the folder as an archive
(`archive.py`), and checks the archive as an executor would use it (`checks.py`). `ship` gives the archive to a running
session, and `lines.py` has the command lines that submit a job with the archive.
"""

from __future__ import annotations

from .archive import Manifest
from .checks import check_archive
from .pack import pack
from .ship import ship
from .target import Target

__all__ = ["Manifest", "Target", "check_archive", "pack", "ship"]
