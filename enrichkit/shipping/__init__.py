"""
The packages that executors need and the driver has; they are packed into one archive, checked, and shipped.

No row of an enrichment passes through this package. `pack` fills a folder (`collect.py`), writes it as an archive
(`archive.py`), and checks the archive as an executor would use it (`checks.py`); `lines.py` has the command lines that
submit a job with the archive.
"""

from __future__ import annotations

from .archive import Manifest
from .checks import check_archive
from .pack import pack
from .ship import ship
from .target import Target

__all__ = ["Manifest", "Target", "check_archive", "pack", "ship"]
