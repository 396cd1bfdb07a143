"""
The limits that a service announces in headers: the old and new headers of the IETF draft, and the common `X-` headers.

A service uses one of four forms. The draft's latest version
(https://datatracker.ietf.org/doc/draft-ietf-httpapi-ratelimit-headers/) has `RateLimit: "default";r=50;t=30`. Its
earlier versions have `RateLimit: limit=100, remaining=50, reset=30`, or `RateLimit-Remaining: 50`. Other services send
`X-RateLimit-Remaining: 50`. The last two forms may exist separately for requests and for tokens, as in
`x-ratelimit-remaining-requests`. A header that cannot be parsed is ignored, because it must not make a lookup fail.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from .faults import asked_wait, header, moment

if TYPE_CHECKING:
    from pyreqwest.response import Response

__all__ = ["Allowed", "Limit", "allowed", "limit_of", "report_allowed"]

UNITS = ("requests", "tokens")
EPOCH = 1e9
"""
A reset time up to this number is a number of seconds to wait. A reset time above this number is a moment in seconds
since 1970, and above 1000 times this number a moment in milliseconds since 1970.
"""
_LONGEST = 86_400.0
_PARAMETER = re.compile(r";\s*([a-z]+)\s*=\s*\"?([^;,\"]*)\"?")
_PAIR = re.compile(r"\b(limit|remaining|reset)\s*=\s*([0-9.]+)")
_NUMBER = re.compile(r"\s*([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*(?:[;,].*)?")
_DURATION = re.compile(
    r"(?:([0-9.]{1,12})d)?(?:([0-9.]{1,12})h)?(?:([0-9.]{1,12})m)?(?:([0-9.]{1,12})s)?(?:([0-9.]{1,12})ms)?"
)
_SCALES = (86_400.0, 3600.0, 60.0, 1.0, 0.001)


class Allowed(NamedTuple):
    """
    The number of requests or tokens that a service still allows before its rate limit resets.

    Attributes:
        remaining: Number of requests or tokens that are left.
        seconds: Seconds until the limit resets. Infinite if the service does not say when; the function `allowed`
            ignores a limit with an infinite time.
        limit: Number of requests or tokens per period of the limit; None if the service does not announce it.
        unit: `"requests"` or `"tokens"`.
    """

    remaining: float
    seconds: float
    limit: float | None
    unit: str = "requests"


class Limit(NamedTuple):
    """
    The rate limit because of which a service refused a request.

    Attributes:
        wait: Seconds to wait; None if the service does not say how long.
    """

    wait: float | None


def report_allowed(response: Response, report: Callable[..., None] | None) -> None:
    """
    Call *report* with the strictest limit on requests and with the strictest limit on tokens that the headers of
    *response* announce. Do nothing if *report* is None.
    """
    if report is None:
        return

    def get(name: str) -> str | None:
        try:
            values = response.get_header_all(name)
        except ValueError:  # the value is not ASCII
            return None
        return ", ".join(values) if values else None

    for unit in UNITS:
        found = allowed(get, unit)
        if found is not None:
            report(found.remaining, found.seconds, found.limit, unit=unit)


def allowed(get: Callable[[str], str | None], unit: str = "requests") -> Allowed | None:
    """
    Return the strictest limit on *unit*: the one that leaves the fewest requests or tokens per second until its reset.
    Return None if there is none. *get* returns a header's value by its name.

    >>> allowed({"ratelimit": '"default";r=50;t=30', "ratelimit-policy": '"default";q=100;w=60'}.get)
    Allowed(remaining=50.0, seconds=30.0, limit=100.0, unit='requests')
    >>> allowed({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1500"}.get)
    Allowed(remaining=0.0, seconds=1500.0, limit=None, unit='requests')
    """
    found = [each for each in _limits(get) if each.unit == unit and math.isfinite(each.seconds)]
    return min(found, key=lambda each: each.remaining / max(each.seconds, 0.001), default=None)


def limit_of(response: Response) -> Limit | None:
    """
    Return the rate limit because of which the service answered 403, as GitHub does, according to the headers of
    *response*. Return None if the 403 has another cause.

    https://docs.github.com/en/rest/using-the-rest-api/rate-limits-for-the-rest-api#exceeding-the-rate-limit
    """
    wait = asked_wait(response)
    if wait is not None:
        return Limit(wait)
    used_up = [each.seconds for each in _limits(partial(header, response)) if _is_used_up(each)]
    return Limit(max(filter(math.isfinite, used_up), default=None)) if used_up else None


def _is_used_up(left: Allowed) -> bool:
    return left.unit == "requests" and left.remaining <= 0


def _limits(get: Callable[[str], str | None]) -> Iterator[Allowed]:
    """Yield all limits in the headers, including those without a reset time."""
    yield from _structured(get)
    yield from _named(get)


def _structured(get: Callable[[str], str | None]) -> Iterator[Allowed]:
    """Yield the limits in the header `RateLimit`, in the form of the draft's latest version or of an earlier one."""
    text = get("ratelimit")
    if text is None:
        return
    pairs = {name: float(value) for name, value in _PAIR.findall(text) if _is_number(value)}
    if "remaining" in pairs:
        yield Allowed(pairs["remaining"], _bounded(pairs.get("reset")), pairs.get("limit"))
        return
    policies = dict(_items(get("ratelimit-policy") or ""))
    for name, parameters in _items(text):
        policy = policies.get(name, {})
        remaining, limit = _number(parameters.get("r")), _number(policy.get("q"))
        seconds = _number(parameters.get("t"))
        seconds = _number(policy.get("w")) if seconds is None else seconds
        of_requests = policy.get("qu", "requests") == "requests" or remaining == 0.0
        if remaining is not None and of_requests:
            yield Allowed(remaining, _bounded(seconds), limit)


def _items(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the name and the parameters of each item of a comma-separated list. Values must hold no commas."""
    for item in text.split(","):
        name = item.partition(";")[0].strip().strip('"')
        yield name, dict(_PARAMETER.findall(item))


def _named(get: Callable[[str], str | None]) -> Iterator[Allowed]:
    """Yield the limits in headers that hold one number each, such as `X-RateLimit-Remaining`."""
    for prefix in ("ratelimit", "x-ratelimit", "x-rate-limit"):
        for unit in ("", "-requests", "-tokens"):
            remaining = _number(get(f"{prefix}-remaining{unit}"))
            if remaining is None:
                continue
            seconds = _seconds(get(f"{prefix}-reset{unit}") or "", get("date"))
            limit = _number(get(f"{prefix}-limit{unit}"))
            yield Allowed(remaining, _bounded(seconds), limit, unit[1:] or "requests")


def _bounded(seconds: float | None) -> float:
    return math.inf if seconds is None else min(seconds, _LONGEST)


def _is_number(text: str) -> bool:
    return _NUMBER.fullmatch(text) is not None


def _number(text: str | None) -> float | None:
    match = _NUMBER.fullmatch(text or "")
    return None if match is None else float(match[1])


def _seconds(text: str, date: str | None) -> float | None:
    """
    Return the seconds until a reset, which *text* gives as seconds, as a moment since 1970, or as a duration such as
    `6m0s`. Return None for any other text.

    >>> _seconds("12", None), _seconds("1m30s", None), _seconds("20ms", None), _seconds("soon", None)
    (12.0, 90.0, 0.02, None)
    >>> _seconds("1792567710", "Wed, 21 Oct 2026 07:28:00 GMT")
    30.0
    """
    number = _number(text)
    if number is not None:
        if number > EPOCH:
            # The date of the response, if it has one, is the present time by the clock of the service.
            now = moment(date or "") or datetime.now(UTC)
            number = (number / 1000 if number > 1000 * EPOCH else number) - now.timestamp()
        return min(max(number, 0.0), _LONGEST)
    match = _DURATION.fullmatch(text.strip())
    if match is None or not any(match.groups()):
        return None
    try:
        parts = [float(part or 0.0) * scale for part, scale in zip(match.groups(), _SCALES, strict=True)]
    except ValueError:  # a part is no number, as in 1.2.3s
        return None
    return min(sum(parts), _LONGEST)
