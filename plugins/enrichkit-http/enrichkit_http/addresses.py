"""
The check of the address that a response names for a redirect or the next page: it must have the origin of the request.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from .checks import names_in

__all__ = ["AddressError", "named_address"]

MAX_ADDRESS = 8192
# Matches a text of printable ASCII characters. The backslash is excluded, because browsers and clients take it for a
# slash.
_REFERENCE = re.compile(rf"[!-\[\]-~]{{1,{MAX_ADDRESS}}}").fullmatch


class AddressError(Exception):
    """The reason why no request goes to an address. The text omits the address, which may hold a key or credential."""


def named_address(base: str, reference: Any, secrets: Collection[str] = ()) -> str | AddressError:
    """
    Return the absolute address for *reference*, which a response names, or the reason why no request may go there.

    The HTTP client's own parser joins and compares the addresses, because another parser may find another host in the
    same text. The error is returned and not raised, because a traceback may show the variables of this frame, which
    hold what the service has sent.

    Args:
        base: Address of the request.
        reference: The address as the response has it, absolute or relative; None when the response has none.
        secrets: Names of query parameters to leave out of the address, because the `Sender` adds them to each request.
    """
    from pyreqwest.http import Url

    if not isinstance(reference, str) or not _REFERENCE(reference):
        return AddressError(
            f"it is no address: 1 to {MAX_ADDRESS:,} visible ASCII characters without a backslash are allowed"
        )
    try:
        here = Url(base)
        there = here.join(reference)
    except ValueError:
        return AddressError("it is no address that can be read")
    if there.origin_ascii != here.origin_ascii:
        return AddressError("it leads to another origin (scheme, host or port), which could learn keys and credentials")
    if there.username or there.password is not None:
        return AddressError("it holds a user name or password")
    address = str(there).partition("#")[0]
    path, mark, query = address.partition("?")
    kept = [pair for pair in query.split("&") if not names_in(pair) & set(secrets)] if secrets else [query]
    return f"{path}?{'&'.join(kept)}" if mark and any(kept) else path
