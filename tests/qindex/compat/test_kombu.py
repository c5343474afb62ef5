"""kombu on a store. What it shares with kombu's own transport in memory is tested on both."""

from __future__ import annotations

import datetime
import itertools
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kombu")

from kombu import Connection, Consumer, Exchange, Producer, Queue
from kombu.asynchronous import Hub
from kombu.exceptions import ChannelError
from kombu.transport import memory

import qindex
import qindex.compat.kombu
from qindex.compat.kombu.topology import OWNERS, TOPOLOGY
from tests.effort import not_quick
from tests.server.support import end_server, server_pid
from tests.waiting import WAIT

SOON = 0.05


def stop_server(store: Path) -> None:
    if (store / "qindex.server").exists():
        try:
            os.kill(server_pid(store), signal.SIGTERM)
        except ProcessLookupError:
            return
        end_server(store)


@pytest.fixture(scope="module")
def shared_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A store whose server serves many tests: each takes names of its own."""
    store = tmp_path_factory.mktemp("kombu") / "data"
    yield store
    stop_server(store)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Path]:
    """A store of one test."""
    store = tmp_path / "data"
    yield store
    stop_server(store)


@pytest.fixture(params=["qindex", "memory"])
def connection(request: pytest.FixtureRequest, shared_store: Path) -> Iterator[Any]:
    if request.param == "memory":
        memory.Transport.global_state.clear()
        memory.Channel.queues.clear()
    url = "memory://" if request.param == "memory" else f"qindex://{shared_store}"
    options = {"polling_interval": SOON} if request.param == "memory" else {}
    with Connection(url, transport_options=options) as made:
        yield made


@pytest.fixture
def mine(shared_store: Path) -> Iterator[Any]:
    with Connection(f"qindex://{shared_store}") as made:
        yield made


@pytest.fixture
def name() -> str:
    return f"queue-{uuid.uuid4().hex[:8]}"


@pytest.mark.parametrize("exchange", ["", "orders"])
def test_a_mandatory_message_without_a_queue_is_returned(
    mine: Any, name: str, exchange: str, caplog: pytest.LogCaptureFixture
) -> None:
    returned = []
    channel = mine.channel()
    to = Exchange(exchange and f"{exchange}-{name}", type="direct")
    producer = Producer(channel, to, on_return=lambda *one: returned.append(one))
    producer.publish({"n": 1}, routing_key=name, mandatory=True)
    [(error, where, key, message)] = returned
    assert (error.reply_code, error.reply_text) == (312, "NO_ROUTE")
    assert (where, key, message.payload) == (to.name, name, {"n": 1})
    queue_there = Queue(name, to, routing_key=name)(channel)
    queue_there.declare()
    producer.publish({"n": 2}, routing_key=name, mandatory=True)
    assert queue_there.get(no_ack=True).payload == {"n": 2}
    assert len(returned) == 1
    Producer(mine.channel(), to).publish("x", routing_key=f"not-{name}", mandatory=True)
    assert f"for 'not-{name}'" in caplog.text


class Received:
    """A consumer that keeps what it is given."""

    def __init__(self, connection: Any, queues: list[Any], **options: Any) -> None:
        self.connection = connection
        self.messages: list[Any] = []
        self.channel = connection.channel()
        if "prefetch" in options:
            self.channel.basic_qos(0, options.pop("prefetch"), False)
        self.consumer = Consumer(self.channel, queues, on_message=self.messages.append, **options)
        self.consumer.consume()

    def bodies(self, count: int) -> list[Any]:
        """Wait for so many messages, acknowledge them, and return their payloads."""
        while len(self.messages) < count:
            self.connection.drain_events(timeout=WAIT)
        found, self.messages[:] = self.messages[:], []
        for one in found:
            if not one.acknowledged:
                one.ack()
        return [one.payload for one in found]

    def nothing(self) -> bool:
        """Return whether nothing more comes."""
        with pytest.raises(TimeoutError):
            self.connection.drain_events(timeout=SOON)
        return not self.messages


# -- as in memory ---------------------------------------------------------------------------------


def test_direct_exchange(connection: Any, name: str) -> None:
    exchange = Exchange(name, "direct")
    one, two = (Queue(f"{name}.{key}", exchange, routing_key=key) for key in "ab")
    received = Received(connection, [one, two])
    with connection.Producer() as producer:
        for number, key in enumerate("aabcb"):
            producer.publish({"n": number}, exchange=exchange, routing_key=key)
    got = received.bodies(4)
    assert sorted(one["n"] for one in got) == [0, 1, 2, 4]
    assert received.nothing()


@pytest.mark.parametrize(
    ("bound", "matches"),
    [
        ("#", {"orders", "orders.paid", "orders.paid.late", "mails.paid"}),
        ("orders.*", {"orders.paid"}),
        ("*.paid", {"orders.paid", "mails.paid"}),
        ("orders.#", {"orders", "orders.paid", "orders.paid.late"}),
        ("#.paid.#", {"orders.paid", "orders.paid.late", "mails.paid"}),
        ("*.*.#", {"orders.paid", "orders.paid.late", "mails.paid"}),
        ("orders", {"orders"}),
        ("order", set()),
    ],
)
def test_topic_exchange(mine: Any, name: str, bound: str, matches: set[str]) -> None:
    """As RabbitMQ's; kombu's own transports take no key without a word for ``#``."""
    exchange = Exchange(name, "topic")
    taken = Queue(name, exchange, routing_key=bound)(mine.channel())
    taken.declare()
    producer = mine.Producer()
    for key in ("orders", "orders.paid", "orders.paid.late", "mails.paid"):
        producer.publish(key, exchange=exchange, routing_key=key)
    found = set()
    while (message := taken.get(no_ack=True)) is not None:
        found.add(message.payload)
    assert found == matches


def test_fanout_exchange(connection: Any, name: str) -> None:
    exchange = Exchange(name, "fanout")
    received = Received(connection, [Queue(f"{name}.{number}", exchange) for number in range(3)])
    with connection.Producer() as producer:
        producer.publish("to all", exchange=exchange)
    assert received.bodies(3) == ["to all"] * 3
    assert received.nothing()


def test_what_is_delivered_is_what_was_published(connection: Any, name: str) -> None:
    channel = connection.channel()
    taken = Queue(name)(channel)
    taken.declare()
    headers = {"n": 1, "none": None, "list": [1, None, {"x": "y"}], "when": Decimal("1.5")}
    producer = Producer(channel)
    for body in ({"a": [1, None]}, "text \N{SNOWMAN}", b"\0\xff"):
        producer.publish(
            body,
            routing_key=name,
            headers=headers,
            compression=None,
            correlation_id="c-1",
            reply_to="somewhere",
            priority=3,
        )
        message = taken.get()
        assert message.payload == body
        assert message.headers == headers
        assert message.properties["correlation_id"] == "c-1"
        assert message.properties["reply_to"] == "somewhere"
        assert message.properties["priority"] == 3
        assert message.delivery_info["routing_key"] == name
        message.ack()
    producer.publish({"a": 1}, routing_key=name, serializer="pickle", compression="zlib")
    assert taken.get(accept=["pickle"]).payload == {"a": 1}


def test_requeue_comes_again_and_says_so(connection: Any, name: str) -> None:
    simple = connection.SimpleQueue(name)
    simple.put("again")
    first = simple.get(timeout=WAIT)
    first.reject(requeue=True)
    second = simple.get(timeout=WAIT)
    assert second.payload == "again"
    second.ack()
    with pytest.raises(simple.Empty):
        simple.get(timeout=SOON)
    simple.close()


def test_prefetch_is_kept(connection: Any, name: str) -> None:
    with connection.Producer() as producer:
        for number in range(5):
            producer.publish(number, routing_key=name, declare=[Queue(name)])
    received = Received(connection, [Queue(name)], prefetch=2)
    for _ in range(2):
        connection.drain_events(timeout=WAIT)
    with pytest.raises(TimeoutError):
        connection.drain_events(timeout=SOON)
    assert [one.payload for one in received.messages] == [0, 1]
    received.messages.pop(0).ack()
    assert received.bodies(2) == [1, 2]
    assert received.bodies(2) == [3, 4]


def test_purge_and_size(connection: Any, name: str) -> None:
    channel = connection.channel()
    mine = Queue(name)(channel)
    producer = Producer(channel)
    for _ in range(3):
        producer.publish("x", routing_key=name, declare=[mine])
    assert channel.queue_declare(name, durable=True).message_count == 3
    assert mine.purge() == 3
    assert mine.get() is None


def test_delete(mine: Any, name: str) -> None:
    channel = mine.channel()
    mine.Producer().publish("x", routing_key=name)
    channel.queue_delete(name, if_empty=True)
    assert channel.queue_declare(name, passive=True).message_count == 1
    channel.queue_delete(name)
    with pytest.raises(ChannelError, match="NOT_FOUND"):
        channel.queue_declare(name, passive=True)


def test_a_passive_declaration_makes_nothing(mine: Any, name: str) -> None:
    channel = mine.channel()
    with pytest.raises(ChannelError, match="NOT_FOUND"):
        channel.queue_declare(name, passive=True)
    with pytest.raises(ChannelError, match="NOT_FOUND"):
        channel.exchange_declare(name, passive=True)
    assert channel.queue_purge(name) == 0


def test_closing_gives_messages_back(mine: Any, name: str) -> None:
    channel = mine.channel()
    taken = Queue(name)(channel)
    taken.declare()
    mine.Producer().publish("kept", routing_key=name)
    assert taken.get().payload == "kept"
    assert taken.get() is None
    channel.close()
    assert Queue(name)(mine.channel()).get().payload == "kept"


def test_tags_are_unique(connection: Any, name: str) -> None:
    with connection.Producer() as producer:
        for number in range(20):
            producer.publish(number, routing_key=name, declare=[Queue(name)])
    channels = [connection.channel() for _ in range(2)]
    found = [Queue(name)(channels[number % 2]).get() for number in range(20)]
    assert [one.payload for one in found] == list(range(20))
    assert len({one.delivery_tag for one in found}) == 20
    for one in found:
        one.ack()


def test_cancelled_consumer_gets_nothing(connection: Any, name: str) -> None:
    received = Received(connection, [Queue(name)])
    received.consumer.cancel()
    with connection.Producer() as producer:
        producer.publish("x", routing_key=name)
    assert received.nothing()


# -- ours -----------------------------------------------------------------------------------------


@not_quick("it starts a server of its own")
def test_the_transport_by_its_path(store: Path) -> None:
    for path in (str(store), f"{store}/"):
        made = Connection(f"qindex://{path}", transport="qindex.compat.kombu:Transport")
        with made as connection:
            assert connection.connected or connection.connect()
            assert connection.transport.directory.rstrip("/") == str(store)
            assert str(store) in connection.as_uri()
            assert connection.transport.driver_version() == qindex.__version__
    for url in ("qindex://", "qindex://srv/data"):
        with pytest.raises(qindex.UsageError, match="by its absolute path"):
            Connection(url).connect()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"durabilty": "fsync"}, "'durability' is meant"),
        ({"max_priority": "high"}, "max_priority must be"),
        ({"durability": "often"}, "durability"),
    ],
)
def test_wrong_options(tmp_path: Path, options: dict[str, object], text: str) -> None:
    with pytest.raises(qindex.UsageError, match=text):
        Connection(f"qindex://{tmp_path}", transport_options=options).connect()
    assert not list(tmp_path.iterdir())


@not_quick("it starts a server of its own")
def test_options_are_those_of_the_store(store: Path) -> None:
    options = {"durability": "fsync", "linger": 0}
    with Connection(f"qindex://{store}", transport_options=options) as connection:
        connection.connect()
        assert connection.transport.engine.options.durability == "fsync"


@not_quick("it starts a server of its own")
def test_bindings_outlive_processes(store: Path) -> None:
    url = f"qindex://{store}"
    exchange = Exchange("news", "topic")
    with Connection(url) as connection:
        Queue("sport", exchange, routing_key="sport.#")(connection).declare()
    stop_server(store)
    program = f"""if True:
        import qindex.compat.kombu
        from kombu import Connection
        with Connection({url!r}) as connection:
            connection.Producer().publish("goal", exchange="news", routing_key="sport.x")
    """
    subprocess.run([sys.executable, "-c", program], check=True, timeout=WAIT)
    with Connection(url) as connection:
        channel = connection.channel()
        assert Queue("sport")(channel).get(no_ack=True).payload == "goal"
        channel.queue_unbind("sport", "news", "sport.#")
        channel.exchange_delete("news")
        assert list(channel.list_bindings()) == []
        assert channel.get_exchanges() == []
        with pytest.raises(ChannelError, match="NOT_FOUND"):
            channel.exchange_declare("news", passive=True)


def test_many_processes_declare_at_once(shared_store: Path, name: str) -> None:
    urls = [f"qindex://{shared_store}"] * 4
    errors: list[BaseException] = []

    def declare(url: str) -> None:
        try:
            with Connection(url) as connection:
                channel = connection.channel()
                for number in range(10):
                    exchange = Exchange(f"{name}.{number % 3}", "direct")
                    Queue(f"{name}{number}", exchange, routing_key="k")(channel).declare()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=declare, args=(url,)) for url in urls]
    for one in threads:
        one.start()
    for one in threads:
        one.join(WAIT)
    assert errors == []
    with Connection(urls[0]) as connection:
        bindings = list(connection.channel().list_bindings())
    assert len([one for one in bindings if one[0].startswith(name)]) == 10


def test_highest_priority_first(mine: Any, name: str) -> None:
    producer = mine.Producer()
    for number in (0, 3, 9, 3, 200):
        producer.publish(number, routing_key=name, priority=number, declare=[Queue(name)])
    simple = mine.SimpleQueue(name)
    found = [simple.get(timeout=WAIT) for _ in range(5)]
    assert [one.payload for one in found] == [9, 200, 3, 3, 0]
    for one in found:
        one.ack()


def test_a_queue_that_holds_messages_keeps_its_priorities(shared_store: Path, name: str) -> None:
    with qindex.open(shared_store, shared=True) as engine:
        engine.queue(name).publish(b"old", properties={"content_type": "text/plain"})
    with Connection(f"qindex://{shared_store}") as connection:
        plain = Queue(name, max_priority=5)(connection.channel())
        plain.declare()
        assert plain.get(no_ack=True).body == b"old"


def test_rejected_messages_are_dead_letters(mine: Any, name: str) -> None:
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{name}.dead"}
    taken = Queue(name, queue_arguments=arguments)(mine.channel())
    taken.declare()
    mine.Producer().publish("bad", routing_key=name, headers={"n": 1})
    taken.get().reject()
    letter = Queue(f"{name}.dead")(mine.channel()).get(no_ack=True)
    assert (letter.payload, letter.headers["n"]) == ("bad", 1)
    assert letter.headers["x-death"][0]["reason"] == "rejected"


@pytest.mark.parametrize("zone", [datetime.UTC, datetime.timezone(datetime.timedelta(hours=5))])
def test_eta_keeps_a_message_in_its_queue(mine: Any, name: str, zone: datetime.timezone) -> None:
    simple = mine.SimpleQueue(name)
    producer = mine.Producer()
    due = datetime.datetime.now(zone) + datetime.timedelta(seconds=0.4)
    producer.publish("later", routing_key=name, headers={"eta": due.isoformat()})
    producer.publish("now", routing_key=name, headers={"eta": None})
    producer.publish("odd", routing_key=name, headers={"eta": "tomorrow"})
    assert [simple.get(timeout=WAIT).payload for _ in range(2)] == ["now", "odd"]
    stats = mine.transport.engine.queue(name).stats()
    assert stats.delayed == 1 or datetime.datetime.now(zone) >= due
    message = simple.get(timeout=WAIT)
    assert datetime.datetime.now(zone) >= due
    assert (message.payload, message.headers) == ("later", {"eta": due.isoformat()})


def test_expiration_and_limits(mine: Any, name: str) -> None:
    channel = mine.channel()
    limited = Queue(name, max_length=2, message_ttl=50)(channel)
    limited.declare()
    producer = Producer(channel)
    for number in range(3):
        producer.publish(number, routing_key=name)
    assert mine.transport.engine.queue(name).settings.message_ttl == 50
    assert [limited.get(no_ack=True).payload for _ in range(2)] == [1, 2]
    producer.publish("brief", routing_key=name, expiration=0.001)
    time.sleep(0.01)
    assert limited.get() is None


def test_arguments_of_a_queue_are_its_settings(mine: Any, name: str) -> None:
    channel = mine.channel()
    queues = mine.transport.engine if mine.connect() else None
    assert queues is not None
    arguments = {
        "x-message-ttl": 1500,
        "x-max-length-bytes": 10_000,
        "x-overflow": "reject-publish",
        "x-max-priority": 3,
        "x-delivery-limit": 4,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": f"{name}.dead",
    }
    Queue(name, queue_arguments=arguments)(channel).declare()
    settings = queues.queue(name).settings
    assert (settings.message_ttl, settings.max_bytes, settings.overflow) == (1.5, 10_000, "reject")
    assert (settings.max_priority, settings.delivery_limit) == (3, 4)
    assert settings.dead_letter == f"{name}.dead"
    Queue(f"{name}.limited", max_length=5, max_length_bytes=100)(channel).declare()
    settings = queues.queue(f"{name}.limited").settings
    assert (settings.max_length, settings.max_bytes) == (5, 100)
    assert (settings.overflow, settings.max_priority) == ("drop-head", 9)
    Queue(name)(channel).declare()  # what it does not name stays
    assert queues.queue(name).settings.delivery_limit == 4


def test_options_of_the_transport(shared_store: Path, name: str) -> None:
    options = {"max_priority": None, "deadletter_queue": f"{name}.lost"}
    with Connection(f"qindex://{shared_store}", transport_options=options) as connection:
        Queue(name)(connection.channel()).declare()
        assert connection.transport.engine.queue(name).settings.max_priority is None
        exchange = Exchange(name, "direct")
        connection.Producer(exchange=exchange).publish("nobody's", routing_key="none")
        with connection.SimpleQueue(f"{name}.lost") as lost:
            assert lost.get(timeout=WAIT).payload == "nobody's"


def test_ack_of_several(mine: Any, name: str) -> None:
    taken = Queue(name)(mine.channel())
    producer = mine.Producer()
    for number in range(4):
        producer.publish(number, routing_key=name, declare=[Queue(name)])
    found = [taken.get() for _ in range(4)]
    found[2].ack(multiple=True)
    stats = mine.transport.engine.queue(name).stats()
    assert (stats.unacked, stats.ready) == (1, 0)
    found[3].channel.basic_recover(requeue=True)
    assert taken.get(no_ack=True).payload == 3


def test_an_exclusive_queue_goes_with_its_connection(shared_store: Path, name: str) -> None:
    url = f"qindex://{shared_store}"
    exchange = Exchange(f"{name}.x", "fanout")
    with Connection(url) as watching:
        with Connection(url) as connection:
            Queue(name, exchange, exclusive=True, auto_delete=True)(connection).declare()
            watching.Producer().publish("x", exchange=exchange)
            assert name in watching.channel().connection.engine.queue_names()
        assert name not in watching.channel().connection.engine.queue_names()
        watching.Producer().publish("x", exchange=exchange)
        assert name not in [one[0] for one in watching.channel().list_bindings()]


CHILD = """if True:
    import sys, time
    import qindex.compat.kombu
    from kombu import Connection, Exchange, Queue
    connection = Connection(sys.argv[1])
    channel = connection.channel()
    Queue("its", Exchange("x", "fanout"), exclusive=True, auto_delete=True,
          expires=float(sys.argv[2]))(channel).declare()
    taken = Queue("tasks")(channel)
    taken.declare()
    while (message := taken.get()) is None:
        time.sleep(0.01)
    print(message.payload, flush=True)
    time.sleep(600)
"""


def test_a_killed_process_gives_its_messages_back_and_its_queues_go(store: Path) -> None:
    url = f"qindex://{store}"
    with Connection(url) as connection:
        simple = connection.SimpleQueue("tasks")
        simple.put("work")
        command = [sys.executable, "-c", CHILD, url, "0.1"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "work\n"
            child.kill()
        message = simple.get(timeout=WAIT)
        assert message.delivery_info["redelivered"] is True
        message.ack()
        transport = connection.transport
        deadline = time.monotonic() + WAIT
        while "its" in transport.engine.queue_names():
            assert time.monotonic() < deadline
            time.sleep(0.02)
            transport._owners.sweep()
        assert len(transport.engine.queue(OWNERS)) == 0
        assert [one.queue for _, one in transport.topology.all_bindings()] == ["tasks"]


@not_quick("it starts a server of its own")
def test_a_queue_in_use_does_not_expire(store: Path) -> None:
    with Connection(f"qindex://{store}") as connection, Connection(f"qindex://{store}") as other:
        brief = Queue("brief", expires=0.05)
        received = Received(connection, [brief])
        unused = Queue("unused", expires=0.05)(connection.channel())
        unused.declare()
        engine = other.transport.engine if other.connect() else None
        assert engine is not None
        deadline = time.monotonic() + WAIT
        while "unused" in engine.queue_names():
            assert time.monotonic() < deadline
            other.transport._owners.sweep()
            time.sleep(0.02)
        assert "brief" in engine.queue_names()
        other.Producer().publish("x", routing_key="brief")
        assert received.bodies(1) == ["x"]


def test_a_reply_that_nobody_waits_for_is_dropped(mine: Any, name: str) -> None:
    mine.Producer().publish("result", routing_key=name, correlation_id="c")
    assert name not in mine.transport.engine.queue_names()
    mine.Producer().publish("task", routing_key=name, correlation_id="c", headers={"task": "t"})
    assert Queue(name)(mine.channel()).get(no_ack=True).payload == "task"


def test_a_queue_that_another_process_deletes(shared_store: Path, name: str) -> None:
    with (
        Connection(f"qindex://{shared_store}") as connection,
        Connection(f"qindex://{shared_store}") as other,
    ):
        received = Received(connection, [Queue(name, Exchange(name, "direct"), routing_key="k")])
        other.channel().queue_delete(name)
        other.Producer().publish("lost", exchange=name, routing_key="k")  # nobody is bound
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=SOON)
        other.Producer().publish("again", exchange=name, routing_key="k")
        assert received.bodies(1) == ["again"]


def test_the_death_of_the_server(store: Path) -> None:
    url = f"qindex://{store}"
    with Connection(url) as connection, Connection(url) as publisher:
        received = Received(connection, [Queue("q")])
        producer = publisher.Producer()
        producer.publish("one", routing_key="q")
        connection.drain_events(timeout=WAIT)
        os.kill(server_pid(store), signal.SIGKILL)
        producer.publish("two", routing_key="q", retry=True)
        with pytest.raises(connection.connection_errors):
            connection.drain_events(timeout=WAIT)
        # As Celery does, on a new connection; the old message can't be acknowledged any more.
        with pytest.raises(connection.connection_errors):
            received.messages[0].ack()
        connection.close()
        with Connection(url) as again:
            assert Received(again, [Queue("q")]).bodies(2) == ["one", "two"]


# -- an event loop --------------------------------------------------------------------------------


class Looping(Received):
    """A consumer whose messages an event loop delivers."""

    def __init__(self, connection: Any, queues: list[Any], **options: Any) -> None:
        self.hub = Hub()
        connection.connect()
        connection.register_with_event_loop(self.hub)
        self.connection = connection
        super().__init__(connection, queues, **options)

    def run(self, seconds: float, count: int = 1_000_000) -> None:
        deadline = time.monotonic() + seconds
        self.hub.call_repeatedly(0.02, lambda: None)
        while time.monotonic() < deadline and len(self.messages) < count:
            self.hub.run_once()

    def bodies(self, count: int) -> list[Any]:
        self.run(WAIT, count)
        return super().bodies(count)


def test_an_event_loop_delivers_and_keeps_the_prefetch(shared_store: Path, name: str) -> None:
    url = f"qindex://{shared_store}"
    one, two = f"{name}a", f"{name}b"
    with Connection(url) as connection, Connection(url) as publisher:
        producer = publisher.Producer()
        for number, where in itertools.product(range(5), (one, two)):
            producer.publish(f"{where[-1]}{number}", routing_key=where, declare=[Queue(where)])
        looping = Looping(connection, [Queue(one), Queue(two)], prefetch=4)
        looping.run(WAIT, 4)
        looping.run(0.2)
        assert len(looping.messages) == 4
        found: list[Any] = []
        while len(found) < 10:
            found += looping.bodies(1)
        assert sorted(found) == sorted(f"{end}{at}" for at in range(5) for end in "ab")
        assert {body[0] for body in found[:4]} == {"a", "b"}, "one queue keeps the other waiting"
        looping.consumer.cancel()
        producer.publish("left", routing_key=one)
        looping.run(0.2)
        assert looping.messages == []
        assert Queue(one)(publisher.channel()).get(no_ack=True).payload == "left"


def test_what_a_loop_was_not_given_goes_back(shared_store: Path, name: str) -> None:
    url = f"qindex://{shared_store}"
    with Connection(url) as publisher:
        publisher.Producer().publish("x", routing_key=name, declare=[Queue(name)])
        with Connection(url) as connection:
            looping = Looping(connection, [Queue(name)])
            for tick in list(looping.hub.on_tick):
                tick()
            inbox = connection.transport._inbox
            deadline = time.monotonic() + WAIT
            while not inbox:
                assert time.monotonic() < deadline
                time.sleep(0.01)
        assert looping.messages == []
        assert publisher.SimpleQueue(name).get(timeout=WAIT).payload == "x"
        for thread in threading.enumerate():
            if thread.name.startswith("qindex-getter"):
                thread.join(WAIT)
                assert not thread.is_alive()


@not_quick("it starts a server of its own")
def test_an_event_loop_hears_of_the_death_of_the_server(store: Path) -> None:
    url = f"qindex://{store}"
    with Connection(url) as connection:
        connection.Producer().publish("x", routing_key="a", declare=[Queue("a")])
        looping = Looping(connection, [Queue("a")])
        looping.run(WAIT, 1)
        os.kill(server_pid(store), signal.SIGKILL)
        with pytest.raises(connection.connection_errors):
            looping.run(WAIT)
    with Connection(url) as connection:
        assert connection.SimpleQueue("a").get(timeout=WAIT).payload == "x"


def test_consumers_in_threads(shared_store: Path, name: str) -> None:
    url = f"qindex://{shared_store}"
    done: queue.Queue[Any] = queue.Queue()

    def work() -> None:
        with Connection(url) as connection, connection.SimpleQueue(name) as jobs:
            while (message := jobs.get(timeout=WAIT)).payload != "stop":
                message.ack()
                done.put(message.payload)
            message.ack()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for one in threads:
        one.start()
    with Connection(url) as connection, connection.SimpleQueue(name) as jobs:
        for number in range(60):
            jobs.put(number)
        found = [done.get(timeout=WAIT) for _ in range(60)]
        for _ in threads:
            jobs.put("stop")
        for one in threads:
            one.join(WAIT)
    assert sorted(found) == list(range(60))
    assert TOPOLOGY in qindex.open(shared_store, read_only=True).queue_names()
