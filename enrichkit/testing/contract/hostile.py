"""Checks that keys which are meant to do harm, or which have an unexpected type, do not affect other keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...errors import ConnectorError, FatalError, PermanentError, TransientError
from ...interface import Failure
from .base import Fixtures
from .messages import short, told
from .source import keys_of_other_types, parts_of

if TYPE_CHECKING:
    from ...interface import Key
    from .source import Source

__all__ = ["HostileKeyChecks"]


class HostileKeyChecks(Fixtures):
    """Keys come from a column that anybody may have filled, so any key can be any text."""

    def test_a_hostile_key_is_data(self, source: Source) -> None:
        """Look at how your connector puts keys into statements, addresses and commands: it must encode every key."""
        for key in source.hostile_keys():
            wrong = source.wrong(self._harmless(source, [key]))
            assert not wrong, (
                f"A hostile key must have no value of another key; `fetch_many` returned {told({}, wrong)}. Pass keys "
                "as parameters of a statement, or encode them: as text they can be patterns, paths or code."
            )
        right, got = source.expected(source.keys), source.look_up_values(source.keys)
        assert right == got, (
            "After lookups of hostile keys the source must still hold the values that it held before; `fetch_many` "
            f"returned {told(right, got)}. Pass keys as parameters of a statement, or encode them: one of these keys "
            "was run as a command, or broke the connection for later calls."
        )

    def test_a_hostile_key_harms_no_other(self, source: Source) -> None:
        """Look at keys that the source cannot take: return a `Failure` for each, or at least raise `PermanentError`."""
        keep = source.keys[: source.connector.max_batch_size - 1]
        for key in source.hostile_keys():
            answers = self._harmless(source, [*keep, key])
            wrong = source.wrong(answers)
            assert not wrong, (
                f"In a call with the hostile key {short(key)}, no key may get a wrong value; `fetch_many` returned "
                f"{told(source.expected([*wrong]), wrong)}. Encode keys, and do not assign answers by position."
            )
            right, values = source.expected(keep), source.values(answers)
            assert not answers or right == {k: values.get(k) for k in keep}, (
                f"In a call with the hostile key {short(key)}, all known keys must get their own values; `fetch_many` "
                f"returned {told(right, {k: values[k] for k in keep if k in values})}. Return a Failure for the "
                "hostile key alone, or raise a PermanentError: the engine then asks for the others without it."
            )

    def test_a_key_of_another_type_harms_no_other(self, source: Source) -> None:
        """Look at what the client package does with a key of a wrong type: a column of keys can have any type."""
        for key in keys_of_other_types(source.missing):
            wrong = source.wrong(self._harmless(source, [key]))
            assert not wrong, (
                f"A key of a wrong type must have no value of another key; `fetch_many` returned {told({}, wrong)}. "
                "Refuse keys of other types: a conversion makes different keys equal."
            )
        right, got = source.expected(source.keys), source.look_up_values(source.keys)
        assert right == got, (
            "After lookups of keys of a wrong type, known keys must still get their own values; `fetch_many` returned "
            f"{told(right, got)}. Look at the connection after such a key: is an answer unread, or a transaction open?"
        )

    def test_no_message_holds_a_key(self, source: Source) -> None:
        """Look at the error messages: they get into logs and must not quote a key, which may be personal data."""
        for key in (*source.hostile_keys(), *keys_of_other_types(source.missing)):
            try:
                answers = source.fetch([key])
                texts = [str(answer.error) for answer in answers.values() if isinstance(answer, Failure)]
            except ConnectorError as error:
                texts = [str(error)]
            except Exception:  # noqa: BLE001, S112  # the engine shows only the exception's class
                continue
            shown = [str(part) for part in parts_of(key) if len(str(part)) > 4]
            revealing = [text for text in texts for part in shown if part in text]
            assert not revealing, (
                f"The connector's error messages must not hold a key; this one has the key {short(key)}: "
                f"{short(revealing[0])}. Say what is wrong with the key without quoting it, and do not pass on a text "
                "of the client package."
            )

    def _harmless(self, source: Source, keys: list[Key]) -> dict[Key, Any]:
        """Return the answers for *keys*, or {} after a `PermanentError`, because the engine then splits the call."""
        try:
            answers = source.fetch(keys)
        except (FatalError, TransientError) as error:
            raise AssertionError(
                f"One of the keys {short(keys)} made the call fail with a {type(error).__name__}. It must not: a "
                "FatalError fails the task, and the engine repeats the call after a TransientError. Return a Failure "
                f"for this key: {error}"
            ) from error
        except PermanentError:
            return {}
        assert answers.keys() <= set(keys), (
            f"`fetch_many` must return only keys that it was given; it was given {short(keys)}, and returned answers "
            f"for {short([*(answers.keys() - set(keys))])}. Return each answer under the key as it was given."
        )
        for answer in answers.values():
            assert not (isinstance(answer, Failure) and isinstance(answer.error, TransientError | FatalError)), (
                f"The Failure of a bad key must hold a PermanentError, because a retry does not help; among the "
                f"answers for {short(keys)} is {short(answer)}. Look at which class the exception of the client "
                "package for a bad key is translated to."
            )
        return dict(answers)
