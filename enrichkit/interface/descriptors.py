"""The meaning of the errors by which the kernel refuses to open one more file; a connection is a file, too."""

from __future__ import annotations

import errno

__all__ = ["files_exhausted"]


def files_exhausted(error: BaseException) -> str | None:
    """
    Return the end of a message, without its full stop, that says which limit on open files *error* reports and what
    helps; None if *error* has another reason.

    Each connection is an open file. The text of the system, "Too many open files", names neither the limit nor its
    value. A user who sees this text after a connection has failed may think that the server is at fault.

    >>> files_exhausted(OSError(errno.ENFILE, "Too many open files in system"))
    'the machine of this worker may open no more files (sysctl fs.file-max). Raise that limit, or lower capacity'
    >>> files_exhausted(ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")) is None
    True
    """
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.ENFILE:
        limit = "the machine of this worker may open no more files (sysctl fs.file-max)"
    elif number == errno.EMFILE:
        limit = f"the worker process may open no more files (ulimit -n is {_limit()})"
    else:
        return None
    return f"{limit}. Raise that limit, or lower capacity"


def _limit() -> int:
    import resource  # not part of Python on Windows, where this package is imported, too

    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
