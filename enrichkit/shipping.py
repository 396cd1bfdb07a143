"""How what a worker needs travels there, and fingerprints that tell it apart from what is there already."""

from __future__ import annotations

import functools
import hashlib
import sys
import sysconfig
import threading
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .errors import ConfigError
from .key_function import name_of

if TYPE_CHECKING:
    from .connector import Connector, ConnectorConfig

__all__ = ["canonical", "digest", "functions_of", "identity_of", "pickled"]

# cloudpickle has one list for the process, also for threads. Reentrant: what is pickled may come back here.
_listing = threading.RLock()


def pickled(value: Any, *parts: Any) -> bytes:
    """
    Pickle *value* for the workers.

    A class or function among its *parts*, or a base of such a class, that an installed package defines travels by
    reference. One of a notebook, a script or a module beside it travels by value, because the workers do not have that
    module.
    """
    from pyspark import cloudpickle as _cloudpickle

    cloudpickle: Any = _cloudpickle  # it has no types
    # What __main__ defines travels by value anyway.
    modules = {_module_of(part) for given in parts for part in (given.__mro__ if isinstance(given, type) else (given,))}
    by_value = {
        module.__name__: module
        for module in modules
        if module is not None and module.__name__ != "__main__" and not _is_installed(module)
    }
    with _listing:
        # One that is listed already stays so: the user listed it, or the call around this one, which takes it back.
        listed = cloudpickle.list_registry_pickle_by_value()
        added = [module for name, module in by_value.items() if name not in listed]
        for module in added:
            cloudpickle.register_pickle_by_value(module)
        try:
            return bytes(cloudpickle.dumps(value))
        finally:
            for module in added:
                cloudpickle.unregister_pickle_by_value(module)


def functions_of(config: ConnectorConfig) -> list[Any]:
    """Return the functions and classes that *config* holds, which may have to travel by value."""
    return [value for f in fields(config) if callable(value := getattr(config, f.name))]


def identity_of(connector: type[Connector[Any]], config: ConnectorConfig) -> list[str]:
    """
    Return what an engine of that connector and config depends on.

    A class or function of a notebook or script may be defined anew with other code, and workers that are reused still
    hold an engine with the old one, so its code is part of it.

    Raises:
        ConfigError: A class or function cannot travel.
    """
    # Leaves __slotnames__ on the class, as the first pickling of a config does, which would change the code below.
    config.__reduce_ex__(2)
    module = _module_of(connector)
    installed = module is not None and module.__name__ != "__main__" and _is_installed(module)
    return [connector.__module__, connector.__qualname__, "" if installed else _code_of(connector), canonical(config)]


def canonical(value: Any) -> str:
    """Return a text that is equal for equal configs and different for different ones; `repr` hides secrets."""
    if callable(value):
        return f"{name_of(value)}:{_code_of(value)}"
    if is_dataclass(value):
        parts = ", ".join(f"{f.name}={canonical(getattr(value, f.name))}" for f in fields(value))
        return f"{type(value).__qualname__}({parts})"
    if isinstance(value, Mapping):
        return "{" + ", ".join(sorted(f"{canonical(k)}: {canonical(v)}" for k, v in value.items())) + "}"
    if isinstance(value, tuple | list):
        return "(" + ", ".join(map(canonical, value)) + ",)"
    return f"{type(value).__name__}:{value!r}"


def digest(*parts: object) -> str:
    """Return a fingerprint of *parts*."""
    return hashlib.sha256("\0".join(map(str, parts)).encode("utf-8", "backslashreplace")).hexdigest()


def _code_of(part: Any) -> str:
    """Return a fingerprint of what travels of a class or function."""
    try:
        return hashlib.sha256(pickled(part, part)).hexdigest()
    except Exception as error:
        kind = "class" if isinstance(part, type) else "function"
        raise ConfigError(
            f"The {kind} {name_of(part)} cannot travel to the workers: {type(error).__name__}: {error}. Make in the "
            f"{kind} what it needs there, instead of using what the driver has."
        ) from error


def _module_of(part: Any) -> ModuleType | None:
    """Return the module that defines *part*: a class, a function, or an object that is called like one."""
    while isinstance(part, functools.partial):
        part = part.func
    return sys.modules.get(getattr(part, "__module__", None) or type(part).__module__)


@functools.cache  # reads the metadata of every installed package, and each enrich() asks more than once
def _is_installed(module: ModuleType) -> bool:
    from importlib.metadata import packages_distributions

    file = getattr(module, "__file__", None)
    folders = [sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib", "platstdlib")]
    if file is None or any(file.startswith(folder + "/") for folder in folders if folder):
        return True
    top = module.__name__.partition(".")[0]
    return top in packages_distributions() or top in _editable_modules()


def _editable_modules() -> set[str]:
    """Top-level modules of the installed plugins: an editable install does not list its modules."""
    from importlib.metadata import entry_points

    return {"enrichkit", *(point.module.partition(".")[0] for point in entry_points(group="enrichkit"))}
