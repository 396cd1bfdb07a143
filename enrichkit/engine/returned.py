"""
Keys whose calls found the source, or one of its nodes, away: how they wait, and what ends their waiting.

The keys of such a call go back to the queue as if the call had never been sent: the call counts as no attempt and costs
no token of the retry budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import SourceStalledError, TransientError, UnavailableError
from ..options import Retry
from ..outcome import ERROR
from . import settlement
from .retries import ask_again_or_fail, asked_elsewhere, backoff, put_off

if TYPE_CHECKING:
    from .records import InFlight, Lookup
    from .run import Run

__all__ = ["came_back", "give_up", "put_back", "wait_for_node"]

NODE_RETRY = Retry(wait=0.5)
"""How long the keys of a node that is not available wait before they are asked for again."""


def put_back(run: Run, call: InFlight, error: TransientError) -> None:
    """
    Put the keys of *call* at the head of the queue, because the source is away; the call counts as no attempt.

    If the source has asked for a pause about as long as `timeout`, or longer, the clocks of the keys stop as well.
    """
    for lookup in call.held():
        lookup.call_ended()
    waiting = [lookup for lookup in call.held() if not lookup.settled and not asked_elsewhere(call, lookup)]
    for lookup in waiting:
        if lookup.attached:
            lookup.queued()
        else:
            lookup.returned(error)
    # The factor is 0.9 and not 1, because a part of the pause has already passed.
    if run.options.timeout is not None and run.engine.gate.pause_left(run.engine.now()) > 0.9 * run.options.timeout:
        run.stop_clocks(waiting)
    run.stats.returned += len(waiting)
    run.pending.fresh_first = True
    run.put_first(waiting, call.search)


def wait_for_node(run: Run, lacking: Sequence[tuple[Lookup, UnavailableError]]) -> None:
    """
    Ask again, after a wait, for the *lacking* keys, whose node is away while other nodes answer.

    Their last call counts as no attempt, and costs no token of the retry budget.

    Fail the run when a node has been away for longer than `stall_timeout`.
    """
    if run.closed:
        return
    now = run.engine.now()
    by_node: dict[tuple[str | None, float | None], list[Lookup]] = {}
    for lookup, error in lacking:
        if lookup.settled:
            continue
        since = now if lookup.node_away_since is None else lookup.node_away_since
        if now - since > run.options.stall_timeout:
            run.fail(
                SourceStalledError(
                    f"{run.source}: {error.node} has been away for {now - since:.0f} s while others answered. The "
                    f"last call got: {str(error).rstrip('.')}. Mend it, or raise stall_timeout "
                    f"({run.options.stall_timeout:g} s)."
                )
            )
            return
        lookup.returned(error, since)
        by_node.setdefault((error.node, error.retry_after), []).append(lookup)
    for (_, retry_after), group in by_node.items():
        run.stats.returned += len(group)
        run.stop_clocks(group)
        run.engine.later(run, backoff(NODE_RETRY, 1, retry_after, run.rng, run.options.stall_timeout), group)


def came_back(run: Run, since: float, now: float, blamed: Sequence[Lookup], *, counted: bool) -> None:
    """
    Let *run* go on after it has waited for its source from *since* until *now*.

    Args:
        run: A run that the engine served during that time.
        since: Loop time at which the outage began.
        now: Loop time.
        blamed: The lookups that failed through their own fault; there are none if the source was really away.
        counted: Whether the statistics count the time as an outage.
    """
    run.pending.fresh_first = False
    if blamed:
        _blame(run, set(blamed))
    elif run.patient:
        run.deadlines.stand_still(since, now)
    if counted:
        run.stats.outages += 1
        run.stats.away += now - max(since, run.began)


def _blame(run: Run, suspects: set[Lookup]) -> None:
    """
    Take *suspects* out of the queue, to which they were returned in the belief that the source was away.

    Keys that the source has refused are asked for again after a wait, if `put_off` allows it. All other keys have used
    up an attempt, and are asked for again after a back-off if they have attempts left.
    """
    for group, search in run.pending.take_urgent():
        run.put_first([lookup for lookup in group if lookup not in suspects], search)
        blamed = [lookup for lookup in group if lookup in suspects and not lookup.settled]
        refused = [(lookup, lookup.error) for lookup in blamed if isinstance(lookup.error, UnavailableError)]
        failed = [lookup for lookup in blamed if not isinstance(lookup.error, UnavailableError)]
        failed += put_off(run, refused, None)
        for lookup in failed:
            lookup.blamed()
        ask_again_or_fail(run, failed, None)
    run.flush()


def give_up(run: Run, since: float, now: float) -> bool:
    """
    Settle with an error the keys that have failed in the outage, and let the run wait for the source once more.

    The source has been away since the loop time *since*; the run may wait for another `stall_timeout` from *now* on.

    Returns:
        Whether the run waits once more. If `on_error` is `fail`, or if the run has given up keys of this outage before,
        nothing is done, and the result is False.
    """
    if run.options.policy("on_error") == "fail" or run.gave_up == since:
        return False
    run.gave_up, run.patient_since = since, now
    for group, search in run.pending.take_urgent():
        for lookup in group:
            if lookup.error is not None and not (lookup.settled or run.closed):
                settlement.settle(run, lookup, ERROR, error=lookup.error)
        # The lookups that have no outcome now had no error. They are misses that are asked for once more, so keep them
        # queued.
        run.put_first([lookup for lookup in group if not lookup.settled], search)
    run.flush()
    return True
