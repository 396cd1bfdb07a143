"""The report of a monitor: one HTML file that needs no server, and the figures of a report as text."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, cast

from ..errors import ConfigError
from .spending import words

if TYPE_CHECKING:
    from .view import View

__all__ = ["html_of", "read", "text_of"]

_EMBEDDED = re.compile(r'<script type="application/json" id="view">(.*?)</script>', re.DOTALL)


def html_of(view: View) -> str:
    """Return *view* as one HTML document, which needs no server."""
    from .page import self_contained

    return self_contained(view, "enrichkit report")


def read(path: str | Path) -> View:
    """
    Return the figures of a report that `Monitor.report` wrote as HTML or JSON.

    Raises:
        ConfigError: The file cannot be read, or is no report of enrichkit.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
        embedded = _EMBEDDED.search(text)
        view = json.loads(embedded.group(1) if embedded else text)
        view["sentence"], view["time"], view["sources"]
    except OSError as error:
        raise ConfigError(f"The report {path} cannot be read: {error.strerror}.") from None
    except (ValueError, KeyError, TypeError):
        raise ConfigError(
            f"{path} is no report of enrichkit. Monitor.report(path) writes one, as HTML or as JSON."
        ) from None
    return cast("View", view)


def text_of(view: View) -> str:
    """Return the figures of *view* that matter most, as plain text."""
    lines = [view["sentence"], ""]
    for part in view["time"]:
        lines.append(f"  {part['label']:32} {part['share']:6.1%}  {part['seconds']:10,.1f} s")
    for source in view["sources"]:
        totals = source["totals"]
        lines += [
            "",
            f"{source['name']} ({source['connector']}): {source['sentence']}",
            f"  {source['arithmetic']}",
            (
                f"  {totals['rows']:,} rows, {totals['calls']:,} calls with {totals['sent']:,} keys: "
                f"{totals['ok']:,} ok, {totals['missing']:,} missing, "
                f"{totals['errors'] + totals['rejected']:,} errors, {totals['timeouts']:,} timeouts, "
                f"{totals['retries']:,} retries, {totals['cached']:,} from the cache"
            ),
            f"  calls took {_took(source['p50'])} (median), {_took(source['p99'])} (99 %)",
        ]
        spending = source.get("spending")  # absent in reports of an older version
        if spending:
            lines.append(f"  {words(spending)}")
        lines += [f"  {reason['count']:,} x {reason['reason']}" for reason in source["errors"]]
        lines += [f"  advice: {each['text']} {each['option']}={each['value']}" for each in source["advice"]]
    return "\n".join(lines)


def _took(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.3g} ms"
