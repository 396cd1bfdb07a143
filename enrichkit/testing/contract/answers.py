"""Checks of what one call returns: the right values, under the very keys that were asked, whatever these are."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...connector import Answers, Failure, Keys
from ...errors import ConnectorError, FatalError, PermanentError, TransientError
from ...keys import encode
from .base import Fixtures
from .source import parts_of, unlike

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...connector import Key
    from .source import Source

__all__ = ["AnswerChecks"]


class AnswerChecks(Fixtures):
    """A value lands on its row by its key, so a wrong key, or a value under another one, is a wrong row."""

    def test_a_known_key_has_its_value(self, source: Source) -> None:
        """Look at `fetch_many` with one key: its value, as the source holds it, under that key."""
        for key in source.keys:
            assert source.expected([key]) == source.values(source.fetch([key]))

    def test_known_keys_have_their_values_in_one_call(self, source: Source) -> None:
        """Look at how answers are put under their keys; the source may give them in any order, or some of them."""
        assert source.expected(source.group) == source.values(source.fetch(source.group))

    def test_the_order_of_the_keys_means_nothing(self, source: Source) -> None:
        """Look for `zip(keys, rows)`: only a source that answers in the order of the question allows it."""
        shuffled = random.Random(1)  # noqa: S311  # the same order in each run
        for _ in range(5):
            keys = shuffled.sample(source.keys, len(source.keys))
            assert source.expected(keys) == source.look_up_values(keys)

    def test_a_missing_key_is_absent(self, source: Source) -> None:
        """Look at what is returned for a key without a row: None would be a null that the source holds."""
        assert source.fetch([source.missing]) == {}

    def test_a_missing_key_among_known_ones_is_absent(self, source: Source) -> None:
        """Look for answers counted from the front: a miss must not shift the values of the keys after it."""
        for at in range(len(source.group)):
            keys = [*source.group[:at], source.missing, *source.group[at:]][: source.connector.max_batch_size]
            assert source.expected(keys) == source.values(source.fetch(keys))

    def test_the_answers_are_a_mapping_of_the_keys_that_were_asked(self, source: Source) -> None:
        """Look at what `fetch_many` returns: a mapping, its keys equal to those given and of their types."""
        keys = [*source.group, source.missing][: source.connector.max_batch_size]
        answers = source.fetch(keys)
        assert isinstance(answers, Mapping)
        asked = {key: tuple(map(type, parts_of(key))) for key in keys}
        assert {key: tuple(map(type, parts_of(key))) for key in answers}.items() <= asked.items()

    def test_the_keys_are_left_as_they_were(self, source: Source) -> None:
        """Look for `keys.sort()` and `keys.pop()`: the engine goes on using what it has given."""
        keys = list(source.group)
        source.fetch(keys)
        assert keys == source.group

    def test_the_keys_may_be_any_sequence(self, source: Source) -> None:
        """Look for `keys + [...]`, `keys.copy()` and drivers that want a list: the engine gives a tuple, or `Keys`."""
        assert source.expected(source.group) == source.values(source.fetch(tuple(source.group)))

    def test_keys_in_columns_get_the_same_answers(self, source: Source) -> None:
        """Look at what is read from `Keys.columns`, parts of longer arrays; without `key_columns` it is a tuple."""
        keep = source.keys[::-1][: source.connector.max_batch_size - 1]
        for key in (None, source.missing, *source.hostile()):
            keys = source.as_the_engine_gives(source.group[::-1] if key is None else [*keep, key])
            assert self._outcome(source, keys) == self._outcome(source, list(keys))

    def test_asking_again_gives_the_same(self, source: Source) -> None:
        """Look for state that a call leaves in the connector: cursors, used-up iterators, remembered misses."""
        keys = [*source.keys, source.missing]
        assert source.look_up_values(keys) == source.look_up_values(keys) == source.expected(keys)

    def test_the_answers_belong_to_the_caller(self, source: Source) -> None:
        """Look for a mapping that the connector keeps: what is done to an answer must not reach the next one."""
        answers = source.fetch(source.group)
        held = [answers]
        if isinstance(answers, Answers):
            held = [*answers.columns.values()] if isinstance(answers.columns, Mapping) else [answers.columns]
        for each in held:
            if isinstance(each, dict | list):
                each.clear()
        assert source.expected(source.group) == source.values(source.fetch(source.group))

    def test_a_group_may_be_as_large_as_it_says(self, source: Source) -> None:
        """Look at the limits of driver and server (parameters of a statement, length of a URL) and `max_batch_size`."""
        size = source.connector.max_batch_size
        keys = [*source.strangers(size - len(source.group)), *source.group]
        answers = source.fetch(keys)
        assert source.expected(source.group) == {key: source.values(answers).get(key) for key in source.group}
        assert not source.wrong(answers)

    def test_a_group_that_is_too_large_is_answered_or_refused(self, source: Source) -> None:
        """Look for an answer that is cut off: a key that was not asked must not look like a miss."""
        size = source.connector.max_batch_size + 1
        keys = [*source.strangers(max(0, size - len(source.keys))), *source.keys][-size:]
        self._right_or_refused(source, keys)

    def test_a_key_that_comes_twice_is_answered_or_refused(self, source: Source) -> None:
        """Look for answers counted by position: the engine asks no key twice in a call, others may."""
        for key in source.keys:
            self._right_or_refused(source, [key, source.keys[0], key])

    def test_an_empty_group_is_empty_or_refused(self, source: Source) -> None:
        """Look for statements that have no empty form, such as `IN ()`: return {} or raise a `ConnectorError`."""
        self._right_or_refused(source, [])

    def test_several_matches_come_as_a_list(self, source: Source) -> None:
        """Look at `call.many`: a value is a list then, one element per match; a source of single values refuses it."""
        keys = [*source.group, source.missing][: source.connector.max_batch_size]
        try:
            answers = source.fetch(keys, many=True)
        except PermanentError:
            return
        if all(isinstance(answers.get(key), Failure) for key in source.group):
            return
        found = {key: answer for key, answer in answers.items() if answer not in ([], ())}
        assert all(isinstance(answer, list | tuple) and len(answer) == 1 for answer in found.values()), found
        assert source.expected(keys) == source.values({key: answer[0] for key, answer in found.items()})

    def test_a_hostile_key_is_data(self, source: Source) -> None:
        """Look at how keys get into statements, addresses and commands: as parameters, or encoded, never as text."""
        for key in source.hostile():
            assert not source.wrong(self._harmless(source, [key])), "A hostile key was given a known value."
        assert source.expected(source.keys) == source.look_up_values(source.keys), "The source is not what it was."

    def test_a_hostile_key_harms_no_other(self, source: Source) -> None:
        """Look at `Failure`: a key that the source cannot take is its own failure, or at least a `PermanentError`."""
        keep = source.keys[: source.connector.max_batch_size - 1]
        for key in source.hostile():
            answers = self._harmless(source, [*keep, key])
            assert not source.wrong(answers)
            assert not answers or source.expected(keep) == {k: source.values(answers).get(k) for k in keep}

    def test_a_key_of_another_type_harms_no_other(self, source: Source) -> None:
        """Look at what the driver does with a value of another type than the key's: it may be anything in a column."""
        for key in unlike(source.missing):
            assert not source.wrong(self._harmless(source, [key]))
        assert source.expected(source.keys) == source.look_up_values(source.keys)

    def test_no_message_holds_a_key(self, source: Source) -> None:
        """Look at the texts of the errors: keys are data about people, and messages end up in logs."""
        for key in (*source.hostile(), *unlike(source.missing)):
            try:
                answers = source.fetch([key])
                texts = [str(answer.error) for answer in answers.values() if isinstance(answer, Failure)]
            except ConnectorError as error:
                texts = [str(error)]
            except Exception:  # noqa: BLE001, S112  # of which the engine shows only the class
                continue
            shown = [str(part) for part in parts_of(key) if len(str(part)) > 4]
            assert not [text for text in texts for part in shown if part in text]

    def _right_or_refused(self, source: Source, keys: list[Key]) -> None:
        """A group that the engine does not make: all of it is answered, or the call is refused with our own error."""
        try:
            answers = source.fetch(keys)
        except ConnectorError:
            return
        assert source.expected(keys).keys() == answers.keys() & source.known.keys(), "A known key looks like a miss."
        assert not source.wrong(answers)

    def _harmless(self, source: Source, keys: list[Key]) -> dict[Key, Any]:
        """Return the answers to *keys*; none when the engine would bisect."""
        try:
            answers = source.fetch(keys)
        except (FatalError, TransientError) as error:
            raise AssertionError(
                f"A key made the call fail with a {type(error).__name__}; it may not: a FatalError fails the task, "
                f"and a TransientError is repeated. Return a Failure for this key: {error}"
            ) from error
        except PermanentError:
            return {}
        assert answers.keys() <= set(keys)
        for answer in answers.values():
            assert not (isinstance(answer, Failure) and isinstance(answer.error, TransientError | FatalError)), answer
        return dict(answers)

    def _outcome(self, source: Source, keys: Sequence[Key]) -> Any:
        """Return what a call comes to, so that it can be compared: each answer and the types of its key."""
        try:
            answers = source.fetch(keys)
        except Exception as error:  # noqa: BLE001  # of any kind: other checks say which may be
            return type(error)
        if isinstance(answers, Answers) and isinstance(answers.found, Keys):
            in_columns, _ = encode(answers.found.columns)
            assert in_columns == answers.found, "The columns of the keys that were found are others than their objects."
        return {
            key: (
                *map(type, parts_of(key)),
                (type(value.error), value.rejected) if isinstance(value, Failure) else value,
            )
            for key, value in source.values(answers).items()
        }
