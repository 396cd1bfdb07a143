"""
`new-connector`: a plugin package whose tests pass, made of `template/`.

The template is a plugin itself, of a store called acme; to make another one is to write another name.
"""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

from ..errors import ConfigError
from ..registry import FIRST_PARTY, connectors

__all__ = ["new_connector"]

# From the template to the package. Not under their names, because no test of a plugin belongs into our wheel.
FILES = {
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    "enrichkit_acme.py": "enrichkit_acme/__init__.py",
    "contract.py": "tests/test_contract.py",
}


def new_connector(name: str, into: Path) -> Path:
    """
    Make the package of a connector called *name* in a new folder of *into*, and return the folder.

    Raises:
        ConfigError: The name is not of the right form or taken, or the folder is there already.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*([_-][a-z0-9]+)*", name):
        raise ConfigError(
            f"The name of the connector is {name!r}; it must begin with a letter and consist of lower-case letters, "
            "digits, '-' and '_'. For example enrichkit new-connector acme."
        )
    if name in connectors() or name in FIRST_PARTY:
        raise ConfigError(
            f"There is a connector named {name!r} already, and two of one name cannot be used. Choose another name, "
            f"for example my-{name}."
        )
    folder = into / f"enrichkit-{name.replace('_', '-')}"
    if folder.exists():
        raise ConfigError(
            f"{folder} is there already; nothing is overwritten. Remove it, or say --into another folder."
        )
    module, title = name.replace("-", "_"), "".join(map(str.capitalize, re.split("[_-]", name)))
    names = {"enrichkit_acme": f"enrichkit_{module}", "enrichkit-acme": folder.name, "Acme": title, "acme": name}
    for source, target in FILES.items():
        text = (files(__package__) / "template" / source).read_text(encoding="utf-8")
        # All at once: the new name may have an acme in it.
        text = re.sub("|".join(names), lambda found: names[found[0]], text)
        path = folder / target.replace("enrichkit_acme", f"enrichkit_{module}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder
