"""References to secrets, which only a worker resolves, and the redaction of texts that may hold a secret."""

from .redaction import redact
from .reference import Secret, fresh, refuse, reveal, revealed, secrets_of
from .refused import RefusedLogin

__all__ = ["RefusedLogin", "Secret", "fresh", "redact", "refuse", "reveal", "revealed", "secrets_of"]
