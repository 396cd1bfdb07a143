"""References to secrets, which only a worker resolves, and the redaction of texts that may hold one."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from .errors import ConfigError

__all__ = ["Secret", "redact", "reveal"]

# Up to the last @ of the word: a password that was not percent-encoded may hold one, or a slash.
_USERINFO = re.compile(r"(?<=://)(?:[^/\s]+|[^/\s:]*:[^\s]+)(?=@)")
_PAIR = re.compile(
    r"((?:password|passwd|pwd|secret|token|api[-_]?key|authorization)[\"']?\s*[=:]\s*)"
    r"(?:\"[^\"]*\"?|'[^']*'?|(?:(?:bearer|basic)\s+)?(?!Secret\.)[^\s&,;\"']+)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Secret:
    """
    Names a secret without holding it, so that it appears in no plan, event log, closure or message.

    Attributes:
        kind: `"env"` or `"file"`.
        name: Name of the environment variable, or path of the file, on the worker.

    >>> Secret.env("REDIS_PASSWORD")
    Secret.env('REDIS_PASSWORD')
    """

    kind: str
    name: str

    @classmethod
    def env(cls, name: str) -> Secret:
        """The secret is the value of the environment variable *name* on the worker."""
        return cls("env", name)

    @classmethod
    def file(cls, path: str) -> Secret:
        """The secret is the content of the file at *path* on the worker, without a trailing newline."""
        return cls("file", path)

    def __post_init__(self) -> None:
        if self.kind not in ("env", "file"):
            raise ConfigError(f"Secret kind is {self.kind!r}; it must be 'env' or 'file'. Use Secret.env(...).")
        if not isinstance(self.name, str) or not self.name:
            raise ConfigError(
                f"Secret name is {self.name!r}; it must name an environment variable or a file, as in "
                "Secret.env('PGPASS')."
            )

    def __repr__(self) -> str:
        return f"Secret.{self.kind}({self.name!r})"

    def resolve(self) -> str:
        """Return the secret. Raises `ConfigError` (on the worker) when the variable or file is absent."""
        if self.kind == "env":
            value = os.environ.get(self.name)
            if value is None:
                raise ConfigError(f"The environment variable {self.name} is not set on this worker; a Secret names it.")
            return value
        try:
            return Path(self.name).read_text(encoding="utf-8").rstrip("\n")
        except OSError as error:
            raise ConfigError(
                f"The secret file {self.name} cannot be read on this worker: {error.strerror}."
            ) from error
        except UnicodeDecodeError:
            # Without a cause: its text would show bytes of the secret.
            raise ConfigError(f"The secret file {self.name} cannot be read on this worker: it is not UTF-8.") from None


def reveal(value: str | Secret | None) -> str | None:
    """Return the text behind *value*, a literal or a reference. Called on workers only."""
    return value.resolve() if isinstance(value, Secret) else value


def redact(text: str, *known: str | None) -> str:
    """Return *text* without the passwords of URLs, values of password-like settings, and the *known* secrets."""
    # The longest first: one secret may be the beginning of another.
    for secret in sorted(filter(None, known), key=len, reverse=True):
        text = text.replace(secret, "***")
    return _PAIR.sub(r"\1***", _USERINFO.sub("***", text))
