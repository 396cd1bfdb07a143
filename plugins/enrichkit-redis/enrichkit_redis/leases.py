"""
The store of job-wide limits in Redis or Valkey: a hash for each limit, and a script that answers the `Ask` of a worker.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import hiredis

from enrichkit.errors import ConnectorError, FatalError, PermanentError, TransientError
from enrichkit.plugin import ALIVE, Ask, Draw, Drawn, Grant

from . import budgets
from .cluster import source_of
from .commands import pack
from .replies import translate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .config import RedisConfig

__all__ = ["RedisLeases"]

_INNER = re.compile(r"running script.*?-([A-Z]+ .*)", re.DOTALL)
# With more than 64 workers, the fair part (the most that one worker may get) is computed at most every 0.25 s, as in
# `grant`.
_MANY = ("64", "0.25")
PREFIX = "enrichkit:limit:"
SCRIPT = """
local function text(number) return string.format('%.17g', number) end
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local key, worker = KEYS[1], 'w:' .. ARGV[1]
local total, wanted, held = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local least, away, period, lease = tonumber(ARGV[5]), ARGV[6] == '1', tonumber(ARGV[7]), tonumber(ARGV[8])
local ahead, recovery, units = tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11])
local many_workers, level_holds = tonumber(ARGV[12]), tonumber(ARGV[13])
local recovers, known, ended, others, count, wants, granted = 0, false, false, 0, 0, {}, {}
local fields = {'many', worker, 'recovery'}
for i = 1, units do fields[i + 3] = 't:' .. ARGV[11 + 3 * i] end
local found = redis.call('HMGET', key, unpack(fields))
for i = 1, units do granted[fields[i + 3]] = tonumber(found[i + 3] or 0) end
recovers = tonumber(found[3] or 0)
local before, ends, level = 0, 0, 0
if found[2] then
  before, ends = string.match(found[2], '%S+ (%S+) (%S+)')
  known, before = tonumber(ends) > now, tonumber(before)
end
local holds, of_many, held_by_all, workers
if found[1] then
  holds, of_many, held_by_all, workers = string.match(found[1], '(%S+) (%S+) (%S+) (%S+)')
end
local fresh = holds and now < tonumber(holds)
if fresh then
  level, others, count = tonumber(of_many), tonumber(held_by_all) - before, tonumber(workers)
  if found[2] then count = count - 1 end
else
  local all, alive, any = redis.call('HGETALL', key), false, false
  for i = 1, #all, 2 do
    local field, value = all[i], all[i + 1]
    if string.sub(field, 1, 2) == 'w:' then
      any = true
      local want, share, ends = string.match(value, '(%S+) (%S+) (%S+)')
      if tonumber(ends) <= now then
        redis.call('HDEL', key, field)
      else
        alive = true
        if field ~= worker then
          others = others + tonumber(share)
          count = count + 1
          wants[count] = tonumber(want)
        end
      end
    end
  end
  ended = any and not alive
end
if (away or (held > 0 and not known) or ended) and now >= recovers then
  recovers = now + recovery
  redis.call('HSET', key, 'recovery', text(recovers))
end
local recovering = now < recovers
if recovering then wanted = math.min(wanted, held) end
if not fresh then
  wants[count + 1] = wanted
  table.sort(wants)
  local lower = 0
  for place, want in ipairs(wants) do
    level = math.max(level, (total - lower) / (#wants - place + 1))
    lower = lower + want
  end
  holds = text(now + level_holds)
end
local most = level
if units == 0 then most = math.ceil(most) end
local share = math.max(0, math.min(wanted, most, total - others))
if units == 0 then share = math.floor(share) end
if math.max(wanted, share, least) > 0 then
  redis.call('HSET', key, worker, text(wanted) .. ' ' .. text(math.max(share, least)) .. ' ' .. text(now + lease))
  others, count = others + math.max(share, least), count + 1
else
  redis.call('HDEL', key, worker)
end
if count > many_workers then
  redis.call('HSET', key, 'many', holds .. ' ' .. text(level) .. ' ' .. text(others) .. ' ' .. count)
elseif found[1] then
  redis.call('HDEL', key, 'many')
end
local calls, start, wait, latest = 0, 0, 0, now
if units > 0 then
  local most, names, costs = 0, {}, {}
  latest = 0
  for i = 1, units do
    local at = 11 + 3 * i
    local field, cost, settle = 't:' .. ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
    names[i], costs[i] = field, cost
    granted[field] = math.max((granted[field] or 0) + settle, now)
    latest = math.max(latest, granted[field])
    most = math.max(most, cost)
  end
  start = latest - now
  calls = share * period / most
  if calls < 1 and wanted > 0 and not recovering then calls = 1 end
  if start > ahead then
    calls, wait = 0, start - ahead
  end
  for i, field in ipairs(names) do
    granted[field] = granted[field] + calls * costs[i]
    latest = math.max(latest, granted[field])
    redis.call('HSET', key, field, text(granted[field]))
  end
end
redis.call('PEXPIRE', key, math.ceil((math.max(latest, recovers) - now + 60) * 1000))
return {text(share), text(calls), text(start), text(wait)}
"""
"""
A Lua script that does the same as `enrichkit.plugin.grant`, but takes the time from the server's clock; a test compares
the two.
"""


class RedisLeases:
    """
    A store of limits and budgets in Redis that uses one connection to the server, or one to each node of a cluster.

    The hash of a limit has a field `w:<id>` for each worker: the share that the worker wants, the share that it has,
    and the time at which this share expires. For a rate, the field `t:<unit>` of each unit holds the time up to which
    the calls that are already granted use up the rate. The field `recovery` holds the time until which, after an outage
    of the store, no worker gets more than it already has. With many workers, the hash also has a field `many`: the time
    until which the computed fair part (see `grant`) is valid, the fair part itself, the sum of the shares, and the
    number of workers. Redis deletes the hash about a minute after the last call of the script.
    """

    def __init__(self, config: RedisConfig) -> None:
        self._source = source_of(config, 1)

    async def lease(self, ask: Ask) -> Grant:
        """Answer *ask*; see `enrichkit.plugin.LeaseStore`."""
        numbers = (ask.total, ask.wanted, ask.held, ask.least, ask.away, ask.period, ask.lease, ask.ahead, ask.recovery)
        units = [
            part
            for unit, seconds in ask.cost.items()
            for part in (unit, _text(seconds), _text(ask.settle.get(unit, 0.0)))
        ]
        name = PREFIX + ask.limit
        # Each call sends the text of the script (EVAL) and not its digest (EVALSHA), because a server that has
        # restarted does not know the digest. Sending 4 KB a few times a second costs less than extra code for that
        # case.
        given = (ask.worker, *map(_text, numbers), str(len(ask.cost)), *_MANY, *units)
        reply = await self._run(SCRIPT, name, given)
        try:
            share, calls, start, wait = map(float, reply)
        except (TypeError, ValueError):
            raise _unknown() from None
        return Grant(share=share, calls=calls, start=start, wait=wait)

    async def draw(self, ask: Draw) -> Drawn:
        """Answer *ask*; see `enrichkit.plugin.LeaseStore`."""
        reply = await self._run(budgets.SCRIPT, budgets.PREFIX + ask.budget, budgets.arguments(ask, ALIVE))
        try:
            return budgets.drawn_of(ask, reply)
        except (TypeError, ValueError):
            raise _unknown() from None

    async def _run(self, script: str, name: str, given: Sequence[str]) -> Any:
        """Run *script* on the hash *name* with the arguments *given*, and return the reply."""
        [reply] = await self._source.ask_each([name], [pack(("EVAL", script, "1", name, *given))])
        if isinstance(reply, hiredis.ReplyError):
            if str(reply).startswith("READONLY"):
                self._source.forget()  # after a fail-over, only new connections lead to the new master
            raise _translated(reply, name)
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def close(self) -> None:
        """Close all connections."""
        self._source.close()


def _unknown() -> TransientError:
    return TransientError("Redis answered EVAL in an unknown form; the answer was not used.")


def _translated(reply: hiredis.ReplyError, name: str) -> ConnectorError:
    """Return the error for an error *reply* to a script that ran on the hash *name*."""
    if "WRONGTYPE" in str(reply):
        return FatalError(
            f"The key {name!r} in Redis holds something else than a limit (WRONGTYPE). Delete it, or give the limit "
            "another name."
        )
    # If a command inside a script fails, an older server wraps its error, such as -OOM, in another one: "ERR Error
    # running script (call to f_...): ... -OOM command ...". The inner error is translated.
    inner = _INNER.search(str(reply))
    error = translate(reply if inner is None else hiredis.ReplyError(inner[1]), "Redis")
    return FatalError(str(error)) if isinstance(error, PermanentError) else error


def _text(number: float) -> str:
    return repr(float(number)) if not isinstance(number, bool) else str(int(number))
