"""
How a slice (some rows of the input) enters a run (the lookups of one task): each key of the slice takes a known answer,
waits for a lookup of the same key, or is queued.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

from ..interface import Keys
from ..outcome import MISSING, OK
from . import settlement
from .cache import ABSENT, MISS
from .records import Bundle, Lookup, Part

if TYPE_CHECKING:
    from ..outcome import Outcomes
    from .cache import Stage
    from .run import Run

_COUNTERS = {"preload": "preloaded", "reuse": "reused", "journal": "journaled", "cache": "cached"}
MARK = type(ABSENT)
"""The type of `ABSENT` and `MISS`."""

__all__ = ["admit", "admit_keys", "ask_source", "attach", "index_all"]


def admit(run: Run, outcomes: Outcomes) -> None:
    """Admit the slice *outcomes* to *run*: at once, or after the load, if the source is first loaded as a whole."""
    if run.closed:
        return
    if run.until_loaded is not None:
        run.until_loaded.append(partial(admit, run, outcomes))
        return
    _enter(run, outcomes)
    run.flush()
    if not run.closed:
        run.emit_ready()  # rows with a null key are ready at once


def _enter(run: Run, outcomes: Outcomes) -> None:
    """Give the slice *outcomes* a place in the queue, mark its rows with a null key as ready, and admit its keys."""
    outcomes.ticket = run.queue.put(outcomes)
    outcomes.admitted = run.engine.now()
    keys = outcomes.keys
    run.stats.rows += outcomes.rows
    run.stats.keys += len(keys)
    if not run.ordered:
        assert outcomes.counts is not None, "an unordered run needs the number of rows of each key"
        nulls = outcomes.rows - sum(outcomes.counts)
        if nulls or not keys:
            run.queue.ready(outcomes.ticket, Part(outcomes, [], nulls, 0), last=not keys)
    elif not keys:
        run.queue.ready(outcomes.ticket, Part(outcomes, None, outcomes.rows, 0))
    absent: Sequence[int] = range(len(keys))
    for stage in run.stages:
        if absent and stage.active:
            absent = _take_known(run, outcomes, stage, absent)
        elif absent:
            stage.watch(keys)
    if absent and run.serves_stale and run.engine.gate.outage.since is not None:
        absent = _take_stale(run, outcomes, absent)
    run.remembers = bool(run.writers) or any(stage.active for stage in run.stages)
    if not absent or run.closed:  # a stage that could not be asked may have failed the task, which closes the run
        return
    if run.tiers:
        # The tiers may pass on keys of a later slice before the keys of this slice. So these keys have to be compared
        # with the keys that are asked for already, even if no earlier slice has any of them.
        outcomes.apart = False
        run.tiers[0].ask(outcomes, absent)
    else:
        admit_keys(run, outcomes, absent)


def _take_known(run: Run, outcomes: Outcomes, stage: Stage, indices: Sequence[int]) -> Sequence[int]:
    """Settle the keys at *indices* that *stage*, e.g. the cache, has answers for; return the other keys' indices."""
    keys = outcomes.keys.objects() if isinstance(outcomes.keys, Keys) else outcomes.keys
    asked = keys if len(indices) == len(keys) else [keys[index] for index in indices]
    found = stage.get_many(asked, run.engine.now())
    if run.refresher is not None and stage is run.cache:
        run.refresher.refresh(asked)
    hits, missed, absent = indices, [], []
    # `all` takes 4 ns for each value; making the set of types takes 13 ns. So the set is made only if a value is false:
    # a false value may be a mark (`ABSENT` or `MISS`), but also an empty value, a zero or a null.
    if not all(found) and MARK in (kinds := set(map(type, found))):
        if len(kinds) == 1 and found.count(ABSENT) == len(found):
            return indices
        absent = [index for index, value in zip(indices, found, strict=True) if value is ABSENT]
        missed = [index for index, value in zip(indices, found, strict=True) if value is MISS]
        known = [(index, value) for index, value in zip(indices, found, strict=True) if type(value) is not MARK]
        hits, found = [index for index, _ in known], [value for _, value in known]
    counter = _COUNTERS[stage.origin]
    setattr(run.stats, counter, getattr(run.stats, counter) + len(hits) + len(missed))
    if stage is not run.stages[0]:
        _tell_earlier(run, stage, [keys[index] for index in (*hits, *missed)], [*found, *[MISS] * len(missed)])
    run.stats.ok += len(hits)
    if hits:
        statuses = bytes([OK]) * len(hits)
        settlement.record(run, outcomes, hits, found, statuses, 0, 0, 0.0, {OK: stage.origin})
    for index in missed:
        settlement.settle(run, Lookup(keys[index], outcomes, index), MISSING, origin=stage.origin)
    return absent


def _take_stale(run: Run, outcomes: Outcomes, indices: Sequence[int]) -> Sequence[int]:
    """
    Settle the keys at *indices* that have expired values with these values, because the source is away.

    Return the indices of the other keys.
    """
    keys = outcomes.keys.objects() if isinstance(outcomes.keys, Keys) else outcomes.keys
    known = run.old_values([keys[index] for index in indices])
    hits = [index for index in indices if keys[index] in known]
    if not hits:
        return indices
    run.stats.stale += len(hits)
    run.stats.ok += len(hits)
    values, statuses = [known[keys[index]] for index in hits], bytes([OK]) * len(hits)
    settlement.record(run, outcomes, hits, values, statuses, 0, 0, 0.0, {OK: "stale"})
    run.ask_in_background(known)
    return [index for index in indices if keys[index] not in known]


def _tell_earlier(run: Run, stage: Stage, keys: Sequence[Any], values: Sequence[Any]) -> None:
    """Let the stages before *stage* store the *values* that it found, so that later they answer for these *keys*."""
    for earlier in run.stages:
        if earlier is stage:
            return
        if earlier.active:
            earlier.put_many(keys, values, run.engine.now())


def ask_source(run: Run, outcomes: Outcomes, indices: Sequence[int], spent: float) -> None:
    """Queue the keys of *outcomes* at *indices*, for which the tiers took *spent* seconds and found no answer."""
    outcomes.spent = spent
    admit_keys(run, outcomes, indices)


def admit_keys(run: Run, outcomes: Outcomes, indices: Sequence[int]) -> None:
    """Queue the keys of *outcomes* at *indices*; a key that a lookup or call already asks for waits for that answer."""
    keys, table, size = outcomes.keys, run.table, run.batch_size
    if len(indices) < len(keys):
        every = list(keys)
        keys = [every[index] for index in indices]
    if run.unindexed and not outcomes.apart:
        index_all(run)
    if run.draining or (size == 1 and not table.keys().isdisjoint(keys)):
        new = [pair for pair in zip(keys, indices, strict=True) if _is_new(run, pair[0], outcomes, pair[1])]
        keys, indices = [key for key, _ in new], [index for _, index in new]
    if size == 1:  # each key has a call of its own, so bundles would gain nothing
        lookups = list(map(Lookup, keys, repeat(outcomes), indices))
        if run.tiers:
            for lookup in lookups:
                lookup.spent = outcomes.spent
        table.update(zip(keys, lookups, strict=True))
        run.pending.add(lookups)
    else:
        _add_bundles(run, outcomes, keys if isinstance(keys, list | Keys) else list(keys), indices)
    run.engine.wake()


def _add_bundles(run: Run, outcomes: Outcomes, keys: Sequence[Any], indices: Sequence[int]) -> None:
    """Queue *keys* in bundles that fit one call each, or in one bundle if neighboring keys are asked for together."""
    size = run.batch_size
    if run.pending.neighbours:
        size = max(size, len(keys))
    for start in range(0, len(keys), size):
        end = start + size
        bundle = Bundle(run.table, outcomes, keys[start:end], indices[start:end])
        bundle.spent = outcomes.spent
        if outcomes.apart:
            run.unindexed = True
        else:
            run.stats.shared += bundle.enter()
        if bundle.keys:
            run.pending.add_bundle(bundle)


def index_all(run: Run) -> None:
    """Enter the bundles that the run's table lacks, so that later slices find which keys are already asked for."""
    asked = (bundle for call in run.in_flight() for bundle in call.bundles)
    for bundle in chain(run.pending.bundles(), asked):
        if not bundle.entered:
            bundle.enter()
    run.unindexed = False


def _is_new(run: Run, key: Any, outcomes: Outcomes, index: int) -> bool:
    """Return whether *key* has to be queued; if not, let it wait for the lookup or call that already asks for it."""
    found = run.table.get(key)
    if found is not None:
        run.stats.shared += 1
        found.wait(key, outcomes, index)
        return False
    if key in run.draining:
        run.table[key] = lookup = Lookup(key, outcomes, index)
        attach(run, lookup)
        return False
    return True


def attach(run: Run, lookup: Lookup) -> None:
    """
    Let *lookup* wait for the call of an earlier lookup of the same key.

    The earlier lookup has timed out, but its call still runs.
    """
    lookup.joined(run.draining[lookup.key])
    run.deadlines.start([lookup], run.engine.now())
