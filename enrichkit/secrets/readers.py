"""The functions that read a secret on a worker: from a variable, a file, a function or a command."""

from __future__ import annotations

import importlib
import os
import platform
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from .redaction import redact

__all__ = ["FUNCTION", "READERS"]

ASK_TIMEOUT = 30.0
"""Seconds that a command may take until it has printed the secret and ended."""


def of_env(name: str) -> str:
    value = os.environ.get(name)
    if value is None:
        raise ConfigError(
            f"The environment variable {name} is not set on this machine ({platform.node()}); a Secret names it."
        )
    return value


def of_file(name: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8").rstrip("\n")
    except OSError as error:
        raise ConfigError(
            f"The secret file {name} cannot be read on this machine ({platform.node()}): {error.strerror}."
        ) from error
    except UnicodeDecodeError:
        # `from None`, because the text of the cause would show bytes of the secret.
        raise ConfigError(
            f"The secret file {name} cannot be read on this machine ({platform.node()}): it is not UTF-8."
        ) from None


def of_call(name: str) -> str:
    module, _, function = name.partition(":")
    try:
        value = getattr(importlib.import_module(module), function)()
    except Exception as error:  # noqa: BLE001  # the user's code may raise anything, with the secret in its text
        raise ConfigError(
            f"Secret.call({name!r}) raised {type(error).__name__} on this machine ({platform.node()}). Try it there: "
            f'python -c "import {module}; {module}.{function}()"'
        ) from None
    if not isinstance(value, str) or not value:
        found = "an empty text" if value == "" else f"a {type(value).__name__}"
        raise ConfigError(f"Secret.call({name!r}) returned {found}; it must return a text.")
    return value


def of_command(arguments: tuple[str, ...]) -> str:
    import subprocess  # here, because few workers need it

    said = f"The command {arguments[0]} of a Secret, on this machine ({platform.node()}),"
    try:
        done = subprocess.run(  # noqa: S603  # the user's own command, and no shell reads it
            arguments, stdin=subprocess.DEVNULL, capture_output=True, timeout=ASK_TIMEOUT, check=False
        )
    except OSError as error:
        raise ConfigError(f"{said} cannot be started: {error.strerror}.") from None
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{said} has printed nothing within {ASK_TIMEOUT:g} s.") from None
    if done.returncode != 0:
        told = redact(done.stderr.decode("utf-8", "replace"))[-300:]
        shown = " ".join("".join(letter if letter.isprintable() else " " for letter in told).split())
        raise ConfigError(f"{said} ended with the status {done.returncode}: {shown or 'it said nothing'}.")
    value = done.stdout.decode("utf-8", "replace").rstrip("\r\n")
    if not value:
        raise ConfigError(f"{said} has printed nothing.")
    return value


READERS: dict[str, Callable[[Any], str]] = {"env": of_env, "file": of_file, "call": of_call, "command": of_command}
"""The functions that read a secret, by the kind of the secret."""
FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*").fullmatch
