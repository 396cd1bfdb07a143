"""Rates and limits as users write them: what is refused on the driver, and which store a plan names."""

# ruff: noqa: E501  # tables of messages and of headers are easier to read with one line each

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from enrichkit_http import HttpConfig
from enrichkit_llm import ChatConfig
from enrichkit_redis import RedisConfig, RedisConnector
from enrichkit_sqlite import SqliteConfig

from enrichkit import Budget, ConfigError, Limit, Rate, Secret, register
from enrichkit.driver.pickling import pack
from enrichkit.driver.planner import make_plan
from enrichkit.options import Options

STORE = "Name a source that can hold limits, for example"
API = HttpConfig(url="https://api.example/{}")


def refusal(make: Any, *args: Any, **fields: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        make(*args, **fields)
    return str(caught.value)


def plan(**options: Any) -> Any:
    return make_plan(API, 1, pa.string(), options)[0]


def test_a_rate_is_per_second_and_process_unless_it_says_otherwise() -> None:
    assert (Rate(100).per, Rate(100).per_second) == ("process", {"requests": 100.0})
    assert Rate(requests=60, tokens=6000, unit="minute").per_second == {"requests": 1.0, "tokens": 100.0}
    assert Rate(tokens=3600, unit="hour").per_second == {"tokens": 1.0}


@pytest.mark.parametrize(
    ("args", "fields", "text"),
    [
        ((), {}, "Rate has neither requests nor tokens; it must have one of them, for example Rate(100)."),
        (("100",), {}, "Rate.requests is '100'; it must be a number from 0.001 to 1,000,000, for example requests=100."),
        ((0,), {}, "Rate.requests is 0; it must be a number from 0.001 to 1,000,000, for example requests=100."),
        ((), {"tokens": -1}, "Rate.tokens is -1; it must be a number from 0.001 to 1,000,000,000, for example tokens=100."),
        ((1,), {"unit": "minutes"}, "Rate.unit is 'minutes'; it must be one of 'second', 'minute', 'hour'. Did you mean 'minute'? Set unit='second'."),
        ((1,), {"per": "worker"}, "Rate.per is 'worker'; it must be one of 'process', 'job'. Set per='process'."),
        ((1,), {"store": "redis"}, "Rate.store is given, but per is 'process'; only the limit of a job has one. Set per='job', or leave store out."),
        ((1,), {"name": "api"}, "Rate.name is given, but per is 'process'; only the limit of a job has one. Set per='job', or leave name out."),
        ((1,), {"per": "job"}, f"Rate.store is None, but per is 'job'; the worker processes share the limit by a store. {STORE} Rate(100, per='job', store='redis')."),
        ((1,), {"per": "job", "store": 7}, "Rate.store is a int; it must be the name or the config of a source, for example Rate(100, per='job', store='redis')."),
        ((1,), {"per": "job", "store": "redis", "name": ""}, "Rate.name is ''; it must be a text of 1 to 200 characters, for example name='users-api'."),
    ],
)  # fmt: skip
def test_a_wrong_rate_is_refused(args: tuple[Any, ...], fields: dict[str, Any], text: str) -> None:
    assert text == refusal(Rate, *args, **fields)


@pytest.mark.parametrize(
    ("args", "fields", "text"),
    [
        ((0,), {"store": "redis"}, "Limit.calls is 0; it must be a whole number from 1 to 1,000,000, for example Limit(50, per='job', store='redis')."),
        ((5,), {"per": "process"}, "Limit.per is 'process'; it must be 'job'. The calls in flight of a worker process are limited by the option capacity: set capacity= instead."),
        ((5,), {}, f"Limit.store is None, but per is 'job'; the worker processes share the limit by a store. {STORE} Limit(50, per='job', store='redis')."),
    ],
)  # fmt: skip
def test_a_wrong_limit_is_refused(args: tuple[Any, ...], fields: dict[str, Any], text: str) -> None:
    assert text == refusal(Limit, *args, **fields)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "Budget has neither tokens nor cost; it must have one of them, for example Budget(tokens=2_000_000, store='redis')."),
        ({"tokens": 0}, "Budget.tokens is 0; it must be a number from 0.001 to 1,000,000,000,000,000, for example tokens=100."),
        ({"cost": "5 EUR"}, "Budget.cost is '5 EUR'; it must be a number from 0.001 to 1,000,000,000, for example cost=100."),
        ({"cost": 5, "per": "process"}, "Budget.per is 'process'; it must be 'job', since nobody knows how many worker processes there will be. Leave per out."),
        ({"cost": 5}, f"Budget.store is None, but per is 'job'; the worker processes share the limit by a store. {STORE} Budget(tokens=2_000_000, store='redis')."),
        ({"cost": 5, "store": "redis", "name": ""}, "Budget.name is ''; it must be a text of 1 to 200 characters, for example name='users-api'."),
    ],
)  # fmt: skip
def test_a_wrong_budget_is_refused(fields: dict[str, Any], text: str) -> None:
    assert text == refusal(Budget, **fields)


def test_a_budget_needs_a_source_that_says_what_a_call_may_take() -> None:
    assert refusal(plan, budget=Budget(tokens=5, store=RedisConfig())) == (
        "budget is given, but the connector 'http' of 'http' cannot say what a call may take at most. Leave budget out, "
        "or have the connector define most()."
    )
    chat = ChatConfig(base_url="https://api.example/v1", model="m", max_tokens=50)

    def planned(config: ChatConfig, **units: float) -> Any:
        return make_plan(config, 1, pa.string(), {"budget": Budget(**units, store=RedisConfig(), name="b")})[0]

    assert planned(chat, tokens=500).limits[0].name == "budget:b"
    assert planned(chat, tokens=500).options.budget.store == "planned"
    assert planned(chat, tokens=500).engine_key != planned(chat, tokens=501).engine_key
    assert refusal(planned, chat, cost=5) == (
        "Budget.cost is given, but the calls of 'llm' are counted in tokens only. Set the price= in the config of the "
        "source, or leave Budget.cost out."
    )
    assert refusal(planned, replace(chat, max_tokens=None), tokens=500) == (
        "ChatConfig.max_tokens is None, so that nobody knows what a call may take of a budget. Set max_tokens=500 and "
        "no images, or leave budget out."
    )


def test_the_options_take_them() -> None:
    assert Options(rate=Rate(5)).calls_per_second == 5
    assert Options(rate=7).calls_per_second == 7
    assert Options(rate=Rate(tokens=7)).calls_per_second is None
    assert refusal(Options, limit=50) == (
        "limit is 50; it must be Limit(...) or None, for example limit=Limit(50, per='job', store='redis')."
    )


def test_the_store_is_a_source_that_can_hold_limits() -> None:
    stores = SqliteConfig(path="/data/shop.db", table="users")
    assert refusal(plan, rate=Rate(5, per="job", store=stores)) == (
        "Rate.store is the source 'sqlite', whose connector 'sqlite' can hold no limits; of those of enrichkit, 'redis' "
        "(for Valkey, too) and 'postgres' can. Name a source of one of them."
    )
    assert refusal(plan, limit=Limit(5, store="redsi")).startswith("Limit.store: No connector is named 'redsi'.")


def test_a_plan_names_the_store_and_travels_without_a_second_copy_of_its_config() -> None:
    register("limits-store", RedisConfig(url="redis://cache.example/3", password=Secret.env("HOME")))
    made = plan(rate=Rate(100, per="job", store="limits-store"), limit=Limit(5, store="limits-store", name="api"))
    assert [(each.option, each.source, each.connector) for each in made.limits] == [
        ("rate", "limits-store", RedisConnector),
        ("limit", "limits-store", RedisConnector),
    ]
    assert made.limits[1].name == "limit:api"
    assert made.options.rate.store == made.options.limit.store == "planned"
    travelled = pickle.loads(pack(made))
    assert travelled.limits == made.limits
    assert travelled.engine_key == made.engine_key


def test_limits_without_a_name_are_those_of_the_program_and_the_service() -> None:
    rate = Rate(100, per="job", store=RedisConfig())
    names = [
        make_plan(config, 1, kind, {"rate": rate})[0].limits[0].name
        for config in (API, HttpConfig(url="https://other.example/{}"))
        for kind in (pa.string(), pa.int32())
    ]
    assert names[0] == names[1] != names[2] == names[3]


def test_engines_are_shared_only_with_the_same_limits() -> None:
    redis = RedisConfig()
    keys = [
        plan(**options).engine_key
        for options in (
            {},
            {"rate": 5},
            {"rate": Rate(5)},
            {"rate": Rate(5, per="job", store=redis)},
            {"rate": Rate(5, per="job", store=RedisConfig(url="redis://other/0"))},
            {"limit": Limit(5, store=redis)},
        )
    ]
    assert len(set(keys)) == 6
