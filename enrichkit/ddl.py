"""Types as text, as `returns` of a config holds them on a worker: read without Spark."""

from __future__ import annotations

import re

__all__ = ["fields_of"]

_NAME = re.compile(r"`((?:[^`]|``)*)`:|(\w+):")
# A name in backticks is one step, because it may hold brackets and commas.
_STEP = re.compile(r"`(?:[^`]|``)*`|.", re.DOTALL)


def fields_of(ddl: str) -> dict[str, str]:
    """
    Return the types of the fields of a struct in one spelling, that of `ddl_of`; of others none.

    >>> fields_of("struct<tier:bigint,`a,b`:map<string,struct<c:int>>>")
    {'tier': 'bigint', 'a,b': 'map<string,struct<c:int>>'}
    """
    found: dict[str, str] = {}
    if not ddl.startswith("struct<"):
        return found
    rest = ddl[len("struct<") : -1]
    while rest:
        matched = _NAME.match(rest)
        if matched is None:
            return {}
        start = end = matched.end()
        depth = 0
        while (step := _STEP.match(rest, end)) and (depth or step[0] != ","):
            depth += (step[0] in "<(") - (step[0] in ">)")
            end = step.end()
        name = matched[2] if matched[1] is None else matched[1].replace("``", "`")
        found[name] = rest[start:end]
        rest = rest[end + 1 :]
    return found
