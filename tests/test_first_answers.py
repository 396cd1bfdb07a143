"""The first answers of a task are compared with the declared fields."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from enrichkit_http import HttpConfig
from pyspark.sql.types import StringType, StructField, StructType

from enrichkit.driver.pickling import pack
from enrichkit.driver.planner import make_plan
from enrichkit.errors import ConfigError, PermanentError
from enrichkit.interface import Absent, Answers, Failure
from enrichkit.values.first_answers import ENOUGH, FirstAnswers
from enrichkit.worker.entry import arrow_batches

if TYPE_CHECKING:
    from enrichkit import local

TEXT, INT = pa.string(), pa.int32()


def struct(**fields: Any) -> Any:
    return pa.struct(list(fields.items()))


def looking_for(data_type: Any, encoding: str = "python", enrichment: str | None = None) -> FirstAnswers:
    return FirstAnswers("users", data_type, encoding, enrichment or str(uuid.uuid4()))


def keyed(answers: Sequence[Any]) -> dict[int, Any]:
    return dict(enumerate(answers))


def message(first: FirstAnswers, answers: Sequence[Any]) -> str | None:
    """Return what is said of *answers*, one in each call, and at the end of the task."""
    for number, answer in enumerate(answers):
        error = first.see({number: answer})
        if error is not None:
            return str(error)
        if first.done:
            return None
    error = first.verdict()
    return None if error is None else str(error)


def path_ending_at(*names: str) -> Absent:
    return Absent("data.profil", lambda: names)


@pytest.mark.parametrize("encoding", ["python", "json"])
@pytest.mark.parametrize(
    ("count", "which"), [(100, "the first 20 answers of this task"), (3, "the answers of this task (3 in all)")]
)
def test_a_field_that_no_answer_has_is_named_with_those_that_they_have(encoding: str, count: int, which: str) -> None:
    encode: Callable[[Any], Any] = (
        (lambda value: value) if encoding == "python" else (lambda value: json.dumps(value).encode())
    )
    answers = [encode({"name": "Ann", "tier": n}) for n in range(count)]
    assert message(looking_for(struct(name=TEXT, tiers=INT), encoding), answers) == (
        f"users: none of {which} has the declared field 'tiers', so it would be null in every row. "
        "Did you mean 'tier'? They have 'name', 'tier'. Correct returns=, or set absent_fields='null' if that is right."
    )


def test_several_fields_that_no_answer_has_are_all_named() -> None:
    assert message(looking_for(struct(id=INT, nombre=TEXT, edad=INT)), [{"id": 1, "name": "Ann"}] * 20) == (
        "users: none of the first 20 answers of this task has the declared fields 'nombre' and 'edad', so they would "
        "be null in every row. Did you mean 'name'? They have 'id', 'name'. Correct returns=, or set "
        "absent_fields='null' if that is right."
    )


def test_a_field_inside_a_struct_or_a_list_has_its_way_in_the_message() -> None:
    answers = [{"user": {"nam": "Ann"}, "orders": [{"sum": 1}, {"sum": 2}]}] * 20
    assert message(looking_for(struct(user=struct(name=TEXT), orders=pa.list_(struct(total=INT)))), answers) == (
        "users: none of the first 20 answers of this task has the declared field 'user.name', so it would be null in "
        "every row. Did you mean 'nam'? They have 'nam'. "
        "Correct returns=, or set absent_fields='null' if that is right."
    )
    text = message(looking_for(struct(orders=pa.list_(struct(total=INT)))), answers)
    assert text is not None
    assert text.startswith("users: none of the first 20 answers of this task has the declared field 'orders.total', ")


def test_a_field_that_one_of_the_first_answers_has_is_no_mistake() -> None:
    answers = [{"name": "Ann"}] * 19 + [{"name": "Bob", "nickname": None}]
    assert message(looking_for(struct(name=TEXT, nickname=TEXT)), answers) is None


def test_a_field_whose_object_some_answers_lack_is_no_mistake() -> None:
    answers = [{"name": "Ann"}, {"name": "Bob", "address": {"city": "Oslo"}}] * 10
    assert message(looking_for(struct(name=TEXT, address=struct(city=TEXT, zip=TEXT))), answers) is None


def test_a_field_that_another_task_of_the_process_has_seen_is_not_looked_for_again() -> None:
    name = str(uuid.uuid4())
    assert message(looking_for(struct(a=INT, b=INT), enrichment=name), [{"a": 1, "b": 2}]) is None
    assert message(looking_for(struct(a=INT, b=INT), enrichment=name), [{"a": 1}] * 50) is None
    assert message(looking_for(struct(a=INT, b=INT)), [{"a": 1}] * 50) is not None


@pytest.mark.parametrize(
    ("data_type", "encoding", "answer"),
    [
        (TEXT, "json", b'{"name": "Ann"}'),
        (pa.map_(TEXT, TEXT), "python", {"name": "Ann"}),
        (struct(name=TEXT, tier=INT), "json", b"null"),
        (struct(name=TEXT, tier=INT), "json", b"not JSON"),
        (struct(name=TEXT, tier=INT), "python", None),
        (struct(name=TEXT, tier=INT), "python", 7),
        (struct(name=TEXT, tier=INT), "text", {"name": b"Ann"}),
        (struct(name=TEXT, tier=INT), "python", Failure(PermanentError("refused"))),
        (pa.list_(TEXT), "python", ["a", "b"]),
    ],
)
def test_what_has_no_fields_is_not_judged(data_type: Any, encoding: str, answer: Any) -> None:
    assert message(looking_for(data_type, encoding), [answer] * 1000) is None


def test_answers_in_columns_have_been_asked_for_by_name() -> None:
    first = looking_for(struct(name=TEXT, tier=INT))
    assert first.see(Answers([1, 2], {"name": ["Ann", "Bob"]})) is None
    assert first.done


def test_documents_in_a_column_are_looked_at() -> None:
    error = looking_for(struct(nam=TEXT), "json").see(Answers(list(range(30)), [b'{"name": "Ann"}'] * 30))
    assert "the declared field 'nam'" in str(error)


def test_each_match_of_a_key_is_an_answer() -> None:
    first = looking_for(struct(name=TEXT, tiers=INT))
    assert "the declared field 'tiers'" in str(first.see({1: [{"name": "Ann", "tier": 1}] * ENOUGH}))


@pytest.mark.parametrize(
    ("count", "which"), [(100, "the first 20 answers of this task"), (2, "the answers of this task (2 in all)")]
)
def test_a_path_that_leads_nowhere_is_named_with_the_fields_where_it_ends(count: int, which: str) -> None:
    assert message(looking_for(TEXT, "text"), [path_ending_at("profile", "id")] * count) == (
        f"users: none of {which} has a value at 'data.profil', so every key would be missing. Did you mean 'profile'? "
        "Where the path ends they have 'profile', 'id'. Correct the path in the config, or set absent_fields='null' if "
        "that is right."
    )


def test_a_path_that_leads_to_one_value_is_no_mistake() -> None:
    assert message(looking_for(TEXT, "text"), [path_ending_at("id")] * 19 + ["Ann"]) is None


def test_a_null_on_the_way_tells_nothing() -> None:
    assert message(looking_for(TEXT, "text"), [Absent("data.profile", lambda: None)] * 100) is None


def test_very_many_fields_are_cut_in_the_message() -> None:
    answer = {f"field {n}": n for n in range(50)} | {"x" * 100: 1}
    text = message(looking_for(struct(y=INT)), [answer])
    assert text is not None
    assert "'field 18', 'field 19' and more. Correct returns=" in text


def test_one_value_ends_the_check_if_no_fields_are_declared() -> None:
    first = looking_for(TEXT, "text")
    first.see({1: path_ending_at("id")})
    assert not first.done, "the path may still be wrong"
    first.see({2: "Ann"})
    assert first.done


def test_a_source_whose_answers_are_no_objects_is_not_looked_at_for_ever() -> None:
    first = looking_for(struct(name=TEXT))
    first.see(keyed([7] * 20))
    calls = 1
    while not first.done:
        first.see(keyed([7] * 20))
        calls += 1
    assert calls == 10


# --- a job that takes a few rows of a task, through the worker without Spark


def rows_of(answers: Sequence[dict[str, Any]], rows: int, http_service: local.HttpService) -> Iterator[dict[str, Any]]:
    """Look up *rows* keys, of which the first have *answers* and the others are unknown; yield rows as they leave."""
    documents = {f"k{number}": answer for number, answer in enumerate(answers)}
    http_service.seed(documents)
    config = HttpConfig(url=f"{http_service.url}/{uuid.uuid4().int}/{{}}", missing=(404,))
    fields = StructType([StructField("name", StringType()), StructField("town", StringType())])
    plan, _ = make_plan(config, 1, fields, {})
    keys = [f"k{number}" if number < len(answers) else f"missing{number}" for number in range(rows)]
    for array in arrow_batches(pack(plan), [pa.array(keys)]):
        yield from array.to_pylist()


@pytest.mark.service
@pytest.mark.parametrize(
    ("count", "which"), [(10, "the answers of this task (10 in all)"), (500, "the first 20 answers of this task")]
)
def test_no_row_leaves_before_a_declared_field_was_seen(
    count: int, which: str, http_service: local.HttpService
) -> None:
    with pytest.raises(ConfigError) as caught:
        next(rows_of([{"name": "Ann", "city": "Bergen"}] * count, count, http_service))
    assert str(caught.value) == (
        f"http: none of {which} has the declared field 'town', so it would be null in every row. They have 'name', "
        "'city'. Correct returns=, or set absent_fields='null' if that is right."
    )


@pytest.mark.service
def test_rows_leave_in_their_order_once_the_field_was_seen(http_service: local.HttpService) -> None:
    answers: list[dict[str, Any]] = [{"name": f"n{number}"} for number in range(15)]
    answers += [{"name": f"n{number}", "town": "Bergen"} for number in range(15, 40)]
    found = list(rows_of(answers, 40, http_service))
    assert found == [{"town": None, **answer} for answer in answers]


@pytest.mark.service
def test_rows_do_not_wait_for_ever_for_an_answer_that_tells(http_service: local.HttpService) -> None:
    """Where nearly all keys are missing, only the first rows are kept back; the task fails at its end, as before."""
    rows = rows_of([{"name": "Ann"}] * 3, 5_000, http_service)
    assert next(rows) == {"name": "Ann", "town": None}
    with pytest.raises(ConfigError, match=r"none of the answers of this task \(3 in all\) has"):
        list(rows)
