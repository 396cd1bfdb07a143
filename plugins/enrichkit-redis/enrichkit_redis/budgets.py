"""
The store of a job's budgets in Redis or Valkey: a hash for each budget, and a script that answers a worker's `Draw`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from enrichkit.plugin import Drawn

if TYPE_CHECKING:
    from enrichkit.plugin import Draw

__all__ = ["PREFIX", "SCRIPT", "arguments", "drawn_of"]

PREFIX = "enrichkit:budget:"
SCRIPT = """
local function text(number) return string.format('%.17g', number) end
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local key, worker, units, lasts = KEYS[1], ARGV[1], tonumber(ARGV[2]), ARGV[3]
local names, total, spent, own, taken, held = {}, {}, {}, {}, {}, {}
local at, holds = 4, false
for i = 1, units do
  local name = ARGV[at]
  names[i], total[i] = name, tonumber(ARGV[at + 1])
  spent[i], own[i] = tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  at = at + 4
  local found = redis.call('HMGET', key, 'w:' .. worker .. ':' .. name, 'taken:' .. name, 'held:' .. name)
  local before, reserved = 0, 0
  if found[1] then
    before, reserved = string.match(found[1], '(%S+) (%S+)')
    before, reserved = tonumber(before), tonumber(reserved)
  end
  held[i] = tonumber(found[3] or 0) + own[i] - reserved
  taken[i] = tonumber(found[2] or 0) + spent[i] + own[i] - before - reserved
end
local calls = 0
while at <= #ARGV do
  for i = 1, units do
    if taken[i] + tonumber(ARGV[at + i - 1]) > total[i] then at = #ARGV + 1 break end
  end
  if at > #ARGV then break end
  calls = calls + 1
  for i = 1, units do
    local amount = tonumber(ARGV[at + i - 1])
    own[i], held[i], taken[i] = own[i] + amount, held[i] + amount, taken[i] + amount
  end
  at = at + units
end
local others, answer = false, {calls, 0}
for i = 1, units do
  local name = names[i]
  redis.call('HSET', key, 'w:' .. worker .. ':' .. name, text(spent[i]) .. ' ' .. text(own[i]),
    'taken:' .. name, text(taken[i]), 'held:' .. name, text(held[i]))
  holds = holds or own[i] > 0
  others = others or held[i] - own[i] > 1e-9 * total[i]
  answer[i + 2] = text(math.max(0, total[i] - taken[i]))
end
local alive = tonumber(redis.call('HGET', key, 'alive') or 0)
if holds then
  alive = now + tonumber(lasts)
  redis.call('HSET', key, 'alive', text(alive))
end
if others and now < alive then answer[2] = 1 end
redis.call('EXPIRE', key, 2592000)
return answer
"""
"""
A Lua script that does the same as `enrichkit.plugin.draw`, but takes the time from the server's clock; a test compares
the two.

The hash of a budget has two sums over all workers: `taken:<unit>`, the amount that is spent or reserved, and
`held:<unit>`, the reserved amount alone. `w:<id>:<unit>` has the two amounts that the worker `<id>` reported last: what
it has spent, and what it has reserved. `alive` is the time until which the reservations of all workers may still be in
use; each worker that has calls in flight moves it on when it asks. Until this time, a worker is told to wait for
amounts that others may give back. Redis deletes the hash 30 days after the last call of the script.
"""


def arguments(ask: Draw, alive: float) -> list[str]:
    """
    Return the arguments of the script for *ask*. If the worker holds a reservation for calls in flight, the script
    assumes for the next *alive* seconds that reservations may still be in use.
    """
    units = list(ask.total)
    accounts = [
        part
        for unit in units
        for part in (unit, *(_text(amounts.get(unit, 0.0)) for amounts in (ask.total, ask.spent, ask.held)))
    ]
    calls = [_text(each.get(unit, 0.0)) for each in ask.calls for unit in units]
    return [ask.worker, str(len(units)), _text(alive), *accounts, *calls]


def drawn_of(ask: Draw, reply: list[object]) -> Drawn:
    """
    Return the answer that *reply*, the result of the script, holds; raises `TypeError` or `ValueError` for a reply of
    an unexpected form.
    """
    calls, waits, *left = (float(each) for each in reply)  # type: ignore[arg-type]  # float() raises for other types
    return Drawn(calls=int(calls), waits=bool(waits), left=dict(zip(ask.total, left, strict=True)))


def _text(number: float) -> str:
    return repr(float(number))
