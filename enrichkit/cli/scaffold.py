"""
`new-connector`: creates, from `template/`, a plugin package whose tests pass.

The template is itself a plugin for a store called acme. A new plugin is a copy of the template with another name.
"""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

from ..errors import ConfigError
from ..sources.registry import FIRST_PARTY, connectors

__all__ = ["new_connector"]

# File of the template -> file of the new package. The names differ so that the wheel of enrichkit holds no `test_*.py`.
FILES = {
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    "enrichkit_acme.py": "enrichkit_acme/__init__.py",
    "contract.py": "tests/test_contract.py",
}


def new_connector(name: str, into: Path) -> Path:
    """
    Create the package of a connector called *name* in a new folder below *into*, and return the new folder.

    Raises:
        ConfigError: *name* has a wrong form, or another connector has this name, or the folder exists already.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*([_-][a-z0-9]+)*", name):
        raise ConfigError(
            f"The name of the connector is {name!r}; it must begin with a letter and consist of lower-case letters, "
            "digits, '-' and '_'. For example enrichkit new-connector acme."
        )
    if name in connectors() or name in FIRST_PARTY:
        raise ConfigError(
            f"There is already a connector named {name!r}, and two connectors cannot share a name. Choose another "
            f"name, for example my-{name}."
        )
    folder = into / f"enrichkit-{name.replace('_', '-')}"
    if folder.exists():
        raise ConfigError(
            f"The folder {folder} exists already, and nothing is overwritten. Remove it, or name another parent folder "
            "with --into."
        )
    module, title = name.replace("-", "_"), "".join(map(str.capitalize, re.split("[_-]", name)))
    names = {"enrichkit_acme": f"enrichkit_{module}", "enrichkit-acme": folder.name, "Acme": title, "acme": name}
    for source, target in FILES.items():
        text = (files(__package__) / "template" / source).read_text(encoding="utf-8")
        # One substitution replaces all names, because a second one would also replace "acme" inside the new names.
        text = re.sub("|".join(names), lambda match: names[match[0]], text)
        path = folder / target.replace("enrichkit_acme", f"enrichkit_{module}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder
