"""What a model is asked, and what becomes of its answers."""

from __future__ import annotations

import json
import math
import pickle
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
import pytest
from enrichkit_llm import ChatConfig, ChatConnector, EmbeddingConfig, Price, ResponsesConfig

from enrichkit import Secret, enrich, tiers
from enrichkit.driver.content import content_of
from enrichkit.driver.planner import make_plan
from enrichkit.errors import PermanentError, UnavailableError
from enrichkit.interface import connector_of
from enrichkit.local import LlmFault, LlmService
from enrichkit.local.model_api_service import reply_of, tokens_of, vector_of
from enrichkit.worker.entry import arrow_batches

pytestmark = pytest.mark.service

Asked = "Callable[..., tuple[Any, Any]]"
PNG = b"\x89PNG\r\n\x1a\n"


@dataclass
class Review:
    sentiment: Literal["good", "bad"]
    score: float
    author: str | None


def body_of(service: LlmService, place: int = -1) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(service.log()[place]["body"])
    return document


def test_a_prompt_is_sent_with_its_settings_and_the_text_comes_back(service: LlmService, asked: Any) -> None:
    config = ChatConfig(
        base_url=service.url, model="m", prompt="Say {0}", system="Be brief.", max_tokens=9, extra={"seed": 7}
    )
    answers, reports = asked(config, "hi")
    text = "Be brief.\nSay hi"  # as the service joins the messages
    assert {"hi": reply_of(text)} == answers
    expected = {"model": "m", "temperature": 0.0, "max_tokens": 9, "seed": 7}
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say hi"}]
    assert {**expected, "messages": messages} == body_of(service)
    read, written = tokens_of(text), tokens_of(reply_of(text))
    assert {"requests": 1, "tokens": read + written, "tokens_in": read, "tokens_out": written} == reports.units


def test_names_stand_for_the_key_columns_in_the_order_of_their_first_use(service: LlmService, asked: Any) -> None:
    config = ChatConfig(base_url=service.url, model="m", prompt="{title}: {body} ({title}) {{x}}")
    answers, _ = asked(config, ("T", "B"))
    assert 2 == config.key_parts
    assert {("T", "B"): reply_of("T: B (T) {x}")} == answers


def test_a_name_is_the_key_column_of_this_name(service: LlmService, asked: Any) -> None:
    config = ChatConfig(base_url=service.url, model="m", prompt="{title}: {body} {{x}}")
    for columns, key in (
        (["body", "title"], ("B", "T")),
        (["Body", None], ("B", "T")),
        ([None, None], ("T", "B")),
        ([None, "title"], ("B", "T")),
    ):
        answers, _ = asked(config.for_columns(columns), key)
        assert {key: reply_of("T: B {x}")} == answers
    pictured = ChatConfig(base_url=service.url, model="m", prompt="{name}", images=("picture",))
    assert ("{1}", (0,)) == ((found := pictured.for_columns(["picture", "name"])).prompt, found.images)


@pytest.mark.parametrize(
    ("columns", "place", "wrong"), [(["titel", "body"], 0, "titel"), (["body", "body"], 1, "body")]
)
def test_a_key_column_that_the_prompt_does_not_name_is_refused(columns: list[str], place: int, wrong: str) -> None:
    config = ChatConfig(base_url="http://localhost/v1", model="m", prompt="{title} {body}")
    with pytest.raises(ValueError) as caught:
        enrich(config, *columns)
    assert str(caught.value) == (
        f"ChatConfig.prompt and images name the key columns 'title', 'body', and the key column {place} is {wrong!r}, "
        "which is none of them or comes twice. Use the names of the key columns in the prompt, or rename the column "
        "with .alias()."
    )


def test_a_fallback_and_a_tier_find_the_key_columns_by_name_too() -> None:
    large, small = (
        ChatConfig(base_url="http://localhost/v1", model=model, prompt="{title} {body}") for model in ("large", "small")
    )
    names = ["body", "title"]
    plan, _ = make_plan(large, 2, pa.string(), {"on_error": small}, names=names)
    assert ["{1} {0}"] * 2 == [plan.config.prompt, plan.fallbacks[0].config.prompt]
    plan, _ = make_plan(tiers(small, large), 2, pa.string(), {}, names=names)
    assert ["{1} {0}"] * 2 == [plan.config.prompt, plan.tiers[0].config.prompt]


def test_images_follow_the_text_by_address_or_as_bytes(service: LlmService, asked: Any) -> None:
    config = ChatConfig(base_url=service.url, model="m", prompt="What is it, {0}?", images=(1, 2))
    asked(config, ("Ann", PNG, "https://pictures.example/a.png"))
    expected = [{"type": "text", "text": "What is it, Ann?"}]
    for url in ("data:image/png;base64,iVBORw0KGgo=", "https://pictures.example/a.png"):
        expected.append({"type": "image_url", "image_url": {"url": url}})
    assert expected == body_of(service)["messages"][0]["content"]


def test_bytes_that_are_no_image_are_rejected_and_never_sent(service: LlmService, asked: Any) -> None:
    answers, _ = asked(ChatConfig(base_url=service.url, model="m", images=(0,)), b"PK")
    assert (True, 0) == (answers[b"PK"].rejected, service.stats().calls)


SCHEMA = {
    "type": "object",
    "properties": {
        "sentiment": {"type": "string", "enum": ["good", "bad"]},
        "score": {"type": "number"},
        "author": {"type": ["string", "null"]},
    },
    "required": ["sentiment", "score", "author"],
    "additionalProperties": False,
}


def declared(service: LlmService, kind: type[ChatConfig] = ChatConfig, **fields: Any) -> ChatConfig:
    """Return a config as the driver makes it of a class: first with the class, then with its DDL."""
    ddl = "struct<sentiment:string,score:double,author:string>"
    config = kind(base_url=service.url, model="m", returns=Review, **fields)
    return kind(
        base_url=service.url, model="m", returns=ddl, choices=config.choices, optional=config.optional, **fields
    )


@pytest.mark.parametrize("kind", [ChatConfig, ResponsesConfig])
def test_a_class_becomes_a_strict_schema_and_the_answer_its_json(
    service: LlmService, asked: Any, kind: type[ChatConfig]
) -> None:
    answers, _ = asked(declared(service, kind), "hi")
    body = body_of(service)
    form = body["response_format"]["json_schema"] if kind is ChatConfig else body["text"]["format"]
    assert (SCHEMA, True) == (form["schema"], form["strict"])
    assert json.loads(reply_of("hi", SCHEMA)) == json.loads(answers["hi"])


@pytest.mark.parametrize("kind", [ChatConfig, ResponsesConfig])
def test_an_answer_that_does_not_fit_is_asked_for_once_more_with_what_was_wrong(
    service: LlmService, asked: Any, kind: type[ChatConfig]
) -> None:
    wrong = '{"sentiment": "so-so", "score": 1.5, "author": null}'
    service.script(LlmFault(times=1, body=wrong), log=True)
    answers, reports = asked(declared(service, kind), "hi")
    assert json.loads(answers["hi"])["sentiment"] in ("good", "bad")
    assert 2 == service.stats().answered
    assert "The field 'sentiment' is none of its 2 choices." in json.dumps(body_of(service))
    read, written = service.stats().input_tokens, service.stats().output_tokens
    assert {"requests": 2, "tokens": read + written, "tokens_in": read, "tokens_out": written} == reports.units


def test_a_second_answer_that_does_not_fit_is_the_error_of_the_row_and_shows_no_text(
    service: LlmService, asked: Any
) -> None:
    service.script(LlmFault(body="Sorry, canary."))
    error, _ = asked(declared(service), "hi")
    assert (PermanentError, 2) == (type(error), service.stats().calls)
    assert "The model's answer does not fit the declared type: It is no JSON document." == str(error)
    assert "Sorry, canary." == error.said  # which only show_keys shows


def test_without_repeats_it_is_asked_once(service: LlmService, asked: Any) -> None:
    service.script(LlmFault(body="no"))
    error, _ = asked(declared(service, repeats=0), "hi")
    assert (PermanentError, 1) == (type(error), service.stats().calls)


def test_a_json_document_in_a_fence_is_understood(service: LlmService, asked: Any) -> None:
    service.seed({"fenced": '```json\n{"value": 3}\n```'})
    answers, _ = asked(ChatConfig(base_url=service.url, model="m", returns="int"), "fenced")
    assert {"fenced": b"3"} == answers


@pytest.mark.parametrize(
    ("finish", "returns", "body", "expected"),
    [
        ("length", "int", '{"value": 3}   ', b"3"),
        (
            "length",
            "int",
            '{"value": ',
            "The answer was cut off: it has as many tokens as are allowed. Raise max_tokens.",
        ),
        ("length", "string", "Once", "The answer was cut off: it has as many tokens as are allowed. Raise max_tokens."),
        ("content_filter", "string", "", "The service withheld the answer: its content filter says no."),
    ],
)
def test_an_answer_that_ends_too_early_is_an_error_unless_its_json_is_whole(
    service: LlmService, asked: Any, finish: str, returns: str, body: str, expected: Any
) -> None:
    service.script(LlmFault(body=body, finish=finish))
    outcome, _ = asked(ChatConfig(base_url=service.url, model="m", returns=returns), "hi")
    assert (expected, 1) == (str(outcome) if isinstance(outcome, Exception) else outcome["hi"], service.stats().calls)


def test_a_single_choice_is_a_text(service: LlmService, asked: Any) -> None:
    answers, _ = asked(ChatConfig(base_url=service.url, model="m", choices={"": ("yes", "no")}), "hi")
    assert answers["hi"] in ("yes", "no")


def test_a_refused_request_says_so_in_words_of_this_package(service: LlmService, asked: Any) -> None:
    service.script(LlmFault(status=400, body="too long"))
    error, _ = asked(ChatConfig(base_url=service.url, model="m"), "hi")
    assert "The service answered 400. Its own words are shown with show_keys=True." == str(error)
    assert "too long" == error.said


def test_a_429_counts_no_attempt_and_holds_back_the_other_calls(service: LlmService, asked: Any) -> None:
    service.script(LlmFault(status=429, headers={"retry-after": "1", "retry-after-ms": "20"}))
    error, reports = asked(ChatConfig(base_url=service.url, model="m"), "hi")
    assert (UnavailableError, "the limit of the service", 0.02) == (type(error), error.node, error.retry_after)
    assert [(0, 0.02)] == reports.allowed


def test_tokens_that_remain_by_the_headers_slow_a_job_down_that_names_no_rate(service: LlmService) -> None:
    service.script(tokens=4000, minute=2.0, burst=0.25, latency=0.02)
    plan, _ = make_plan(ChatConfig(base_url=service.url, model="m"), 1, pa.string(), {"capacity": 8, "timeout": 60.0})
    texts = [f"text {n} " + "word " * (n % 40) for n in range(150)]
    columns = arrow_batches(pickle.dumps(plan), iter([pa.array(texts)]))
    assert [reply_of(text) for text in texts] == [value for column in columns for value in column.to_pylist()]
    stats = service.stats()
    assert stats.limited <= 0.02 * stats.calls, "it was half of the calls without the headers"


PRICE = Price(input=2.0, output=10.0, cached=0.5)


def test_a_price_makes_a_cost_of_what_the_service_counts(service: LlmService, asked: Any) -> None:
    service.script(prices=(2.0, 10.0))
    for config in (
        ChatConfig(base_url=service.url, model="m", price=PRICE, max_tokens=50),
        ResponsesConfig(base_url=service.url, model="m", price=PRICE, max_tokens=50),
        EmbeddingConfig(base_url=service.url, model="m", price=PRICE),
    ):
        service.reset_stats()
        _, reports = asked(config, "What is this?")
        assert service.stats().cost == pytest.approx(reports.units["cost"], rel=1e-12)
        assert service.stats().cost > 0
        connector = connector_of(config)(config)
        estimate, most = connector.cost(["What is this?"]), connector.most(["What is this?"])
        assert most is not None
        assert most["cost"] > reports.units["cost"]
        written = 0 if isinstance(config, EmbeddingConfig) else 50
        assert PRICE.of(int(estimate["tokens"]) - written, written) == pytest.approx(estimate["cost"])


def test_a_file_of_sources_has_a_price_as_a_table() -> None:
    fields = {"base_url": "http://localhost/v1", "model": "m"}
    assert ChatConfig(**fields, price={"input": 2.0, "output": 10.0, "cached": 0.5}) == ChatConfig(
        **fields, price=PRICE
    )


def test_tokens_from_the_cache_of_the_service_have_their_own_price(service: LlmService, asked: Any) -> None:
    usage = {"prompt_tokens": 1000, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": 600}}
    choices = [{"message": {"content": "yes"}, "finish_reason": "stop"}]
    service.script(LlmFault(status=201, body=json.dumps({"choices": choices, "usage": usage})))
    _, reports = asked(ChatConfig(base_url=service.url, model="m", price=PRICE), "hi")
    assert (400 * 2.0 + 600 * 0.5 + 10 * 10.0) / 1e6 == pytest.approx(reports.units["cost"])


@pytest.mark.parametrize(
    ("fault", "known"),
    [
        (LlmFault(status=429), True),
        (LlmFault(status=500, body="x"), True),
        (LlmFault(status=201, body="no JSON"), False),
        (LlmFault(status=201, body='{"choices": []}'), False),
    ],
)
def test_the_cost_of_a_request_without_an_answer_is_zero_or_not_known(
    service: LlmService, asked: Any, fault: LlmFault, known: bool
) -> None:
    """A refused request costs nothing; of an answer that cannot be read, or does not say it, nobody knows the cost."""
    service.script(fault)
    _, reports = asked(ChatConfig(base_url=service.url, model="m", price=PRICE), "hi")
    tokens = reports.units.pop("tokens")
    assert {"requests": 1, "tokens_in": 0, "tokens_out": 0, "cost": 0} == reports.units
    assert tokens == 0 if known else math.isnan(tokens)


def test_a_key_that_is_not_sent_costs_nothing(service: LlmService, asked: Any) -> None:
    for config in (ChatConfig(base_url=service.url, model="m"), EmbeddingConfig(base_url=service.url, model="m")):
        _, reports = asked(config, "\ud800")
        assert {"requests": 0, "tokens": 0, "tokens_in": 0, "tokens_out": 0} == reports.units
    assert 0 == service.stats().calls


def test_the_price_is_no_part_of_the_identity_of_an_answer() -> None:
    one, two, other = (
        content_of(ChatConnector, ChatConfig(base_url="http://localhost/v1", **fields), pa.string())
        for fields in ({"model": "m"}, {"model": "m", "price": PRICE}, {"model": "n"})
    )
    assert one == two != other


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"input": -1.0},
            (
                "Price.input is -1.0; it must be the price of a million tokens, a number from 0 to 1,000,000. Write "
                "Price(input=0.15, output=0.60)."
            ),
        ),
        (
            {"input": 1, "cached": "0.1"},
            (
                "Price.cached is '0.1'; it must be the price of a million tokens, a number from 0 to 1. Write "
                "Price(input=0.15, output=0.60)."
            ),
        ),
    ],
)
def test_a_wrong_price_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:  # the whole message is compared
        Price(**fields)
    assert message == str(caught.value)


def test_vectors_are_the_floats_of_the_service_and_keep_to_their_texts(service: LlmService, asked: Any) -> None:
    config = EmbeddingConfig(base_url=service.url, model="m", dimensions=5)
    answers, reports = asked(config, "b", "a", " ", "\N{SNOWMAN}")
    assert {key: vector_of(key, 5) for key in ("b", "a", "\N{SNOWMAN}")} == answers
    body = body_of(service)
    assert ("base64", 5, ["b", "a", "\N{SNOWMAN}"]) == (body["encoding_format"], body["dimensions"], body["input"])
    assert {"requests": 1, "tokens": 3, "tokens_in": 3, "tokens_out": 0} == reports.units


def test_vectors_of_another_length_are_refused(service: LlmService, asked: Any) -> None:
    service.script(LlmFault(status=201, body='{"data": [{"index": 0, "embedding": [1.0, 2.0]}]}'))
    error, _ = asked(EmbeddingConfig(base_url=service.url, model="m", dimensions=5), "a")
    assert str(error).startswith("The embeddings have 2 dimensions, and EmbeddingConfig.dimensions is 5.")


def test_a_number_that_a_float_of_32_bits_cannot_hold_does_not_become_infinite(service: LlmService, asked: Any) -> None:
    service.script(LlmFault(status=201, body='{"data": [{"index": 0, "embedding": [0.5, 1e39]}]}'))
    error, _ = asked(EmbeddingConfig(base_url=service.url, model="m"), "a")
    assert "PermanentError: An embedding has a number that a float of 32 bits cannot hold." == (
        f"{type(error).__name__}: {error}"
    )


def test_the_key_and_the_prompt_are_in_no_repr_and_no_error(
    service: LlmService, asked: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LLM_KEY", "canary-key")
    caplog.set_level(0)
    config = ChatConfig(
        base_url=service.url,
        model="m",
        prompt="canary-prompt {0}",
        system="canary-system",
        api_key=Secret.env("LLM_KEY"),
        headers={"x-more": "canary-header"},
    )
    shown = repr(config)
    for fault in (LlmFault(status=400, body='{"error": "canary-key canary-prompt"}'), LlmFault(status=401), None):
        service.script(*[fault] if fault else [], api_key="canary-key", log=True)
        outcome, _ = asked(config, "canary-row")
        shown += str(outcome) if fault else ""
        assert "canary-key" not in getattr(outcome, "said", "")
    assert {"canary-row": reply_of("canary-system\ncanary-prompt canary-row")} == outcome
    assert "Bearer canary-key" == service.log()[-1]["headers"]["authorization"]
    assert "canary" not in shown
    assert "canary" not in caplog.text


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"prompt": "Is it good?"},
            "ChatConfig.prompt holds no placeholder, so every key would ask the same. Write '{0}' where the key goes.",
        ),
        (
            {"prompt": "{0} {name}"},
            "ChatConfig.prompt mixes numbers and names of key columns; use one of them throughout.",
        ),
        (
            {"api_key": "sk-1"},
            (
                "ChatConfig.api_key is a str; it must be a Secret, which no plan shows. Write "
                "Secret.env('OPENAI_API_KEY')."
            ),
        ),
        (
            {"price": 0.15},
            (
                "ChatConfig.price is a float that is no Price; it takes input, output and cached, the first of which "
                "is required. Write price=Price(input=0.15, output=0.60)."
            ),
        ),
        (
            {"extra": {"messages": []}},
            (
                "ChatConfig.extra has 'messages', which the connector sets itself. Leave it out, or use the field of "
                "the config."
            ),
        ),
        (
            {"base_url": "http://10.0.0.1/v1", "api_key": Secret.env("K")},
            (
                "ChatConfig.base_url starts with 'http://', and the token of api_key in the header 'Authorization' "
                "holds a credential, which everybody on the way could read. Write 'https://', or insecure=True if you "
                "know that the network is safe."
            ),
        ),
    ],
)
def test_a_wrong_field_is_refused_with_a_remedy(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:  # the whole message is compared
        ChatConfig(**{"base_url": "http://localhost/v1", "model": "m", **fields})
    assert message == str(caught.value)
