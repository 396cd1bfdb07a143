"""What a seed stands for: a source with moods, a worker process, and the tasks that it runs."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from enrichkit.options import Cache, Default, Options, Retry, default

__all__ = ["Kind", "Plan", "RunPlan", "SlicePlan", "TierPlan", "Weather", "draw", "value_of"]

STALL = 60.0
"""Seconds for which a run waits for a source that is away: the default."""


class Kind:
    """What the source does with a key: a pure function of the key, so that a wrong value cannot look right."""

    PLAIN, NULL, MISSING, APPEARING, POISONED, BROKEN, REFUSED = range(7)
    ANSWERED = (PLAIN, NULL, APPEARING)


def value_of(key: Any, kind: int) -> Any:
    """The only right value of *key*, where a key has one."""
    return None if kind == Kind.NULL else f"value of {key!r}"


@dataclass(frozen=True)
class SlicePlan:
    """One slice of rows: its keys, how many rows each has, rows without a key, and what comes before it."""

    keys: tuple[Any, ...]
    counts: tuple[int, ...]
    nulls: int
    gap: float
    barrier: bool

    @property
    def rows(self) -> int:
        return sum(self.counts) + self.nulls


@dataclass(frozen=True)
class RunPlan:
    """One task."""

    options: Options
    default_values: dict[str, Any]  # option -> its default(value) after decoding
    ordered: bool
    slices: tuple[SlicePlan, ...]
    window: int
    start: int
    close_after: int | None  # parts
    breaks_after: int | None  # slices, after which the input raises

    @property
    def rows(self) -> int:
        return sum(piece.rows for piece in self.slices)


@dataclass(frozen=True)
class Weather:
    """How the source behaves; `unit` is the time that a lookup or an attempt has."""

    unit: float
    latency: float
    instant: float
    near: float
    late: float
    never: float
    transient: float
    failing: float
    odd: float
    stubborn: float
    outage: tuple[float, float]
    absent: bool  # in the outage nobody is answered; else calls fail or hang
    full: int | None  # calls in flight at which the source refuses a further one; None: it takes all
    asks_to_wait: float | None  # seconds that it asks for with a refusal
    slow_open: float
    shaky_open: bool
    long_pause: float | None = None  # seconds that the source asks for with some failures
    stands_still: tuple[tuple[float, float], ...] = ()  # when the process does, as by SIGSTOP, and for how many seconds

    @property
    def opens_at_once(self) -> bool:
        return not self.slow_open and not self.shaky_open


@dataclass(frozen=True)
class TierPlan:
    """A source that is asked before: how it behaves, and the keys that it holds at first."""

    holds: frozenset[Any]
    capacity: int
    batch_size: int
    timeout: float
    latency: float
    never: float
    transient: float
    refused: float
    away: tuple[float, float]
    writes: bool


@dataclass(frozen=True)
class FallbackPlan:
    """Another source, which is asked for the keys of rows without an answer."""

    options: tuple[str, ...]  # the policies that name it
    holds: frozenset[Any]
    refuses: frozenset[Any]
    capacity: int
    batch_size: int
    latency: float
    away: tuple[float, float]

    def value(self, key: Any) -> str:
        """The value of *key*, which it holds."""
        return f"fallback of {key!r}"

    def outcome(self, key: Any, options: Options, default_values: dict[str, Any]) -> Any:
        """The value of a row whose lookup of *key* has failed, and whose policy names this fallback."""
        if key in self.holds:
            return self.value(key)
        then = "on_error" if key in self.refuses else "on_missing"
        return default_values[then] if isinstance(options.policy(then), Default) else None


@dataclass(frozen=True)
class Plan:
    """A story."""

    seed: int
    capacity: int
    batch_size: int
    rate: float | None
    kinds: dict[Any, int]
    weather: Weather
    runs: tuple[RunPlan, ...]
    fatal_at: int | None = None
    cache: Cache | None = None
    together: bool = False  # two tasks at a time, or one after the other on a reused worker
    neighbours: bool = False
    in_columns: bool = False  # the source gives columns
    apart: bool = False  # ordered tasks are told of most slices that are apart
    keys_in_columns: bool = False  # the source takes columns, and slices have them
    tier: TierPlan | None = None
    fallback: FallbackPlan | None = None
    listed: frozenset[Any] | None = None  # the keys that are loaded before the first lookup; None: nothing is loaded
    journal: frozenset[Any] | None = None  # the keys of which the journal holds an answer from before; None: no journal
    many: bool = False  # a value is a list of one to three matches

    def value(self, key: Any) -> Any:
        """The only right value of *key*."""
        value = value_of(key, self.kinds[key])
        return [value, *(f"match {n} of {key!r}" for n in range(len(repr(key)) % 3))] if self.many else value


def draw(seed: int) -> Plan:
    """Make the story of *seed*."""
    rng = random.Random(seed)
    capacity = rng.choice([1, 2, 3, 5, 8, 16])
    batch_size = rng.choice([1, 1, 2, 3, 7])
    timeout = rng.choice([0.1, 0.5, 0.5, 2.0, 2.0, 10.0, None])
    attempt_timeout: Any = None
    if timeout is None or rng.random() < 0.3:
        attempt_timeout = (timeout or 3.0) * rng.uniform(0.2, 0.8)
    elif random.Random(f"hedged {seed}").random() < 0.25:
        attempt_timeout = "p95"
    unit = timeout or attempt_timeout or 1.0
    calm = rng.random() < 0.1
    weather = Weather(
        unit=unit,
        latency=unit * rng.choice([0.02, 0.05, 0.2]),
        instant=rng.choice([0.0, 0.1, 0.5]),
        near=0.0 if calm else 0.03,
        late=0.0 if calm else rng.choice([0.0, 0.02, 0.1]),
        never=0.0 if calm or capacity == 1 else rng.choice([0.0, 0.0, 0.02]),
        transient=0.0 if calm else rng.choice([0.01, 0.05, 0.15, 0.5]),
        failing=0.0 if calm else rng.choice([0.0, 0.02, 0.05]),
        odd=0.0 if calm else rng.choice([0.0, 0.0, 0.02]),
        stubborn=rng.choice([0.0, 0.3, 1.0]),
        outage=(0.0, 0.0) if calm or rng.random() < 0.8 else (start := unit * rng.uniform(0, 5), start + unit * 3),
        absent=random.Random(f"absent {seed}").random() < 0.7,
        full=None,
        asks_to_wait=None,
        slow_open=unit * rng.choice([0.0, 0.0, 0.1, 0.9]),
        shaky_open=not calm and rng.random() < 0.1,
    )
    bad = random.Random(f"bad day {seed}")
    if weather.absent and bad.random() < 0.2:  # away for as long as a run waits with default options
        begin = unit * bad.uniform(0.0, 3.0)
        weather = replace(weather, outage=(begin, begin + bad.uniform(1.0, STALL - 2.0)))
    if not calm and bad.random() < 0.2:
        wait = bad.choice([None, None, 0.1 * unit, unit])
        weather = replace(weather, full=bad.randint(1, capacity), asks_to_wait=wait)
    pauses = random.Random(f"pauses {seed}")
    if not calm and pauses.random() < 0.1:
        weather = replace(weather, long_pause=pauses.uniform(1.0, STALL - 2.0))
    still = random.Random(f"stands still {seed}")
    if still.random() < 0.15:
        times = sorted(unit * still.uniform(0.0, 6.0) for _ in range(still.randint(1, 3)))
        weather = replace(weather, stands_still=tuple((time, still.uniform(1.0, 30.0)) for time in times))
    universe = [rng.choice([f"k{n}", n, (n, "part")]) for n in range(rng.randint(205, 240))]
    neighbours = random.Random(f"neighbours {seed}").random() < 0.5
    keys_in_columns = random.Random(f"keys in columns {seed}").random() < 0.75
    if neighbours:  # keys of one type, as those of a column are
        universe = list(range(len(universe)))
    elif keys_in_columns:
        universe = [f"k{n}" for n in range(len(universe))]
    odds = {Kind.NULL: 3, Kind.MISSING: 6, Kind.APPEARING: 1, Kind.REFUSED: 1, Kind.BROKEN: 1, Kind.PLAIN: 88}
    kinds = dict(zip(universe, rng.choices(list(odds), list(odds.values()), k=len(universe)), strict=True))
    for key in rng.sample(universe, rng.choice([0, 1, 3])):
        kinds[key] = Kind.POISONED
    cache = None
    if rng.random() < 0.3:
        cache = Cache(rng.choice([unit, 1000.0]), rng.choice([4096, 2**20]), rng.choice([None, 0.0, unit]))
    runs = [_draw_run(rng, universe, timeout, attempt_timeout, cache)]
    if rng.random() < 0.25:
        runs.append(_draw_run(rng, universe[:60], timeout, attempt_timeout, cache))
    apart = random.Random(f"apart {seed}")
    told = apart.random() < 0.75
    if told:
        runs = [replace(run, slices=_overlapping(apart, run.slices)) for run in runs]
    journal = _draw_journal(random.Random(f"journal {seed}"), universe, kinds)
    fallback = _draw_fallback(random.Random(f"fallback {seed}"), universe, unit)
    if fallback is not None:
        runs = [replace(run, options=_falling_back(run.options, fallback)) for run in runs]
    many = random.Random(f"many {seed}").random() < 0.15
    tier = _draw_tier(random.Random(f"tier {seed}"), universe, kinds, unit)
    if many and tier is not None:  # a tier holds one value for a key
        tier = replace(tier, writes=False)
    listed = None
    if journal is None and cache is None and (neighbours or keys_in_columns):  # keys of one type
        listed = _draw_listed(random.Random(f"listed {seed}"), universe, kinds)
    return Plan(
        seed,
        capacity,
        batch_size,
        rng.choice([None, None, None, 50.0 / unit]),
        kinds,
        weather,
        tuple(runs),
        fatal_at=rng.randrange(60) if rng.random() < 0.04 else None,
        cache=cache,
        together=rng.random() < 0.5,
        neighbours=neighbours,
        in_columns=random.Random(f"columns {seed}").random() < 0.5,
        apart=told,
        keys_in_columns=keys_in_columns,
        tier=tier,
        fallback=fallback,
        listed=listed,
        journal=journal,
        many=many,
    )


def _draw_tier(rng: random.Random, universe: list[Any], kinds: dict[Any, int], unit: float) -> TierPlan | None:
    """Draw whether there is a tier, and how it is."""
    if rng.random() < 0.8:
        return None
    share = rng.choice([0.0, 0.3, 0.9])
    begin = unit * rng.uniform(0.0, 4.0)
    return TierPlan(
        holds=frozenset(key for key in universe if kinds[key] in Kind.ANSWERED and rng.random() < share),
        capacity=rng.choice([1, 2, 8]),
        batch_size=rng.choice([1, 3, 10]),
        timeout=unit * rng.choice([0.1, 0.3]),
        latency=unit * rng.choice([0.005, 0.02]),
        never=rng.choice([0.0, 0.0, 0.05]),
        transient=rng.choice([0.0, 0.05, 0.3]),
        refused=rng.choice([0.0, 0.02]),
        away=(0.0, 0.0) if rng.random() < 0.6 else (begin, begin + 2.0 * unit),
        writes=rng.random() < 0.5,
    )


def _draw_fallback(rng: random.Random, universe: list[Any], unit: float) -> FallbackPlan | None:
    """Draw whether there is a fallback, and how it is."""
    if rng.random() < 0.8:
        return None
    share = rng.choice([0.0, 0.5, 0.9])
    holds = frozenset(key for key in universe if rng.random() < share)
    begin = unit * rng.uniform(0.0, 4.0)
    return FallbackPlan(
        options=tuple(rng.sample(["on_timeout", "on_error", "on_missing"], rng.randint(1, 3))),
        holds=holds,
        refuses=frozenset(key for key in universe if key not in holds and rng.random() < 0.2),
        capacity=rng.choice([1, 2, 8]),
        batch_size=rng.choice([1, 3, 10]),
        latency=unit * rng.choice([0.005, 0.05]),
        away=(0.0, 0.0) if rng.random() < 0.7 else (begin, begin + rng.uniform(1.0, STALL - 2.0)),
    )


def _falling_back(options: Options, fallback: FallbackPlan) -> Options:
    """Let the policies that name *fallback* have no value of their own; without details its failure fails the task."""
    return replace(options, details=True, **dict.fromkeys(fallback.options, "null"))


def _draw_listed(rng: random.Random, universe: list[Any], kinds: dict[Any, int]) -> frozenset[Any] | None:
    """Draw whether the source is loaded first, and which keys it lists."""
    share = rng.choice([None, None, None, 0.3, 0.9])
    if share is None:
        return None
    answered = (Kind.PLAIN, Kind.NULL, Kind.MISSING)  # the others would be asked of the source
    return frozenset(key for key in universe if kinds[key] in answered and rng.random() < share) or None


def _draw_journal(rng: random.Random, universe: list[Any], kinds: dict[Any, int]) -> frozenset[Any] | None:
    """Draw whether there is a journal, and of which keys an earlier run has had an answer."""
    share = rng.choice([None, None, None, 0.0, 0.1, 0.5, 1.0])
    if share is None:
        return None
    answered = (*Kind.ANSWERED, Kind.MISSING)
    return frozenset(key for key in universe if kinds[key] in answered and rng.random() < share)


def _overlapping(rng: random.Random, slices: tuple[SlicePlan, ...]) -> tuple[SlicePlan, ...]:
    """Give some of *slices* some keys of the one before, which may be under way then."""
    made: list[SlicePlan] = []
    for piece in slices:
        if made and rng.random() < 0.4:
            before = [key for key in made[-1].keys if key not in piece.keys]
            shared = tuple(rng.sample(before, min(len(before), rng.randint(1, 3))))
            piece = replace(piece, keys=piece.keys + shared, counts=piece.counts + (1,) * len(shared))
        made.append(piece)
    return tuple(made)


def _draw_run(
    rng: random.Random, universe: list[Any], timeout: float | None, attempt_timeout: Any, cache: Cache | None
) -> RunPlan:
    ordered = rng.random() < 0.5
    retry = rng.choice([None, Retry(), Retry()])
    if retry is not None and rng.random() < 0.7:
        wait = (timeout or 1.0) * rng.uniform(0.0, 0.4)
        jitter = rng.choice(["full", "none"])
        retry = Retry(rng.randint(1, 5), wait, rng.choice([1.0, 2.0]), wait * 3, jitter, rng.random() < 0.3)
    default_values = {f"on_{name}": f"decoded fallback for {name}" for name in ("timeout", "error", "missing")}
    policies: dict[str, Any] = {name: rng.choice(["null", default("raw")]) for name in default_values}
    if random.Random(f"patient {rng.random()}").random() < 0.3:  # the clocks stand still in an outage
        del policies["on_timeout"]
    others = random.Random(f"reuse {rng.random()}")
    options = Options(
        reuse=others.random() < 0.6,
        reuse_bytes=others.choice([64 * 2**20, 4096]),
        timeout=timeout,
        attempt_timeout=attempt_timeout,
        max_fallback_ratio=1.0,
        stall_timeout=STALL,
        retry=retry,
        cache=cache,
        details=rng.random() < 0.3 or "on_timeout" not in policies,
        window_bytes=rng.choice([64 * 2**20, 64 * 2**20, 2048]),
        **policies,
    )
    keys = rng.sample(universe, len(universe))
    for _ in range(rng.choice([0, 20, 60])):
        keys.insert(rng.randrange(len(keys)), rng.choice(keys))
    cuts = sorted(rng.sample(range(1, len(keys)), rng.randint(3, 14)))
    slices = []
    for start, end in zip([0, *cuts], [*cuts, len(keys)], strict=True):
        counted = Counter(keys[start:end])
        several = rng.random() < 0.3
        counts = tuple(count + (rng.randrange(3) if several else 0) for count in counted.values())
        nulls = rng.choice([0, 0, 1, 4])
        gap = rng.choice([0.0, 0.0, 0.01, 0.2, 1.0]) * (timeout or 1.0)
        slices.append(SlicePlan(tuple(counted), counts, nulls, gap, rng.random() < 0.3))
        if rng.random() < 0.1:
            slices.append(SlicePlan((), (), rng.choice([0, 2]), 0.0, False))
    window = rng.choice([20_000, 30, 80])
    close_after = rng.randrange(len(slices) if ordered else 60) if rng.random() < 0.3 else None
    breaks_after = rng.randrange(len(slices)) if rng.random() < 0.05 else None
    return RunPlan(
        options, default_values, ordered, tuple(slices), window, rng.choice([1, 16, window]), close_after, breaks_after
    )
