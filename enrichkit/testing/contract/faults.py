"""Checks that a failing server or network causes a `TransientError`, and that all values are right after the fault."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import ConnectorError
from ..bench import is_transient, wait_until
from .base import Fixtures
from .messages import short, told
from .own_process import needs_network
from .source import parts_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...interface import Key
    from .source import Network

__all__ = ["FaultChecks"]

CLOSING = 0.5  # seconds within which the proxy notices that a connection has ended
# Numbers of bytes of the answer after which the proxy ends a connection. An answer may have fewer bytes than the
# largest number, and then arrives whole.
CUTS = (0, 1, 2, 5, 9, 17, 33, 65)


class FaultChecks(Fixtures):
    """
    The engine retries only a `TransientError`, so each error that may go away by itself must be a `TransientError`.

    As the engine does, the checks repeat a call after a transient error until the source answers.
    """

    @needs_network
    def test_through_the_proxy_it_answers(self, network: Network) -> None:
        """Look at `address` and `connector_at`: the connector must connect to the proxy and to no other address."""
        before = network.proxy.heard
        network.open()
        right, got = network.expected(network.keys), network.look_up_values(network.keys)
        assert right == got, (
            "Through the proxy, `fetch_many` must return the values of all known keys; it returned "
            f"{told(right, got)}. Look at `address` and `connector_at`: the proxy is before the server that they name."
        )
        assert network.proxy.heard > before, (
            "The connector must connect to the proxy; all keys had their values, and the proxy got no byte. Override "
            "`connector_at`, and return a connector that connects to the given host and port and to no other address."
        )

    @needs_network
    def test_it_opens_no_more_connections_than_calls(self, network: Network) -> None:
        """Look at the size of the pool: it may be at most `capacity`, because servers are sized for that number."""
        network.open()
        groups = [[key] for key in network.keys for _ in range(network.capacity)]
        for _ in range(3):
            with network.frozen():  # so that no call gets an answer before all calls have started
                tasks = network.start_all(*groups, timeout=network.patience)
                self._assert_few_connections(network)
            late = [keys for keys, task in zip(groups, tasks, strict=True) if not network.ended(task)]
            assert not late, (
                f"When the network works again, all {len(groups)} calls must end; those for {short(late)} still run "
                f"after {network.patience:g} s. Look at how a call that waits for a connection gets the next free one."
            )
        self._assert_few_connections(network)

    def _assert_few_connections(self, network: Network) -> None:
        # The proxy notices a closed connection a moment later than the new connection that replaces it, so for that
        # moment its count may be too high.
        assert wait_until(lambda: network.proxy.open <= network.capacity, CLOSING), (
            f"The connector must have at most {network.capacity} connections open, its `capacity`, although more calls "
            f"are made at once here; {network.proxy} counts {network.proxy.open}. Give `capacity` to the pool of the "
            "client package as its size, in `open`, or let calls wait at a semaphore."
        )

    @needs_network
    def test_calls_share_their_connections(self, network: Network) -> None:
        """Look for code that opens a connection for each call: opening one costs more than a lookup."""
        network.open()
        before = network.proxy.opened
        for _ in range(10):
            network.look_up(network.group)
        opened = network.proxy.opened - before
        assert opened <= network.capacity, (
            f"Ten lookups, one after the other, must reuse connections: at most {network.capacity} may be opened, the "
            f"`capacity`; the connector opened {opened}. Keep connections in a pool: opening one costs "
            "more than a lookup."
        )

    @needs_network
    def test_a_server_that_is_away_is_transient(self, network: Network) -> None:
        """Look at the client package's exceptions for lost and refused connections: make both a `TransientError`."""
        network.open()
        network.look_up(network.group)
        network.proxy.refuse()
        network.proxy.cut()
        for _ in range(3):
            answers = network.attempt(network.group)
            assert answers is None or (answers and all(map(is_transient, answers.values()))), (
                "Without a server `fetch_many` must raise a TransientError, or return a Failure with a TransientError "
                f"for each key; it returned {short(answers)}. Look at the client package's exceptions for a lost and "
                "for a refused connection, and translate both."
            )

    @needs_network
    def test_it_comes_back_with_its_server(self, network: Network) -> None:
        """Look for broken connections that stay in the pool, and for a client that never connects again."""
        network.open()
        network.look_up(network.keys)
        network.proxy.refuse()
        network.proxy.cut()
        for _ in range(2):  # the first attempt meets a lost connection, the second one a refused connection
            network.attempt(network.group)
        network.proxy.heal()
        for key in network.keys:
            right, got = network.expected([key]), network.values(network.fetch_until_recovered([key]))
            assert right == got, (
                "When the server is back, `fetch_many` must return the value of each known key; it returned "
                f"{told(right, got)}. Take a broken connection out of the pool, and connect again."
            )

    @needs_network
    def test_an_idle_connection_that_was_lost_is_replaced(self, network: Network) -> None:
        """Look at how the pool treats an idle connection that the server has closed: it must open a new one instead."""
        network.open()
        for _ in range(3):
            network.look_up(network.group)
            network.proxy.cut()
            self._assert_not_wrong(network, network.group, "The idle connections were closed by the server")
            self._assert_recovers(network, network.group, "the idle connections were closed")

    def _assert_not_wrong(self, network: Network, keys: Sequence[Key], what: str) -> None:
        wrong = network.wrong(network.attempt(keys) or {})
        assert not wrong, (
            f"{what}. `fetch_many` must raise a TransientError or answer rightly; it returned "
            f"{told(network.expected([*wrong]), wrong)}. Do not use what was read from such a connection: the end of "
            "the connection is not the end of the answer."
        )

    def _assert_recovers(self, network: Network, keys: Sequence[Key], what: str) -> None:
        right, got = network.expected(keys), network.values(network.fetch_until_recovered(keys))
        assert right == got, (
            f"After {what}, `fetch_many` must return the values of all known keys; it returned {told(right, got)}. "
            "Close the connection that failed, and begin with a new one: nothing of the old answer may be left."
        )

    @needs_network
    def test_half_an_answer_is_no_answer(self, network: Network) -> None:
        """Look for code that takes the end of the connection for the end of the answer."""
        network.open()
        keys = [*network.group, network.missing][: network.connector.max_batch_size]
        network.look_up(keys)
        for size in CUTS:
            network.proxy.close_after(size, times=1)
            self._assert_not_wrong(network, keys, f"The connection ended after {size} bytes of the answer")
            network.proxy.heal()
            self._assert_recovers(network, keys, f"the connection ended after {size} bytes of an answer")

    @needs_network
    def test_a_reset_in_an_answer_is_transient(self, network: Network) -> None:
        """Look at `ConnectionResetError` and similar exceptions: translate an `OSError` into a `TransientError`."""
        network.open()
        network.look_up(network.group)
        for size in CUTS:
            network.proxy.reset_after(size, times=1)
            self._assert_not_wrong(network, network.group, f"The connection was reset after {size} bytes of the answer")
            network.proxy.heal()
            self._assert_recovers(network, network.group, f"the connection was reset after {size} bytes of an answer")

    @needs_network
    def test_a_lost_connection_is_no_miss(self, network: Network) -> None:
        """Look for an empty result after a lost connection: the engine would treat all keys of the call as missing."""
        network.open()
        for size in CUTS[:4]:
            network.proxy.close_after(size, times=1)
            answers = network.attempt(network.group)
            assert answers is None or answers.keys() == set(network.group), (
                f"The connection ended after {size} bytes of the answer. `fetch_many` must raise a TransientError or "
                f"answer all keys, because a key without an answer looks like a missing key; it returned "
                f"{short(answers)} for {short(network.group)}. Look for code that takes the end of the connection for "
                "an empty or complete answer."
            )
            network.proxy.heal()
            network.fetch_until_recovered(network.group)

    @needs_network
    def test_it_does_not_try_again_by_itself(self, network: Network) -> None:
        """Look at the client package's retries and turn them off: only the engine retries, within its retry budget."""
        network.open()
        network.look_up(network.group)
        network.proxy.reset_after(0, direction="to server")
        before = network.proxy.opened
        network.attempt(network.group)
        opened = network.proxy.opened - before
        assert opened <= 2, (
            f"One call whose connections are reset may open two connections; it opened {opened}. Turn the retries of "
            "the client package off: only the engine retries, within its budget."
        )

    @needs_network
    def test_the_message_of_a_lost_connection_holds_no_key(self, network: Network) -> None:
        """Look at the messages of the client package's errors: some quote the request, such as a URL with the key."""
        network.open()
        network.look_up(network.group)
        network.proxy.refuse()
        network.proxy.cut()
        for key in network.group:
            try:
                answers = network.fetch([key])
                text = " ".join(str(getattr(answer, "error", "")) for answer in answers.values())
            except ConnectorError as error:
                text = str(error)
            quoted = [part for part in parts_of(key) if len(str(part)) > 4 and str(part) in text]
            assert not quoted, (
                f"The message of a connection error must not hold a key; it holds {short(quoted)}: {short(text)}. "
                "Write a text of your own: that of the client package may quote the request."
            )
