"""
The command `enrichkit`, of the extra `cli`.

    commands.py   the commands: their arguments, and what they print
    arguments.py  texts of the command line -> keys and options
    probe.py      a source behind a worker's engine, without Spark: for `check` and `bench`
    inventory.py  `connectors`: what is installed
    check.py      `check`: one source and some of its keys
    lint.py       `lint`: everything that is wrong in a TOML file
    bench.py      `bench`: how fast one source answers
    scaffold.py   `new-connector`: a plugin made of `template/`
    output.py     how all of that looks, on a terminal and elsewhere

Shell completion asks the command at each press of the tab key, so each command imports what it needs when it runs.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

__all__ = ["main"]


def main() -> int:
    """Run the command that the arguments of this process name; return its exit code: 0 ok, 1 failed, 2 misused."""
    for package in ("click", "rich"):
        if find_spec(package) is None:
            sys.stderr.write(
                f"The command enrichkit needs the package {package}, which is not installed. "
                "Run: pip install 'enrichkit[cli]'\n"
            )
            return 1
    from .commands import enrichkit

    return int(enrichkit.main(prog_name="enrichkit") or 0)
