"""
The translation of error replies of Redis into the errors of enrichkit, whose messages repeat at most the first word of
a reply.
"""

from __future__ import annotations

from enrichkit.errors import ConnectorError, FatalError, PermanentError, TransientError, UnavailableError

__all__ = ["translate", "without_traceback"]

# Mapping from the first word of an error reply to its meaning. https://github.com/redis/redis/blob/7.2/src/server.c,
# createSharedObjects.
_TRANSIENT = {
    "ASK": "moves the key's slot to another node",
    "BUSY": "runs a script",
    "CLUSTERDOWN": "belongs to a cluster that is down",
    "EXECABORT": "aborted a transaction",
    "LOADING": "loads its data",
    "MASTERDOWN": "lost its master",
    "MISCONF": "cannot save its data",
    "MOVED": "does not hold the key's slot; if it is one node of a cluster, say RedisConfig(cluster=True)",
    "NOREPLICAS": "has too few replicas to write",
    "OOM": "is out of memory",
    "READONLY": "is a read-only replica",
    "TRYAGAIN": "moves the keys' slot",
    "UNBLOCKED": "changed its role",
}
_UNAVAILABLE = {"BUSY", "LOADING", "MASTERDOWN", "READONLY"}
"""Replies of a server that can answer no key now: it runs a script, is starting, or a fail-over is under way."""
_LIMITED = ("LIMIT ", "ERR max requests limit", "ERR max daily request limit")
"""
The beginnings of replies by which a hosted service says that it gets more clients or requests than it accepts.

They are looked for only at the start of a reply, because further on a reply may repeat a key that contains the same
words.
"""
_LOGIN = "Check RedisConfig.username and RedisConfig.password."
_FATAL = {
    "CROSSSLOT": "is a node of a cluster; say RedisConfig(cluster=True)",
    "DENIED": "is in protected mode and refuses clients of other hosts; give it a password, or bind it to an address",
    "NOAUTH": f"wants a password and got none. {_LOGIN}",
    "WRONGPASS": f"refused the username or the password. {_LOGIN}",
}
# Parts of the texts of replies whose first word, ERR or NOPERM, does not tell the cause.
_FULL = ("max number of clients", "max + cluster connections")
_BY_TEXT: tuple[tuple[str, type[ConnectorError], str], ...] = (
    ("invalid password", FatalError, _FATAL["WRONGPASS"]),
    ("AUTH <password> called without", FatalError, f"wants no password, but got one. {_LOGIN}"),
    ("no password is set", FatalError, f"wants no password, but got one. {_LOGIN}"),
    ("DB index is out of range", FatalError, "has no database of that number; check the end of RedisConfig.url"),
    ("invalid DB index", FatalError, "has no database of that number; check the end of RedisConfig.url"),
    ("cluster support disabled", FatalError, "is no node of a cluster; say RedisConfig(cluster=False)"),
    # The ACL of the user may permit other keys, so this error concerns one key and not the whole job.
    ("permissions to access", PermanentError, "does not permit this user to read the key; see its ACL"),
)


def translate(reply: Exception, source: str) -> ConnectorError:
    """
    Return the `ConnectorError` for *reply*, an error reply of *source*.

    Some texts of the server repeat arguments ("unknown command 'GET', with args beginning with: 'user:1'"). So the
    message of the error quotes only the first word of the reply, and adds an explanation of enrichkit.
    """
    text = str(reply)
    code = text.split(" ", 1)[0][:32]
    if code == "WRONGTYPE":
        return PermanentError("The key holds another type of value in Redis than RedisConfig.kind says (WRONGTYPE).")
    if code in _TRANSIENT:
        message = f"{source} {_TRANSIENT[code]} ({code})."
        if code == "CLUSTERDOWN":  # *node* is set, because one node may be cut off while other nodes answer
            return UnavailableError(message, node=f"A node of {source}")
        return UnavailableError(message, busy=code == "BUSY") if code in _UNAVAILABLE else TransientError(message)
    if code in _FATAL:
        return FatalError(f"{source} {_FATAL[code]} ({code}).")
    if any(part in text for part in _FULL):
        return UnavailableError(f"{source} has its maximum number of clients ({code}).", busy=True)
    if text.startswith(_LIMITED):
        return UnavailableError(f"{source} has reached its limit of clients or requests ({code}).", busy=True)
    for part, kind, meaning in _BY_TEXT:
        if part in text:
            return kind(f"{source} {meaning} ({code}).")
    if code == "NOPERM" or "unknown command" in text or "unknown subcommand" in text:
        return FatalError(
            f"{source} does not offer a command that the connector needs, or does not permit it to this user ({code}). "
            "The README of enrichkit-redis lists them."
        )
    return PermanentError(
        f"{source} answered with an error ({code if code.isascii() and code.isupper() else 'no code'})."
    )


def without_traceback(error: ConnectorError) -> ConnectorError:
    """
    Return *error* without traceback and cause, because local variables in the frames of a traceback may hold the login.
    """
    error.__context__ = error.__cause__ = None
    return error.with_traceback(None)
