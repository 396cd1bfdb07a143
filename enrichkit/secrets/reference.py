"""References to secrets, which only a worker resolves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from ..errors import ConfigError
from .expiring import Held
from .readers import FUNCTION, READERS

__all__ = ["Secret", "fresh", "refuse", "reveal", "revealed", "secrets_of"]

_held: dict[Secret, Held] = {}
"""The values of the expiring secrets in this process; equal references share one value."""


@dataclass(frozen=True, slots=True)
class Secret:
    """
    A reference that names a secret but does not hold it; the secret appears in no plan, event log, closure or message.

    Attributes:
        kind: `"env"`, `"file"`, `"call"` or `"command"`.
        name: Name of the environment variable, path of the file, function as `"package.module:function"`, or program
            and arguments of the command; all of them are on the worker.
        ttl: Seconds for which a value of a function or command may be used; None for variables and files.

    >>> Secret.env("REDIS_PASSWORD")
    Secret.env('REDIS_PASSWORD')
    >>> Secret.call("shop.tokens:database", ttl=900)
    Secret.call('shop.tokens:database', ttl=900)
    """

    kind: str
    name: str | tuple[str, ...]
    ttl: float | None = None

    @classmethod
    def env(cls, name: str) -> Secret:
        """Refer to the value of the environment variable *name* on the worker."""
        return cls("env", name)

    @classmethod
    def file(cls, path: str) -> Secret:
        """Refer to the content of the file at *path* on the worker, without a trailing newline."""
        return cls("file", path)

    @classmethod
    def call(cls, function: str, *, ttl: float) -> Secret:
        """
        Refer to the result of *function* on the worker, for example a token that expires.

        Args:
            function: `"package.module:function"`, a function without arguments that returns a text. The worker imports
                the function, so its package must be installed there. The function is called on a separate thread.
            ttl: Seconds for which a value may be used; 1 to 604,800 (a week). The worker process asks for the next
                value 60 seconds before a value expires (a fifth of *ttl* before, if that is less). It also asks once
                more when the source refuses a value.
        """
        return cls("call", function, ttl)

    @classmethod
    def command(cls, arguments: Sequence[str], *, ttl: float) -> Secret:
        """
        Refer to the output of a command on the worker, without trailing newlines.

        Args:
            arguments: The program and its arguments, such as `("aws", "rds", "generate-db-auth-token", ...)`; no shell
                reads them. The command may take 30 seconds at most.
            ttl: As for `call`.
        """
        return cls("command", arguments if isinstance(arguments, str) else tuple(arguments), ttl)

    def __post_init__(self) -> None:
        if self.kind not in READERS:
            raise ConfigError(
                f"Secret kind is {self.kind!r}; it must be one of {', '.join(map(repr, READERS))}. Use Secret.env(...)."
            )
        if self.kind == "command":
            if not (isinstance(self.name, tuple) and self.name and all(isinstance(part, str) for part in self.name)):
                raise ConfigError(
                    f"Secret command is {self.name!r}; it must be a program and its arguments, as in "
                    "Secret.command(('vault', 'read', '-field=token', 'shop'), ttl=900)."
                )
        elif not isinstance(self.name, str) or not self.name:
            raise ConfigError(
                f"Secret name is {self.name!r}; it must name an environment variable or a file, as in "
                "Secret.env('PGPASS')."
            )
        elif self.kind == "call" and not FUNCTION(self.name):
            raise ConfigError(
                f"Secret function is {self.name!r}; it must be a module and a function of it, as in "
                "Secret.call('shop.tokens:database', ttl=900)."
            )
        expires = self.kind in ("call", "command")
        if expires != (self.ttl is not None) or not (self.ttl is None or _is_ttl(self.ttl)):
            allowed = "must be seconds from 1 to 604,800" if expires else "belongs to call and command"
            raise ConfigError(
                f"Secret ttl is {self.ttl!r}; it {allowed}. Write Secret.call('m:f', ttl=900), for example."
            )

    def __repr__(self) -> str:
        return f"Secret.{self.kind}({self.name!r}{'' if self.ttl is None else f', ttl={self.ttl:g}'})"

    def resolve(self) -> str:
        """
        Return the secret; the value of a function or command comes from memory until it must be renewed.

        Raises:
            ConfigError: The variable or file is absent on the worker, or the function or command failed there.
        """
        if self.ttl is None:
            return READERS[self.kind](self.name)
        return _held_by(self).value()


def _held_by(secret: Secret) -> Held:
    held = _held.get(secret)
    if held is None:  # two threads that come here together both get the `Held` that `setdefault` keeps
        assert secret.ttl is not None
        held = _held.setdefault(secret, Held(lambda: READERS[secret.kind](secret.name), secret.ttl))
    return held


def _is_ttl(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 1 <= value <= 604_800


def reveal(value: str | Secret | None) -> str | None:
    """
    Return *value* itself if it is a literal, or the secret that it refers to. Called on workers only.

    Raises:
        ConfigError: The environment variable or the file of a `Secret` is absent on this worker, or its function or
            command failed.

    >>> import os
    >>> os.environ["DEMO_TOKEN"] = "t0ken"
    >>> reveal(Secret.env("DEMO_TOKEN")), reveal("literal"), reveal(None)
    ('t0ken', 'literal', None)
    >>> del os.environ["DEMO_TOKEN"]
    """
    return value.resolve() if isinstance(value, Secret) else value


def fresh(value: str | Secret | None) -> bool:
    """Return whether `reveal` can return the secret of *value* without calling the user's function or command."""
    return not isinstance(value, Secret) or value.ttl is None or _held_by(value).good()


async def revealed(value: str | Secret | None) -> str | None:
    """
    Return the same text as `reveal`, but call the function or command of a secret on another thread, so that it does
    not block the event loop.
    """
    if isinstance(value, Secret) and not fresh(value):
        import asyncio  # here, because a driver program may not need it

        return await asyncio.to_thread(value.resolve)
    return reveal(value)


def refuse(value: str | Secret | None, text: str | None) -> bool:
    """
    Record that the source refused *text*, a secret that `reveal` returned for *value*.

    Returns:
        Whether `reveal` may return another text now, because the variable or file has changed, or because the function
        or command may be called once more.
    """
    if not isinstance(value, Secret):
        return False
    if value.ttl is None:
        try:
            return value.resolve() != text
        except ConfigError:  # the variable or file is absent, perhaps because it is just being replaced
            return False
    return _held_by(value).refuse(text)


def secrets_of(config: Any) -> list[Secret]:
    """Return the secret references in *config*, at any depth, in the order of its fields."""
    if isinstance(config, Secret):
        return [config]
    if is_dataclass(config) and not isinstance(config, type):
        return [secret for f in fields(config) for secret in secrets_of(getattr(config, f.name))]
    if isinstance(config, Mapping):
        return [secret for value in config.values() for secret in secrets_of(value)]
    if isinstance(config, tuple | list | frozenset):
        return [secret for value in config for secret in secrets_of(value)]
    return []
