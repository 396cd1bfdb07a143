"""
Facts about a user's function: its name, whether it is an `async def`, what it accepts, and where it raised.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import sysconfig
import traceback
from collections.abc import Callable
from typing import Any

from .errors import EnrichkitError, FatalError
from .secrets import redact

__all__ = ["is_async", "make_connector", "name_of", "place", "raised", "signature_problem"]

FRAMES_MAX = 5
"""A message names at most this many stack frames of a user's code, and of more frames only the innermost ones."""

# Installed packages are in folders with these names. Other code in the folders of the Python installation belongs to
# Python itself, so messages leave out its frames.
_INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]").search
_FOLDERS = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}
_PYTHONS = tuple(os.path.join(folder, "") for folder in _FOLDERS)
_OURS = os.path.join(os.path.dirname(__file__), "")


def is_async(function: Callable[[Any], Any]) -> bool:
    """Return whether *function* is an `async def`, or an object whose `__call__` is one."""
    # `__call__` is inspected to find an `async def`, not to test whether *function* can be called, as B004 assumes.
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def name_of(function: Callable[[Any], Any]) -> str:
    """Return the name of *function* for messages; for a partial, the name alone, without the bound arguments."""
    while isinstance(function, functools.partial):
        function = function.func
    name: str = getattr(function, "__name__", type(function).__name__)
    return name


def signature_problem(function: Callable[..., Any], argument: str) -> str | None:
    """
    Return why *function* cannot be called with *argument* alone, as the end of a sentence; None when it can.

    Args:
        function: The function of a user.
        argument: The argument as the message names it, for example "a key".
    """
    try:
        signature = inspect.signature(function)
    except ValueError:
        return None  # some functions in C have no readable signature, so they cannot be checked
    try:
        signature.bind(None)
    except TypeError as error:
        # The message shows neither default values nor arguments that a partial has bound, because one of them may be a
        # password.
        parameters = [parameter.replace(default=parameter.empty) for parameter in signature.parameters.values()]
        shown = signature.replace(parameters=parameters)
        return f"{name_of(function)}{shown}, which cannot be called with {argument} alone: {error}."
    return None


def raised(error: BaseException, *, show_text: bool = False) -> str:
    """
    Return the class of *error*, and the places in the user's code at which it was raised, with their source lines.

    A place is a file, a line and a function. Places in enrichkit, in Python itself and in installed packages are left
    out, and so is a source line whose file is not on this machine. Where nothing else is left, the places in installed
    packages are shown, because the code of a job may be shipped as a package.

    Args:
        error: An exception that a function or a connector raised.
        show_text: Whether the text of *error* is shown, which may hold a key. Secrets are left out of it.
    """
    text = type(error).__qualname__
    if show_text and str(error):
        text += f": {redact(str(error))}"
    every = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_ours(frame.filename)]
    frames = [frame for frame in every if not _INSTALLED(frame.filename)] or every
    places = [f"{place(frame)}: {redact(frame.line)}" if frame.line else place(frame) for frame in frames[-FRAMES_MAX:]]
    return f"{text} at {'; '.join(places)}" if places else text


def make_connector(connector: Callable[[Any], Any], config: Any) -> Any:
    """
    Return a connector with *config*. If its `__init__` raises an exception that is not an `EnrichkitError`, raise a
    `FatalError` without the text of that exception, which may hold secrets.
    """
    try:
        return connector(config)
    except EnrichkitError:
        raise
    except Exception as error:  # noqa: BLE001  # the border to a plugin
        reason = raised(error)
    # Raised after the `except` block, because inside the block *error* would become the context of this exception, and
    # the text of *error* may hold secrets.
    raise FatalError(f"{name_of(connector)}: the connector could not be made: its __init__ raised {reason}.")


def place(frame: traceback.FrameSummary) -> str:
    """Return the file, line and function of *frame*, as messages show them."""
    return f"{os.path.basename(frame.filename)}, line {frame.lineno}, in {frame.name}"


def _is_ours(path: str) -> bool:
    """Return whether the code at *path* belongs to Python or to enrichkit."""
    pythons = path.startswith("<frozen") or (path.startswith(_PYTHONS) and not _INSTALLED(path))
    return pythons or path.startswith(_OURS)
