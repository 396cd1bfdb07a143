"""
The engine: distinct keys in, outcomes out. It knows neither Spark nor pandas.

    handover.py   the Spark thread's half of a run: window, waiting, watchdog
    loop.py       the loop thread of a worker process, its mailbox, and the engines
    run.py        one task: admit slices, settle keys, emit finished slices, fail, close
    lookup.py     one key from admission to outcome; the part of a slice that leaves
    policies.py   what a lookup that did not end well means for its rows
    fallback.py   fallbacks that have to be asked: runs behind a run
    queues.py     which finished slice may leave next
    apart.py      whether the keys of a slice are in no other one that is under way
    pending.py    the keys that wait for a slot: which go next, and which go together
    dispatch.py   pending keys -> calls: slots, limits
    calls.py      one call: the keys it holds, from its slot to its end
    conclude.py   what the end of a call means for each of its keys
    at_once.py    the short ways, where all its keys fare alike
    again.py      keys that are asked for once more: retries, bisection of a poisoned group
    deadlines.py  one sweeper for all deadlines
    retry.py      back-off and budget
    limits.py     rate and breaker
    cache.py      answers remembered across runs
    stats.py      what a run did
"""

from __future__ import annotations
