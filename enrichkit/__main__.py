"""`python -m enrichkit` is the command `enrichkit`."""

from __future__ import annotations

import sys

from .cli import main

sys.exit(main())
