"""
The engine: distinct keys in, outcomes out. It knows neither Spark nor pandas.

From the Spark thread to the loop thread and back:

    bridge.py       the Spark thread's side: window, waiting, watch over the loop
    consumer.py     the consumer of the rows: few keys are asked for until it seems to want many, none once it is gone
    overlap.py      whether a slice has keys in common with another one that is under way
    loop.py         the loop thread of a worker process, its mailbox, its engines and caches
    names.py        how the event loop finds a host: a thread for each name, and all addresses of the name

One per source and worker process:

    engine.py       pending keys become calls: slots, gate, connector
    opening.py      the connector, opened by the first call and closed at the end
    limits.py       the gate (pause, outage, limit, budget, rate, quota, breaker) and the budget of retries
    allowance.py    how many calls may be in flight at a source that refuses some of them
    tuning.py       capacity="auto": how many calls may be in flight, by the latency of those that end
    pacing.py       rates by unit, and what a call costs on average
    metering.py     what one call costs: estimated before it, corrected by its answer
    quota.py        how much the source still allows, as its answers say
    job.py          the limits of the whole job: their shares, and when they fail a run
    shares.py       the part of a rate that this process has
    permits.py      the part of the job's calls in flight that this process may have
    account.py      what the job may still spend: reserved before a call, reported to the store after the call
    leases.py       the questions to the stores that hold the limits of the job
    outage.py       whether the source is away; probes; the ramp after an outage
    watchdog.py     what the sweeper does on each tick
    results.py      what the end of a call means for each of its keys
    answers.py      what answers become, and how they may break the contract of a connector
    fast_paths.py   from a call's answers to outcomes at once, if no key has to be inspected separately
    retries.py      the keys that are asked for again; the search for the bad keys of a call
    hedging.py      a second call for the keys of one that is slow
    preload.py      a source that is loaded as a whole before the first lookup
    returned.py     the keys that wait for a source or a node that is away

One per task:

    run.py          the state of one task: take keys, emit finished slices, fail, close
    admission.py    a slice enters: cached answers, lookups that are under way, new keys
    settlement.py   a key gets its outcome, which is written to all slices that wait for it
    unanswered.py   keys that get their outcome without a call
    policies.py     what rows without an answer get, and the errors that fail the task
    fallback.py     fallbacks that have to be asked
    reuse.py        the answers that a task has got, kept for its later rows
    tiers.py        sources that are asked before the run's own, and what happens when one does not answer
    write_back.py   writes what was found to the tiers, in the background
    refresh.py      keys of the cache that are asked for in the background; stale values
    pending.py      the keys that wait for a slot: which go next, and which go together
    deadlines.py    the deadlines of a run, and the timer that looks at them

The data:

    records.py      a lookup and its states; bundles of keys; a call; some rows of a slice that are returned together
    queues.py       which finished slice is returned next; the window
    cache.py        answers that later runs get too
    eviction.py     which answers are removed from the cache when there is no room
    sizes.py        how many bytes keys and values take
    stats.py        counters and latencies of a run
"""

from __future__ import annotations
