"""
The engine: it gets distinct keys and returns the outcome of each key. The engine uses neither Spark nor pandas.

From the Spark thread to the loop thread and back:

    bridge.py       the Spark thread's side: limits the rows under way, waits for finished rows, watches the loop
    consumer.py     the receiver of the rows: few keys are asked for until it seems to want many, none once it is gone
    overlap.py      whether a slice (some rows of the input) has keys in common with another slice under way
    loop.py         the loop thread of a worker process, its mailbox, its engines and caches
    names.py        how the event loop connects to a host: resolves each name on its own thread, and tries all addresses

One per source in each worker process:

    engine.py       turns pending keys into calls of the connector, as far as slots and limits allow
    opening.py      the connector, opened by the first call and closed at the end
    limits.py       the gate, which holds calls back (pause, outage, limit, budget, rate, quota, breaker); retry budget
    allowance.py    how many calls may be in flight at a source that refuses some of them
    tuning.py       capacity="auto": how many calls may be in flight, computed from the latency of finished calls
    pacing.py       a rate for each unit of cost (requests, tokens ...), and what a call costs on average
    metering.py     the cost of one call: estimated before the call, corrected by its answer
    quota.py        how many more calls the source allows, according to its answers (rate-limit headers)
    job.py          the limits of the whole job: this process's shares of them, and when a limit fails a run
    shares.py       this process's share of the job's rate
    permits.py      this process's share of the calls that the job may have in flight
    account.py      what the job may still spend: a call reserves the most it can take, and its cost is reported later
    leases.py       the requests to the stores (Redis, Postgres) that hold the limits of the job
    outage.py       detects that the source is away, probes it, and raises the calls in flight in steps once it is back
    watchdog.py     what the sweeper, a periodic timer, does on each tick
    results.py      what the end of a call means for each of its keys
    answers.py      the types of the functions that decode answers, and how answers may break a connector's contract
    fast_paths.py   settles all keys of a call at once, if no key has to be inspected separately
    retries.py      the keys that are asked for again
    search.py       the search for the bad keys of a call
    hedging.py      a second call for the keys of a slow call
    preload.py      a source that is loaded as a whole before the first lookup
    returned.py     the keys that wait for a source or a node that is away

One per task:

    run.py          the state of one task: take keys, emit finished slices, fail, close
    admission.py    how a slice enters a run: its keys take cached answers, join lookups under way, or are queued
    settlement.py   gives a key its outcome, and writes the outcome to all slices that wait for the key
    unanswered.py   keys that get their outcome without a call
    policies.py     what rows without an answer get, and the errors that fail the task
    fallback.py     fallbacks that have to be asked: another source, or a function of the key
    reuse.py        the answers that a task has got, kept for its later rows
    tiers.py        sources that are asked before the run's own source, and what happens when one does not answer
    write_back.py   writes the values that were found to the tiers, in the background
    refresh.py      looks keys of the cache up again in the background; stale values
    pending.py      the keys that wait for a slot: which are asked for next, and which share a call
    deadlines.py    the deadlines of a run, and the timer that looks at them

The data:

    records.py      a lookup and its states; bundles (keys handled as one); a call; rows of a slice returned together
    queues.py       which finished slice is returned next; the window, which limits the rows under way
    cache.py        answers that later runs get too
    eviction.py     which answers are removed from the cache when there is no room
    sizes.py        how many bytes keys and values take
    stats.py        counters and latencies of a run
"""

from __future__ import annotations
