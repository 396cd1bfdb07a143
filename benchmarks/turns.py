"""
Two checkouts of enrichkit measured in turns: each run of a benchmark in one is followed by the same run in the other.

A shared machine may change its speed by a half within a minute, so two results are compared best run by run. Only the
process that has the turn works; the other one waits in `Turns.over`. A process has the turn for its set-up, too.

Of two equal runs the second one may be up to a tenth faster or slower, because the server and the machine have just
done the same. So the two checkouts take the first place in turns, too, round by round of `harness.alternate`: who is
second in a round begins the next one.

    python turns.py PLACE TAKE GIVE FILE ARGUMENT...   # `python -m benchmarks ARGUMENT...` of the checkout in this folder

PLACE is 0 for the checkout that begins, and 1 for the other one; TAKE and GIVE are the file descriptors of two pipes.
FILE gets the times of all runs, as `against.Runs`. The benchmarks of the checkout may be older than this file: all that
they need is `harness.alternate` and its samples.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["python_of", "run"]

TURN = b"t"


class Turns:
    """
    The turns of this process. Each process waits for the turn, a byte in the pipe, before it begins.

    Args:
        place: 0 if this process is the first one in the first round, 1 if it is the second one.
        take: File descriptor of the pipe through which this process gets the turn.
        give: File descriptor of the pipe through which the other process gets it.
    """

    def __init__(self, place: int, take: int, give: int) -> None:
        self._second, self._take, self._give = bool(place), take, give
        for pipe in (take, give):
            os.set_inheritable(pipe, False)  # a server that outlives this process must not keep the other one waiting
        self._wait()

    def _wait(self) -> None:
        os.read(self._take, len(TURN))  # returns at once if the other process has ended

    def over(self) -> None:
        """Give the turn to the other process, and wait until it comes back."""
        with contextlib.suppress(BrokenPipeError):  # the other process has ended
            os.write(self._give, TURN)
        self._wait()

    def after(self, run: Callable[[], Any], *, last: bool) -> Callable[[], Any]:
        """Return *run*, the *last* one of a round or another one, with the end of a turn after it."""

        def turn() -> Any:
            sample = run()
            if not (last and self._second):  # else this process goes on, as the first one of the next round
                self.over()
            self._second ^= last
            return sample

        return turn


def python_of(checkout: Path) -> str:
    """Return the Python of *checkout*, which has been set up."""
    return str(checkout / ".venv" / "bin" / "python")


def run(commands: Sequence[tuple[Path, Sequence[str]]], files: Sequence[Path]) -> list[bool]:
    """
    Run the benchmarks of two checkouts in turns; the first one begins.

    Args:
        commands: For each checkout its folder and the arguments of its benchmarks.
        files: For each checkout the file that gets the times of its runs.

    Returns:
        For each checkout, whether its benchmarks reached their goals.
    """
    pipes = [os.pipe() for _ in commands]
    os.write(pipes[0][1], TURN)
    processes = []
    for place, (folder, arguments) in enumerate(commands):
        (take, _), (_, give) = pipes[place], pipes[1 - place]
        own = map(str, (place, take, give, files[place]))
        command = [python_of(folder), str(Path(__file__).resolve()), *own, *arguments]
        processes.append(subprocess.Popen(command, cwd=folder, pass_fds=(take, give)))
    for pipe in (*pipes[0], *pipes[1]):
        os.close(pipe)  # otherwise the end of one process would not end the other one's waiting
    return [process.wait() == 0 for process in processes]


def main() -> None:
    """Run the benchmarks of the checkout in this folder, with the end of a turn after each of their runs."""
    place, take, give, file, *sys.argv[1:] = sys.argv[1:]
    sys.path[0] = os.getcwd()  # as with `python -m`, instead of the folder of this file
    from benchmarks import harness  # of this checkout

    turns, alternate = Turns(int(place), int(take), int(give)), harness.alternate
    times: dict[str, list[tuple[float, float]]] = {}

    def in_turns(runs: Mapping[str, Callable[[], Any]], *args: Any, **options: Any) -> Any:
        last = list(runs)[-1]
        each = {name: turns.after(run, last=name == last) for name, run in runs.items()}
        samples = alternate(each, *args, **options)
        for name, found in samples.items():
            times.setdefault(name, []).extend((sample.seconds, sample.cpu + sample.jvm) for sample in found)
        return samples

    harness.alternate = in_turns  # before a benchmark imports it
    try:
        runpy.run_module("benchmarks", run_name="__main__", alter_sys=True)
    finally:
        Path(file).write_text(json.dumps(times))


if __name__ == "__main__":
    main()
