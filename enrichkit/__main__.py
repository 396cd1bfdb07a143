"""Run the command `enrichkit` when Python is started as `python -m enrichkit`."""

from __future__ import annotations

import sys

from .cli import main

sys.exit(main())
