"""
The command `enrichkit`, which needs the extra `cli`.

    commands.py   the commands, their arguments and their help texts
    arguments.py  converts texts of the command line into keys and options
    probe.py      looks keys up in one source with a worker's engine, without Spark; used by `check` and `bench`
    inventory.py  `connectors`: lists the connectors
    check.py      `check`: opens one source and looks up some keys
    lint.py       `lint`: finds all mistakes in a TOML file of sources
    bench.py      `bench`: measures how fast one source answers
    doctor.py     `doctor`: finds what the executors of a cluster lack
    pack.py       `pack`: makes the archive that a cluster needs
    watch.py      `top`: shows the live figures of a job's monitor (`enrichkit.monitor`) from another program
    journal.py    `journal`: lists, shows and expires the answers of a journal
    scaffold.py   `new-connector`: creates a plugin package from `template/`
    output.py     lays out the output of all commands, on a terminal and elsewhere

Shell completion starts this command at each press of the tab key. To keep that fast, each command imports its modules
only when it runs.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

__all__ = ["main"]


def main() -> int:
    """
    Run the command that the arguments of this process name.

    Returns:
        The exit code: 0 for success, 1 when the command failed, 2 when the command line is wrong.
    """
    for package in ("click", "rich"):
        if find_spec(package) is None:
            sys.stderr.write(
                f"The command enrichkit needs the package {package}, which is not installed. "
                "Run: pip install 'enrichkit[cli]'\n"
            )
            return 1
    from .commands import enrichkit

    return int(enrichkit.main(prog_name="enrichkit") or 0)
