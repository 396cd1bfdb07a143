"""
Become a server that dies with its parent: `python child.py DEATH_SIGNAL PARENT UID GID COMMAND ...`.

On Linux, the server gets the signal DEATH_SIGNAL when the process PARENT dies. A UID or GID of -1 means "do not
change". The server may have `FILES` files open, or as many as the system allows this user.

This is a separate program because the alternative, the argument `preexec_fn` of `subprocess.Popen`, would fork a
process that has threads. The gRPC channel of Spark Connect aborts some children of such a fork. Without `preexec_fn`
Python starts a child with vfork, which runs no code of the parent in the child.
"""

import ctypes
import os
import resource
import signal
import sys

FILES = 16_384
"""
Files that a server may have open, connections included. Most systems allow a process 1,024 until it asks for more, and
a few jobs have more connections than that. Some servers take memory for each file that they may open, so not all that
the system allows.
"""

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> None:
    """Change the settings that a process can change only for itself, then replace this process by the server."""
    death_signal, parent, user, group = map(int, sys.argv[1:5])
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if now != resource.RLIM_INFINITY and now < FILES:
        files = FILES if most == resource.RLIM_INFINITY else min(FILES, most)
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, most))
    if group >= 0:
        os.setgroups([])
        os.setgid(group)
    if user >= 0:
        os.setuid(user)
    if sys.platform == "linux":
        # prctl comes after the change of user, because a change of user clears the death signal.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, death_signal, 0, 0, 0)
        if os.getppid() != parent:  # the parent died before the call of prctl, so the signal will not come
            sys.exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and stops this server
    try:
        os.execvp(sys.argv[5], sys.argv[5:])  # noqa: S606  # enrichkit.local chooses the program
    except OSError as error:
        sys.exit(f"{sys.argv[5]} cannot be started: {error.strerror}")


if __name__ == "__main__":
    main()
