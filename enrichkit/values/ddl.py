"""A parser of the DDL in a config's `returns`. It works without Spark, because a worker has no Spark session."""

from __future__ import annotations

import re

__all__ = ["fields_of"]

_NAME = re.compile(r"`((?:[^`]|``)*)`:|(\w+):")
# The parser moves on by one step at a time: a whole name in backticks, which may hold brackets and commas, or a single
# character.
_STEP = re.compile(r"`(?:[^`]|``)*`|.", re.DOTALL)


def fields_of(ddl: str) -> dict[str, str]:
    """
    Return the types of a struct's fields by name, from DDL that `ddl_of` wrote; an empty dict for any other type.

    >>> fields_of("struct<tier:bigint,`a,b`:map<string,struct<c:int>>>")
    {'tier': 'bigint', 'a,b': 'map<string,struct<c:int>>'}
    """
    fields: dict[str, str] = {}
    if not ddl.startswith("struct<"):
        return fields
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
        fields[name] = rest[start:end]
        rest = rest[end + 1 :]
    return fields
