"""
Become a server that dies with its parent: `python child.py DEATH_SIGNAL PARENT UID GID COMMAND ...`; -1: do not change.

A program of its own, because the alternative, `preexec_fn`, forks our process with all that runs in it: a gRPC channel,
which Spark Connect has, aborts some of those children. Without it Python starts a child by vfork, which runs nothing.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> None:
    """Set what only the child can set, then exec the server."""
    death_signal, parent, user, group = map(int, sys.argv[1:5])
    if group >= 0:
        os.setgroups([])
        os.setgid(group)
    if user >= 0:
        os.setuid(user)
    if sys.platform == "linux":
        # After the change of user, which would clear the setting.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, death_signal, 0, 0, 0)
        if os.getppid() != parent:  # it died before we asked
            sys.exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, who stops us himself
    try:
        os.execvp(sys.argv[5], sys.argv[5:])  # noqa: S606  # a program of our own choice
    except OSError as error:
        sys.exit(f"{sys.argv[5]} cannot be started: {error.strerror}")


if __name__ == "__main__":
    main()
