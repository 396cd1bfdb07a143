"""Secrets that a function or a command gives, for a while."""

from __future__ import annotations

import asyncio
import pickle
import platform
import re
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from enrichkit import Secret
from enrichkit.errors import ConfigError
from enrichkit.secrets import expiring, fresh, readers, reference, refuse, revealed
from enrichkit.sources.config import from_toml

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HERE = f"on this machine ({platform.node()})"


class Clock:
    now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(expiring, "time", clock)
    monkeypatch.setattr(reference, "_held", {})
    return clock


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A module of the user: `shop_secrets.token()` returns or raises what is in `shop_secrets.answers`, in turn."""
    (tmp_path / "shop_secrets.py").write_text(
        "import time\nanswers = []\nasked = 0\nslow = 0.0\n"
        "def token():\n"
        "    global asked\n"
        "    asked += 1\n"
        "    time.sleep(slow)\n"
        "    answer = answers.pop(0)\n"
        "    if isinstance(answer, Exception):\n"
        "        raise answer\n"
        "    return answer\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import shop_secrets

    yield shop_secrets
    del sys.modules["shop_secrets"]


TOKEN = Secret.call("shop_secrets:token", ttl=900)


def error_of(secret: Secret) -> str:
    with pytest.raises(ConfigError) as caught:
        secret.resolve()
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    return str(caught.value)


def test_a_value_is_used_until_a_minute_before_its_end(shop: Any, clock: Clock) -> None:
    shop.answers += ["a", "b"]
    assert [TOKEN.resolve() for _ in range(3)] == ["a"] * 3
    clock.now += 839.9
    assert TOKEN.resolve() == "a"
    assert fresh(TOKEN)
    clock.now += 0.2
    assert not fresh(TOKEN)
    assert TOKEN.resolve() == "b"
    assert shop.asked == 2


def test_a_short_life_keeps_a_fifth(shop: Any, clock: Clock) -> None:
    secret = Secret.call("shop_secrets:token", ttl=10)
    shop.answers += ["a", "b"]
    assert secret.resolve() == "a"
    clock.now += 7.9
    assert secret.resolve() == "a"
    clock.now += 0.2
    assert secret.resolve() == "b"


def test_a_renewal_that_fails_is_repeated_while_the_old_value_is_good(
    shop: Any, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    shop.answers += ["a", OSError("hunter2"), "b"]
    assert TOKEN.resolve() == "a"
    clock.now += 850.0
    assert [TOKEN.resolve(), TOKEN.resolve()] == ["a", "a"]
    assert shop.asked == 2, "the failed one is not repeated at once"
    clock.now += 5.1
    assert TOKEN.resolve() == "b"
    assert [record.getMessage() for record in caplog.records] == [
        (
            f"Secret.call('shop_secrets:token') raised OSError {HERE}. Try it there: "
            'python -c "import shop_secrets; shop_secrets.token()" Its last value is good for 50 s more.'
        )
    ]


def test_a_value_whose_life_is_over_is_not_used(shop: Any, clock: Clock) -> None:
    shop.answers += ["a", OSError()]
    assert TOKEN.resolve() == "a"
    clock.now += 900.0
    assert "raised OSError" in error_of(TOKEN)


def test_a_refused_value_is_asked_for_again_once(shop: Any, clock: Clock) -> None:
    shop.answers += ["a", "b", "c"]
    assert TOKEN.resolve() == "a"
    assert refuse(TOKEN, "a")
    assert refuse(TOKEN, "a"), "another caller that had it, too"
    assert TOKEN.resolve() == "b"
    assert refuse(TOKEN, "a"), "a late caller: there is another one now"
    assert not refuse(TOKEN, "b"), "the source means what it says"
    assert TOKEN.resolve() == "b"
    clock.now += 5.1
    assert refuse(TOKEN, "b")
    assert TOKEN.resolve() == "c"


def test_a_variable_that_has_changed_is_another_value(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ENRICHKIT_TEST_SECRET", "a")
    secret = Secret.env("ENRICHKIT_TEST_SECRET")
    assert not refuse(secret, "a")
    monkeypatch.setenv("ENRICHKIT_TEST_SECRET", "b")
    assert refuse(secret, "a")
    assert not refuse(Secret.file(str(tmp_path / "absent")), "a"), "it is being replaced"
    assert not refuse("a literal", "a literal")


def test_threads_ask_once_together(shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiring, "time", time)
    shop.answers += ["a", "b"]
    shop.slow = 0.1
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(TOKEN.resolve())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (found, shop.asked) == (["a"] * 8, 1)


def test_the_event_loop_goes_on_while_a_function_is_asked(shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiring, "time", time)
    shop.answers += ["a"]
    shop.slow = 0.3

    async def scenario() -> tuple[list[str | None], int]:
        asking = asyncio.gather(*(revealed(TOKEN) for _ in range(3)))
        turns = 0
        while not asking.done():
            await asyncio.sleep(0.01)
            turns += 1
        return await asking, turns

    found, turns = asyncio.run(scenario())
    assert found == ["a"] * 3
    assert turns >= 10
    assert shop.asked == 1


@pytest.mark.parametrize(("answer", "found"), [("", "an empty text"), (None, "a NoneType"), (b"x", "a bytes")])
def test_a_function_must_return_a_text(shop: Any, answer: Any, found: str) -> None:
    shop.answers += [answer]
    assert error_of(TOKEN) == f"Secret.call('shop_secrets:token') returned {found}; it must return a text."


def test_a_function_that_is_not_there_is_told() -> None:
    text = error_of(Secret.call("no_such_shop.tokens:token", ttl=60))
    assert text == (
        f"Secret.call('no_such_shop.tokens:token') raised ModuleNotFoundError {HERE}. Try it there: "
        'python -c "import no_such_shop.tokens; no_such_shop.tokens.token()"'
    )


def test_a_command_prints_the_secret() -> None:
    secret = Secret.command((sys.executable, "-c", r"print('tök\nen', end='\r\n\n')"), ttl=60)
    assert secret.resolve() == "tök\nen"


def test_what_is_wrong_with_a_command_is_told_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(*arguments: str) -> str:
        return error_of(Secret.command(arguments, ttl=60))

    assert told("no-such-program") == (
        f"The command no-such-program of a Secret, {HERE}, cannot be started: No such file or directory."
    )
    python = f"The command {sys.executable} of a Secret, {HERE},"
    failing = "import sys; sys.stderr.write('no login\\x1b[31m for password=hunter2\\n'); sys.exit(3)"
    assert told(sys.executable, "-c", failing) == f"{python} ended with the status 3: no login [31m for password=***."
    assert told(sys.executable, "-c", "raise SystemExit(4)") == f"{python} ended with the status 4: it said nothing."
    assert told(sys.executable, "-c", "pass") == f"{python} has printed nothing."
    monkeypatch.setattr(readers, "ASK_TIMEOUT", 0.2)
    slow = "import time; time.sleep(5)"
    assert told(sys.executable, "-c", slow) == f"{python} has printed nothing within 0.2 s."


WRITE = "Write Secret.call('m:f', ttl=900), for example."


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: Secret.call("shop.tokens", ttl=900),
            (
                "Secret function is 'shop.tokens'; it must be a module and a function of it, as in "
                "Secret.call('shop.tokens:database', ttl=900)."
            ),
        ),
        (
            lambda: Secret.command("aws rds", ttl=900),
            (
                "Secret command is 'aws rds'; it must be a program and its arguments, as in "
                "Secret.command(('vault', 'read', '-field=token', 'shop'), ttl=900)."
            ),
        ),
        (lambda: Secret.call("m:f", ttl=0.5), f"Secret ttl is 0.5; it must be seconds from 1 to 604,800. {WRITE}"),
        (lambda: Secret.call("m:f", ttl=True), f"Secret ttl is True; it must be seconds from 1 to 604,800. {WRITE}"),
        (lambda: Secret("call", "m:f"), f"Secret ttl is None; it must be seconds from 1 to 604,800. {WRITE}"),
        (lambda: Secret("env", "X", 9), f"Secret ttl is 9; it belongs to call and command. {WRITE}"),
    ],
)
def test_what_is_wrong_with_a_reference_is_told(make: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(text)):
        make()


def test_a_reference_travels_and_shows_no_value(shop: Any) -> None:
    shop.answers += ["hunter2"]
    assert TOKEN.resolve() == "hunter2"
    assert repr(TOKEN) == "Secret.call('shop_secrets:token', ttl=900)"
    assert repr(Secret.command(["aws", "rds"], ttl=60.5)) == "Secret.command(('aws', 'rds'), ttl=60.5)"
    assert pickle.loads(pickle.dumps(TOKEN)) == TOKEN
    assert b"hunter2" not in pickle.dumps(TOKEN)
    assert "hunter2" not in repr(reference._held)


def test_toml_has_both() -> None:
    assert from_toml({"password": {"call": "shop.tokens:database", "ttl": 900}}) == {
        "password": Secret.call("shop.tokens:database", ttl=900)
    }
    assert from_toml({"command": ["aws", "rds"], "ttl": 60}) == Secret.command(("aws", "rds"), ttl=60)
