"""`top`: shows the live figures of a monitor (`enrichkit.monitor`) that runs in another program."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from ..errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from ..observe.view import View

__all__ = ["fetch", "top"]

TIMEOUT = 5.0
EVERY = 1.0


def fetch(url: str) -> View:
    """
    Return the view, i.e. the current figures, of the monitor whose web page has the address *url*.

    Raises:
        ConfigError: *url* is not the address of a monitor, or no server answers there.
    """
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"{url!r} is no address of a monitor; it must be like http://127.0.0.1:4040/<token>/.")
    address = url.rstrip("/") + "/view"
    try:
        with urllib.request.urlopen(address, timeout=TIMEOUT) as response:  # noqa: S310  # http or https, as checked
            return cast("View", json.load(response))
    except urllib.error.HTTPError as error:
        error.close()
        raise ConfigError(
            f"The monitor at {url} answered {error.code}. Copy the whole address that monitor() printed, with its "
            "token."
        ) from None
    except ValueError:
        raise ConfigError(f"What answers at {url} is no monitor of enrichkit.") from None
    except OSError as error:
        raise ConfigError(
            f"No monitor answers at {url}: {getattr(error, 'reason', error)}. It ends with its program."
        ) from None


def top(url: str, console: Console, sleep: Callable[[float], None] = time.sleep) -> None:
    """Show the figures of the monitor at *url* on *console* until the monitor ends."""
    from rich.live import Live

    from ..observe.terminal import table_of

    view = fetch(url)
    with Live(table_of(view, url), console=console, auto_refresh=False) as live:
        while view["state"] != "closed":
            sleep(EVERY)
            try:
                view = fetch(url)
            except ConfigError:
                break
            live.update(table_of(view, url), refresh=True)
    console.print("The monitor has ended.")
