"""Checks that one call returns the right values under the keys that it was given, whatever these keys are."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...errors import ConnectorError, PermanentError
from ...interface import Answers, Failure, Keys
from ...worker.keys import encode
from .base import Fixtures
from .messages import short, told
from .source import parts_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...interface import Key
    from .source import Source

__all__ = ["AnswerChecks"]


class AnswerChecks(Fixtures):
    """The engine assigns values to rows by key, so a value that is returned under a wrong key gets into a wrong row."""

    def test_a_known_key_has_its_value(self, source: Source) -> None:
        """Look at `fetch_many` with one key: it must return the value that the source holds, under this key."""
        for key in source.keys:
            right, got = source.expected([key]), source.values(source.fetch([key]))
            assert right == got, (
                "`fetch_many` of one known key must return exactly this key and its value; it returned "
                f"{told(right, got)}. Look at how the connector asks for one key, and at what `known` says."
            )

    def test_known_keys_have_their_values_in_one_call(self, source: Source) -> None:
        """Look at how `fetch_many` assigns answers to keys: the source may answer in any order and leave out keys."""
        right, got = source.expected(source.group), source.values(source.fetch(source.group))
        assert right == got, (
            f"`fetch_many` of several known keys must return each key with its own value; it returned "
            f"{told(right, got)}. Assign answers by a key that the source returns with each value."
        )

    def test_the_order_of_the_keys_means_nothing(self, source: Source) -> None:
        """Look for `zip(keys, rows)`: it is right only if the source answers in the order of the keys."""
        shuffled = random.Random(1)  # noqa: S311  # the fixed seed gives the same order in each run
        for _ in range(5):
            keys = shuffled.sample(source.keys, len(source.keys))
            right, got = source.expected(keys), source.look_up_values(keys)
            assert right == got, (
                "`fetch_many` must return each key with its own value, in whatever order the keys are given; of "
                f"{short(keys)} it returned {told(right, got)}. Do not pair keys and answers by position, with `zip` "
                "for example: let the source return the key with each value."
            )

    def test_a_missing_key_is_absent(self, source: Source) -> None:
        """Look for None as the answer to a missing key: leave the key out. None means that the source has a null."""
        answers = source.fetch([source.missing])
        assert answers == {}, (
            f"`fetch_many` of the missing key {short(source.missing)} must return an empty mapping; it returned "
            f"{short(answers)}. Leave the key out: None would be a null that the source holds."
        )

    def test_a_missing_key_among_known_ones_is_absent(self, source: Source) -> None:
        """Look for answers that are assigned by position: a missing key must not shift the values of later keys."""
        for at in range(len(source.group)):
            keys = [*source.group[:at], source.missing, *source.group[at:]][: source.connector.max_batch_size]
            right, got = source.expected(keys), source.values(source.fetch(keys))
            assert right == got, (
                "`fetch_many` must leave out the missing key, and return the other keys with their own values; of "
                f"{short(keys)} it returned {told(right, got)}. Do not assign answers by position: a missing key has "
                "none."
            )

    def test_the_answers_are_a_mapping_of_the_keys_that_were_asked(self, source: Source) -> None:
        """Look at what `fetch_many` returns: it must be a mapping from given keys, whose types are unchanged."""
        keys = [*source.group, source.missing][: source.connector.max_batch_size]
        answers = source.fetch(keys)
        assert isinstance(answers, Mapping), (
            f"`fetch_many` must return a mapping from keys to values; it returned {short(answers)}. Return a dict, or "
            "`Answers`."
        )
        types = {key: tuple(map(type, parts_of(key))) for key in keys}
        returned = {key: tuple(map(type, parts_of(key))) for key in answers}
        other = [key for key, kinds in returned.items() if types.get(key) != kinds]
        assert returned.items() <= types.items(), (
            f"`fetch_many` must return only keys that it was given, with the same types; it was given {short(keys)}, "
            f"and returned {short([(key, *(kind.__name__ for kind in returned[key])) for key in other])}. Convert the "
            "source's form of a key back, or look the given key up by it."
        )

    def test_the_keys_are_left_as_they_were(self, source: Source) -> None:
        """Look for `keys.sort()` and `keys.pop()`: the engine still uses the sequence of keys after the call."""
        keys = list(source.group)
        source.fetch(keys)
        assert keys == source.group, (
            f"`fetch_many` must not change the sequence of keys that it is given; it made {short(keys)} of "
            f"{short(source.group)}. Change a copy: `sorted(keys)` instead of `keys.sort()`."
        )

    def test_the_keys_may_be_any_sequence(self, source: Source) -> None:
        """Look for `keys + [...]`, `keys.copy()` and clients that need a list: the engine passes a tuple, or `Keys`."""
        right, got = source.expected(source.group), source.values(source.fetch(tuple(source.group)))
        assert right == got, (
            "`fetch_many` must return the same values for a tuple of keys as for a list; for the tuple it returned "
            f"{told(right, got)}. Make a list of the keys first, with `list(keys)`, where one is needed."
        )

    def test_keys_in_columns_get_the_same_answers(self, source: Source) -> None:
        """
        Look at how the connector reads `Keys.columns`: a column may be a slice of a longer array, with an offset.

        A connector that does not set `key_columns` gets a tuple of keys instead of `Keys`.
        """
        keep = source.keys[::-1][: source.connector.max_batch_size - 1]
        for key in (None, source.missing, *source.hostile_keys()):
            keys = source.as_the_engine_passes(source.group[::-1] if key is None else [*keep, key])
            in_form, in_list = self._outcome(source, keys), self._outcome(source, list(keys))
            assert in_form == in_list, (
                f"`fetch_many` must return the same for keys as `{type(keys).__name__}`, in which the engine passes "
                f"them, as for a list; the outcome was {short(in_form)}, and for the list {short(in_list)}. Look at "
                "how `Keys.columns` are read: they may be slices, so the offset of a column counts."
            )

    def test_asking_again_gives_the_same(self, source: Source) -> None:
        """Look for state of a call that changes the next call: open cursors, exhausted iterators, remembered misses."""
        keys = [*source.keys, source.missing]
        right = source.expected(keys)
        for time in ("first", "second"):
            got = source.look_up_values(keys)
            assert right == got, (
                "`fetch_many` must return the same values when the same keys are looked up again; the "
                f"{time} time it returned {told(right, got)}. Keep no state of a call in the connector: a cursor, an "
                "iterator, a list of misses."
            )

    def test_the_answers_belong_to_the_caller(self, source: Source) -> None:
        """Look for a mapping that the connector keeps and returns again: a caller may change a result that it got."""
        answers = source.fetch(source.group)
        containers = [answers]
        if isinstance(answers, Answers):
            containers = [*answers.columns.values()] if isinstance(answers.columns, Mapping) else [answers.columns]
        for container in containers:
            if isinstance(container, dict | list):
                container.clear()
        right, got = source.expected(source.group), source.values(source.fetch(source.group))
        assert right == got, (
            "After the caller has cleared one result of `fetch_many`, the next result must still be complete; it has "
            f"{told(right, got)}. Return a new mapping from each call, or a copy of the one that is kept."
        )

    def test_a_group_may_be_as_large_as_it_says(self, source: Source) -> None:
        """Compare `max_batch_size` with the limits of client and server, such as the most parameters of a statement."""
        size = source.connector.max_batch_size
        keys = [*source.unknown_keys(size - len(source.group)), *source.group]
        answers = source.fetch(keys)
        right, values = source.expected(source.group), source.values(answers)
        assert right == {key: values.get(key) for key in source.group}, (
            f"`fetch_many` of {len(keys)} keys, as many as `max_batch_size` allows, must return the values of all "
            f"known keys; it returned {told(right, {key: values[key] for key in source.group if key in values})}. "
            "Reduce `max_batch_size`, or split the call: statements and URLs have a limit."
        )
        wrong = source.wrong(answers)
        assert not wrong, (
            f"`fetch_many` of {len(keys)} keys, as many as `max_batch_size` allows, must return no wrong value; it "
            f"returned {told(source.expected([*wrong]), wrong)}. Look at how answers are assigned to keys."
        )

    def test_a_group_that_is_too_large_is_answered_or_refused(self, source: Source) -> None:
        """Look for code that sends only the first keys of a group that is too large: the rest would look missing."""
        size = source.connector.max_batch_size + 1
        keys = [*source.unknown_keys(max(0, size - len(source.keys))), *source.keys][-size:]
        self._assert_right_or_refused(source, keys)

    def test_a_key_that_comes_twice_is_answered_or_refused(self, source: Source) -> None:
        """Look for answers that are assigned to keys by position, which goes wrong if a key comes twice in a call."""
        for key in source.keys:
            self._assert_right_or_refused(source, [key, source.keys[0], key])

    def test_an_empty_group_is_empty_or_refused(self, source: Source) -> None:
        """Look for statements that are invalid without keys, such as `IN ()`: return {} or raise a `ConnectorError`."""
        self._assert_right_or_refused(source, [])

    def test_several_matches_come_as_a_list(self, source: Source) -> None:
        """If `call.many` is set, return for each key a list of its matches, or raise a `PermanentError`."""
        keys = [*source.group, source.missing][: source.connector.max_batch_size]
        try:
            answers = source.fetch(keys, many=True)
        except PermanentError:
            return
        if all(isinstance(answers.get(key), Failure) for key in source.group):
            return
        matches = {key: answer for key, answer in answers.items() if answer not in ([], ())}
        assert all(isinstance(answer, list | tuple) and len(answer) == 1 for answer in matches.values()), (
            f"With `call.many` each known key must have a list of its one match; the answers are {short(matches)}. "
            "Return `[value]` if `call.many` is set, or raise a PermanentError if the source cannot tell all matches."
        )
        right, got = source.expected(keys), source.values({key: answer[0] for key, answer in matches.items()})
        assert right == got, (
            "With `call.many` the one match of each known key must be the key's value; it returned "
            f"{told(right, got)}. Collect the matches of a key under this key, and leave out a key without any."
        )

    def _assert_right_or_refused(self, source: Source, keys: list[Key]) -> None:
        """
        Assert that `fetch_many` answers *keys* or raises a `ConnectorError`.

        *keys* is empty, is too long, or holds a key twice. The engine never makes such a call, so an error is allowed.
        """
        try:
            answers = source.fetch(keys)
        except ConnectorError:
            return
        right = source.expected(keys)
        got = source.values({key: answer for key, answer in answers.items() if key in source.known})
        assert right.keys() == got.keys(), (
            f"`fetch_many` of {len(keys)} keys must answer all known keys of the group, or raise a ConnectorError; it "
            f"returned {told(right, got)}. A known key without an answer looks like a missing key: send all keys, or "
            "raise a PermanentError for a group that is too large, empty, or has a key twice."
        )
        wrong = source.wrong(answers)
        assert not wrong, (
            f"`fetch_many` of {short(keys)} must return no wrong value; it returned "
            f"{told(source.expected([*wrong]), wrong)}. Do not assign answers by position: a source may answer a key "
            "that comes twice only once."
        )

    def _outcome(self, source: Source, keys: Sequence[Key]) -> Any:
        """Return the result of a call in a comparable form: each answer with its key's types, or the error's class."""
        try:
            answers = source.fetch(keys)
        except Exception as error:  # noqa: BLE001  # other checks assert which exceptions are allowed
            return type(error)
        if isinstance(answers, Answers) and isinstance(answers.found, Keys):
            in_columns, _ = encode(answers.found.columns)
            assert in_columns == answers.found, (
                "`Answers.found` must hold the same keys as columns and as Python objects; its columns are "
                f"{short([*in_columns])}, its objects {short([*answers.found])}. Take both from the same rows."
            )
        return {
            key: (
                *map(type, parts_of(key)),
                (type(value.error), value.rejected) if isinstance(value, Failure) else value,
            )
            for key, value in source.values(answers).items()
        }
