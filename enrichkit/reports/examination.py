"""
The checks that `doctor` makes on an executor.

This module is pickled by value, so that it works where enrichkit cannot be imported. Therefore its top-level imports
come from the standard library only, and `examine` returns a JSON text. All times are those of the executor's clock.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
import importlib.util
import json
import os
import pickle
import platform
import time
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

__all__ = ["examine"]

Found = tuple[str, str, str]
"""Kind of a finding, what is wrong, and what to do."""

SHIP = "Ship it: enrichkit pack prints the lines that do. Or install it on the executors: {install}"


def examine(asked: Mapping[str, Any]) -> str:
    """
    Check this executor, and return the findings as JSON.

    Args:
        asked: `version` of enrichkit on the driver; `sources`, each with the facts that `doctor` gives about it;
            `timeout`, seconds that one source may take; `hold`, seconds that this function takes at least, so that
            other tasks go to other executors.
    """
    began = time.monotonic()
    said = {"host": platform.node(), "place": _place(), "time": time.time(), "findings": list(_findings(asked))}
    time.sleep(max(0.0, asked["hold"] - (time.monotonic() - began)))
    return json.dumps(said)


def _place() -> str:
    """Return a text that is the same for all workers of an executor, and differs between the executors of a host."""
    here = Path.cwd()
    if "SPARK_EXECUTOR_ID" in os.environ:  # on Kubernetes
        return os.environ["SPARK_EXECUTOR_ID"]
    if here.parent.name.startswith(("app-", "application_")):  # the executor's folder, in a standalone cluster or YARN
        return here.name
    return "local"


def _findings(asked: Mapping[str, Any]) -> Iterator[Found]:
    pinned = f"pip install enrichkit=={asked['version']}"
    for module in ("pyarrow", "enrichkit"):
        try:
            importlib.import_module(module)
        except ImportError as error:
            install = pinned if module == "enrichkit" else f"pip install {module}"
            yield "package", f"{module} cannot be imported: {error}", SHIP.format(install=install)
    try:
        import enrichkit
    except ImportError:
        enrichkit = None  # type: ignore[assignment]  # reported above; the checks that do not need enrichkit go on
    same = enrichkit is not None and enrichkit.__version__ == asked["version"]
    if enrichkit is not None and not same:
        what = f"enrichkit is {enrichkit.__version__}, and the driver has {asked['version']}"
        yield "version", what, SHIP.format(install=pinned)
    for source in asked["sources"]:
        absent = [*_packages(source)]
        yield from absent
        if same and not absent:
            yield from _source(source, asked["timeout"])


def _packages(source: Mapping[str, Any]) -> Iterator[Found]:
    """Yield the findings about the packages of *source*."""
    name, install = source["name"], f"pip install {source['package']}=={source['version']}"
    for module in source["requires"]:
        try:
            importlib.import_module(module)
        except ImportError as error:
            what = f"the client package {module} of the source {name!r} cannot be imported: {error}"
            yield "client", what, SHIP.format(install=source["install"])
    if source["package"] is None:
        return  # no package to check: the connector is in the pickled payload, or is a part of enrichkit
    try:
        version = importlib.metadata.version(source["package"])
    except importlib.metadata.PackageNotFoundError:
        if importlib.util.find_spec(source["module"]) is None:
            what = f"the plugin {source['package']} of the source {name!r} is not installed"
            yield "package", what, SHIP.format(install=install)
        return
    if version != source["version"]:
        what = f"the plugin {source['package']} is {version}, and the driver has {source['version']}"
        yield "version", what, SHIP.format(install=install)


def _source(source: Mapping[str, Any], timeout: float) -> Iterator[Found]:
    """
    Yield the findings about secrets and certificates of *source*; if there are none, the findings about a call to it.
    """
    from enrichkit.errors import ConfigError
    from enrichkit.secrets import secrets_of

    name = source["name"]
    try:
        connector, config = pickle.loads(source["payload"])  # noqa: S301  # the driver made it
    except Exception as error:  # noqa: BLE001  # the import of a user's module may raise anything
        what = f"the source {name!r} cannot be read: {type(error).__name__}: {error}"
        yield "package", what, "Ship the module that defines it: enrichkit pack --with PATH"
        return
    # A client package may repeat its arguments in messages, so secret arguments are removed from each message.
    known = [getattr(config, f.name) for f in fields(config) if not f.repr]
    known, faults = [value for value in known if isinstance(value, str)], []
    for secret in secrets_of(config):
        try:
            known.append(secret.resolve())
        except ConfigError as error:
            remedy = "Give the executors what it names: spark.executorEnv.NAME=..., or a file that the cluster mounts"
            faults.append(("secret", f"the source {name!r} lacks {secret!r}: {error}", remedy))
    for field in ("tls_ca", "tls_cert", "tls_key"):
        path = getattr(config, field, None)
        if isinstance(path, str) and not os.access(path, os.R_OK):
            what = f"{field} of the source {name!r} is {path}, which cannot be read"
            remedy = "Bring the file to the executors: spark.addFile, the image, or enrichkit pack --with"
            faults.append(("certificate", what, remedy))
    yield from faults or _call(name, connector, config, known, timeout)


def _call(name: str, connector: Any, config: Any, known: list[str], timeout: float) -> Iterator[Found]:
    """Open the source, ask it for one key, which it need not hold, and yield a finding if that fails."""
    from enrichkit.errors import FatalError, TransientError
    from enrichkit.secrets import redact

    try:
        asyncio.run(asyncio.wait_for(_ask(connector, config, timeout), timeout))
    except TimeoutError:
        what = f"the source {name!r} has not answered within {timeout:g} s"
        yield "route", what, "Open the way from the executors to its address: firewall, security group, DNS"
    except TransientError as error:
        what = f"the source {name!r} cannot be reached: {redact(str(error), *known)}"
        yield "route", what, "Open the way from the executors to its address: firewall, security group, DNS"
    except FatalError as error:
        what = f"the source {name!r} refuses: {redact(str(error), *known)}"
        yield "refused", what, "Correct what it names, such as the password that the executors have"
    except Exception as error:  # noqa: BLE001  # an error of a connector's client is a finding, too
        what = f"the source {name!r} fails: {type(error).__name__}: {redact(str(error), *known)}"
        yield "refused", what, f"Run enrichkit check {name} on that host"


async def _ask(connector: Any, config: Any, timeout: float) -> None:
    from enrichkit.errors import FatalError, PermanentError, TransientError
    from enrichkit.interface import Call, Connector, Failure

    opened = connector(config)
    opened.capacity = 1
    try:
        await opened.open()
        # No key is asked for if a call costs more than a request (for example tokens), or may not be repeated.
        if opened.repeatable and type(opened).cost is Connector.cost and not opened.idempotency_keys:
            kinds = opened.key_types or (str,)
            part = "enrichkit-doctor" if str in kinds else kinds[0]()
            key = part if config.key_parts in (None, 1) else (part,) * config.key_parts
            answers = await opened.fetch_many((key,), Call(timeout=timeout))
            answer = answers.get(key) if isinstance(answers, Mapping) else None
            if isinstance(answer, Failure) and isinstance(answer.error, TransientError | FatalError):
                raise answer.error
    except PermanentError:
        return  # no finding: the source was reached, and refused only the key of this check
    finally:
        await opened.close()
