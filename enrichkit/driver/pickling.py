"""
Pickles plans for the workers, and makes the fingerprints of their engines and caches.

Spark reuses worker processes. By the fingerprint, a task finds the engine or cache that an earlier task in the same
process has made.
"""

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

from ..errors import ConfigError
from ..functions import name_of

if TYPE_CHECKING:
    from ..interface import Connector, ConnectorConfig
    from ..plan import LimitPlan, Plan, SidePlan

__all__ = [
    "canonical_text",
    "digest",
    "functions_of",
    "identity_of",
    "is_installed",
    "pack",
    "pickle_module_of",
    "pickle_value",
]

# The lock guards cloudpickle's registry of the modules that are pickled by value, because all threads of the process
# share this registry. The lock is reentrant because pickling an object may call `pickle_value` again.
_registry_lock = threading.RLock()


def pickle_value(value: Any, *parts: Any) -> bytes:
    """
    Pickle *value* for the workers.

    Args:
        value: Any object that cloudpickle can pickle.
        parts: Classes and functions in *value*. A class, one of its bases, or a function travels by reference if an
            installed package defines it. If a notebook, a script or a module beside the script defines it, it travels
            by value, because the workers do not have that module.
    """
    definitions = [base for part in parts for base in (part.__mro__ if isinstance(part, type) else (part,))]
    by_value = {
        module.__name__: module
        for module in map(_module_of, definitions)
        # cloudpickle pickles the classes and functions of __main__ by value anyway.
        if module is not None and module.__name__ != "__main__" and not _is_installed(module)
    }
    return _pickle(value, by_value)


def pickle_module_of(function: Any) -> bytes:
    """
    Pickle *function* by value, together with the definitions of its module that it uses, for workers that may not have
    enrichkit.
    """
    return _pickle(function, {function.__module__: sys.modules[function.__module__]})


def _pickle(value: Any, by_value: Mapping[str, ModuleType]) -> bytes:
    """Pickle *value*. Classes and functions that the modules *by_value* define travel by value."""
    from pyspark import cloudpickle as _cloudpickle

    cloudpickle: Any = _cloudpickle  # cloudpickle has no type annotations
    with _registry_lock:
        # A module that was registered before stays registered, because either the user has registered it, or an outer
        # call of this function has done so and will unregister it.
        listed = cloudpickle.list_registry_pickle_by_value()
        added = [module for name, module in by_value.items() if name not in listed]
        for module in added:
            cloudpickle.register_pickle_by_value(module)
        try:
            return bytes(cloudpickle.dumps(value))
        finally:
            for module in added:
                cloudpickle.unregister_pickle_by_value(module)


def pack(plan: Plan) -> bytes:
    """Pickle *plan* for the workers; its connector class travels as `pickle_value` describes."""
    return pickle_value(plan, *_parts_of(plan))


def _parts_of(plan: Plan | SidePlan | LimitPlan) -> list[Any]:
    """Return the classes and functions of *plan* that may have to travel by value."""
    others = [part for name in ("tiers", "fallbacks", "limits") for part in getattr(plan, name, ())]
    of_others = [part for other in others for part in _parts_of(other)]
    return [plan.connector, type(plan.config), *functions_of(plan.config), *of_others]


def functions_of(config: ConnectorConfig) -> list[Any]:
    """Return the functions and classes that *config* holds; they may have to travel by value."""
    return [value for f in fields(config) if callable(value := getattr(config, f.name))]


def identity_of(connector: type[Connector[Any]], config: ConnectorConfig) -> list[str]:
    """
    Return name and code of *connector*, and *config*, as texts. Lookups with different texts must not share an engine.

    The code is included because a notebook or script may define a class or function again with other code, while reused
    worker processes still have an engine with the old code.

    Raises:
        ConfigError: A class or function cannot be pickled for the workers.
    """
    # The first pickling of a config sets __slotnames__ on its class, which changes the fingerprint of the code. This
    # call sets __slotnames__ before the fingerprint is made.
    config.__reduce_ex__(2)
    code = "" if is_installed(connector) else _code_of(connector)
    # The config is given as a digest, because the caller keeps these texts in a variable, which a traceback may show.
    return [connector.__module__, connector.__qualname__, code, digest(canonical_text(config))]


def is_installed(part: Any) -> bool:
    """Return whether an installed package defines *part*, a class or function, so that its name identifies it."""
    module = _module_of(part)
    return module is not None and module.__name__ != "__main__" and _is_installed(module)


def canonical_text(value: Any) -> str:
    """
    Return a text that is equal for equal configs and different for different configs.

    `repr` cannot serve as this text: it hides passwords, so configs that differ only in a password would look equal.
    """
    if callable(value):
        return f"{name_of(value)}:{_code_of(value)}"
    if is_dataclass(value):
        parts = ", ".join(f"{f.name}={canonical_text(getattr(value, f.name))}" for f in fields(value))
        return f"{type(value).__qualname__}({parts})"
    if isinstance(value, Mapping):
        return "{" + ", ".join(sorted(f"{canonical_text(k)}: {canonical_text(v)}" for k, v in value.items())) + "}"
    if isinstance(value, tuple | list):
        return "(" + ", ".join(map(canonical_text, value)) + ",)"
    return f"{type(value).__name__}:{value!r}"


def digest(*parts: object) -> str:
    """Return a fingerprint of *parts*."""
    return hashlib.sha256("\0".join(map(str, parts)).encode("utf-8", "backslashreplace")).hexdigest()


def _code_of(part: Any) -> str:
    """Return a fingerprint of the pickled form of *part*, a class or function."""
    try:
        return hashlib.sha256(pickle_value(part, part)).hexdigest()
    except Exception as error:
        kind = "class" if isinstance(part, type) else "function"
        raise ConfigError(
            f"The {kind} {name_of(part)} cannot travel to the workers: {type(error).__name__}: {error}. Create "
            f"the objects that it needs inside the {kind}, instead of using objects of the driver."
        ) from error


def _module_of(part: Any) -> ModuleType | None:
    """Return the module that defines *part*: a class, a function, or a callable object."""
    while isinstance(part, functools.partial):
        part = part.func
    return sys.modules.get(getattr(part, "__module__", None) or type(part).__module__)


@functools.cache  # each enrich() calls it several times, and a call reads the metadata of all installed packages
def _is_installed(module: ModuleType) -> bool:
    from importlib.metadata import packages_distributions

    file = getattr(module, "__file__", None)
    folders = [sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib", "platstdlib")]
    if file is None or any(file.startswith(folder + "/") for folder in folders if folder):
        return True
    top = module.__name__.partition(".")[0]
    return top in packages_distributions() or top in _editable_modules()


def _editable_modules() -> set[str]:
    """Return the top-level modules of enrichkit and its plugins: `packages_distributions` lacks editable installs."""
    from importlib.metadata import entry_points

    return {"enrichkit", *(point.module.partition(".")[0] for point in entry_points(group="enrichkit"))}
