"""A real RabbitMQ node for tests: own directory, own ports on loopback, own epmd, nothing shared.

The node runs as the user of the test, from the server script of the distribution's package
(``scripts/install-rabbitmq.sh`` installs it) and not through the package's wrapper, which would
change the user. Nothing of the system's own broker, its configuration or its data, is read.
"""

import contextlib
import hashlib
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import pika
import pytest

from tests.effort import skip_in_quick

PACKAGE_ROOT = Path("/usr/lib/rabbitmq/lib")
SUPPORTED_VERSION = "3.10."
"""The version whose files the tests know: 3.8 wrote other segments, 4.0 another index."""

VHOST = "/"
_POLL_SECONDS = 0.02


class BrokerError(RuntimeError):
    """The node did not start or stop as it should; the message ends with the tail of its log."""


@dataclass(frozen=True, slots=True)
class Drained:
    """One delivered message. ``properties`` is a ``pika.BasicProperties``."""

    body: bytes
    properties: Any
    redelivered: bool
    exchange: str
    routing_key: str


def rabbitmq_or_skip() -> Path:
    """Return the installed server's directory; skip the calling test when there is none.

    Made to be the first call of a fixture, of whatever scope. A version the tests do not know is
    skipped too.
    """
    homes = sorted(PACKAGE_ROOT.glob("rabbitmq_server-*"))
    if not homes:
        pytest.skip("no real RabbitMQ here: scripts/install-rabbitmq.sh installs it")
    home = homes[-1]
    version = home.name.removeprefix("rabbitmq_server-")
    if not version.startswith(SUPPORTED_VERSION):
        pytest.skip(f"RabbitMQ {version} is installed, the tests know {SUPPORTED_VERSION}x")
    if shutil.which("epmd") is None:
        pytest.skip("RabbitMQ is installed, but Erlang's epmd is not on the PATH")
    skip_in_quick("a real RabbitMQ")
    return home


def base36_md5(data: bytes) -> str:
    """MD5 of ``data`` as an unpadded base-36 number: how RabbitMQ names store directories."""
    number = int.from_bytes(hashlib.md5(data, usedforsecurity=False).digest(), "big")
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"[digit] + digits
    return digits


class RabbitServer:
    """One RabbitMQ node with all its files below ``base``, a directory of its own.

    ``settings`` are application settings of the broker as Erlang terms, for example
    ``{"msg_store_file_size_limit": "1048576"}``.

    Use as a context manager, or call ``close``; no process survives that. A node that was started
    from the main thread also dies with the process that started it, however that one ends.
    """

    def __init__(self, base: Path, settings: Mapping[str, str] | None = None) -> None:
        package = rabbitmq_or_skip()
        self._base = base.resolve()
        self._settings = dict(settings or {})
        # The node's name is part of its data directory's name, so the same base gets the same one.
        self._node = f"qindex-{base36_md5(os.fsencode(self._base))[:12].lower()}@localhost"
        self._amqp_port = 0
        self._epmd_port = 0
        self._epmd: subprocess.Popen[bytes] | None = None
        self._beam: subprocess.Popen[bytes] | None = None
        for directory in ("mnesia", "log", "tmp"):
            (self._base / directory).mkdir(parents=True, exist_ok=True)
        _write_cookie(self._base / ".erlang.cookie")
        (self._base / "enabled_plugins").write_text("[].\n")
        _link_home(package, self._base / "home")

    def __enter__(self) -> "RabbitServer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # --- the node ---------------------------------------------------------------------------

    @property
    def vhost_dir(self) -> Path:
        """Store directory of the vhost "/". It appears with the first start."""
        vhost = base36_md5(VHOST.encode())
        return self._base / "mnesia" / self._node / "msg_stores" / "vhosts" / vhost

    @property
    def is_running(self) -> bool:
        """True from ``start`` until ``stop``, ``kill`` or the node's own end."""
        return self._beam is not None and self._beam.poll() is None

    def start(self, timeout: float = 60.0) -> None:
        """Start the node; return when it has recovered its store and accepts AMQP.

        Raises ``BrokerError`` when it ends, or does not come up within ``timeout`` seconds; no
        node is left running then.
        """
        if self.is_running:
            raise BrokerError("the node is running already")
        deadline = time.monotonic() + timeout
        self._start_epmd(deadline)
        # Ports are chosen anew each time: the old ones may have been taken since.
        self._amqp_port, dist_port = _free_ports(2)
        self._write_config()
        with (self._base / "log" / "console.log").open("wb") as console:
            # The script execs the Erlang VM (see RUNNING_UNDER_SYSTEMD), so the pid is the VM's.
            self._beam = subprocess.Popen(
                _dying_with_us([str(self._base / "home" / "sbin" / "rabbitmq-server")]),
                env=self._environment(dist_port),
                cwd=self._base,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        while not _accepts_amqp(self._amqp_port):
            ended = self._beam.poll() is not None
            if ended or time.monotonic() > deadline:
                problem = f"ended with {self._beam.poll()}" if ended else f"not up in {timeout} s"
                self.kill()
                raise BrokerError(f"node start: {problem}\n{self.log_tail()}")
            time.sleep(_POLL_SECONDS)

    def stop(self, timeout: float = 30.0) -> None:
        """Stop the node in order, so that it leaves its clean-shutdown files.

        Raises ``BrokerError`` when it was not running, does not end in ``timeout`` seconds (it is
        killed then) or did not leave them.
        """
        beam = self._beam
        if beam is None or beam.poll() is not None:
            raise BrokerError(f"node stop: it is not running\n{self.log_tail()}")
        beam.send_signal(signal.SIGTERM)
        try:
            status = beam.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BrokerError(f"node stop: not down in {timeout} s\n{self.log_tail()}") from None
        self._beam = None
        self._reap_helpers()
        mark = self.vhost_dir / "msg_store_persistent" / "clean.dot"
        if status != 0 or not mark.exists():
            raise BrokerError(f"node stop: not clean, exit status {status}\n{self.log_tail()}")

    def kill(self) -> None:
        """End the node by SIGKILL, as a crash would; nothing to do when it is not running."""
        if self._beam is not None:
            self._beam.kill()
            self._beam.wait()
            self._beam = None
            self._reap_helpers()

    def close(self) -> None:
        """End everything that was started, by SIGKILL. May be called again, and in any state."""
        self.kill()
        if self._epmd is not None:
            self._epmd.kill()
            self._epmd.wait()
            self._epmd = None

    def processes(self) -> list[int]:
        """Return the pids of all processes of this node: VM, its helpers, epmd.

        Found by their environment: their home directory is the base directory.
        """
        mine = b"HOME=" + os.fsencode(self._base)
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            # Processes of other users can't be read, and any may end at any moment.
            with contextlib.suppress(OSError):
                if mine in path.read_bytes().split(b"\0"):
                    found.append(int(path.parent.name))
        return found

    def log_tail(self, lines: int = 40) -> str:
        """Return the last lines of what the node printed and logged."""
        parts = []
        for name in ("console.log", "node.log"):
            path = self._base / "log" / name
            if path.exists():
                tail = path.read_text(errors="replace").splitlines()[-lines:]
                parts.append("\n".join([f"--- {name}", *tail]))
        return "\n".join(parts)

    # --- its store --------------------------------------------------------------------------

    def queue_dir(self, name: str, priority: int | None = None) -> Path:
        """Directory of a classic queue; of one priority of it if it has x-max-priority."""
        suffix = b"" if priority is None else bytes([0, priority])
        return self.vhost_dir / "queues" / base36_md5(f"queue{VHOST}{name}".encode() + suffix)

    def forget_clean_stop(self) -> None:
        """Make the stopped node recover from its files alone at the next start.

        It then believes what stands in journals, segments and message store, so those can be
        replaced first. Unneeded after ``kill``. Without it, counts and positions of the last clean
        stop are believed and replaced files are misread.
        """
        if self.is_running:
            raise BrokerError("the node is running: its recovery.dets is in use")
        (self.vhost_dir / "recovery.dets").unlink(missing_ok=True)

    # --- AMQP -------------------------------------------------------------------------------

    def connection(self) -> Any:
        """Open a ``pika.BlockingConnection`` to the vhost "/"; the caller closes it."""
        return pika.BlockingConnection(
            pika.ConnectionParameters("127.0.0.1", self._amqp_port, VHOST, heartbeat=0)
        )

    @contextlib.contextmanager
    def channel(self) -> Iterator[Any]:
        """Give a channel on a connection of its own; both are closed at the end."""
        connection = self.connection()
        try:
            yield connection.channel()
        finally:
            if connection.is_open:
                connection.close()

    def declare_queue(
        self, name: str, arguments: Mapping[str, Any] | None = None, durable: bool = True
    ) -> None:
        """Declare a queue; bound to the default exchange under its name, as all are."""
        with self.channel() as channel:
            channel.queue_declare(name, durable=durable, arguments=dict(arguments or {}))

    def publish_confirmed(
        self,
        routing_key: str,
        bodies: Iterable[bytes],
        properties: Any = None,
        exchange: str = "",
    ) -> int:
        """Publish persistent messages; return their number when all are on the node's disk.

        ``properties`` (``pika.BasicProperties``) replaces the default, which is delivery mode 2.
        One AMQP transaction holds them all: its commit is answered when each message is confirmed,
        in one round trip. Raises ``BrokerError`` when a message reached no queue.
        """
        properties = properties or pika.BasicProperties(delivery_mode=2)
        messages = list(bodies)
        returned: list[Any] = []
        with self.channel() as channel:
            channel.add_on_return_callback(lambda *message: returned.append(message))
            channel.tx_select()
            for body in messages:
                channel.basic_publish(exchange, routing_key, body, properties, mandatory=True)
            channel.tx_commit()
            channel.connection.process_data_events(0)
        if returned:
            raise BrokerError(f"{len(returned)} of {len(messages)} messages reached no queue")
        return len(messages)

    def drain(self, queue: str, ack: bool = True) -> list[Drained]:
        """Take all ready messages, in order of delivery. Without ``ack`` they go back after.

        The node writes acks within some 200 ms; a ``kill`` before that brings messages back.
        """
        drained: list[Drained] = []

        def take(_channel: Any, method: Any, properties: Any, body: bytes) -> None:
            drained.append(
                Drained(body, properties, method.redelivered, method.exchange, method.routing_key)
            )

        with self.channel() as channel:
            channel.basic_consume(queue, take)
            # The count 0 can overtake deliveries that the queue has already handed to the
            # channel process; they come before the answer to the next question.
            for _ in range(2):
                while channel.queue_declare(queue, passive=True).method.message_count:
                    time.sleep(_POLL_SECONDS)
            channel.connection.process_data_events(0)
            if ack and drained:
                channel.basic_ack(0, multiple=True)
            channel.close()
        return drained

    # --- inside -----------------------------------------------------------------------------

    def _start_epmd(self, deadline: float) -> None:
        if self._epmd is not None and self._epmd.poll() is None:
            return
        (self._epmd_port,) = _free_ports(1)
        self._epmd = subprocess.Popen(
            _dying_with_us(["epmd", "-port", str(self._epmd_port), "-address", "127.0.0.1"]),
            env=self._common_environment(),
            cwd=self._base,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        # A node that finds no epmd starts one itself, as a daemon that nobody would end.
        while not _accepts(self._epmd_port):
            if self._epmd.poll() is not None or time.monotonic() > deadline:
                self.close()
                raise BrokerError(f"epmd does not listen on port {self._epmd_port}")
            time.sleep(_POLL_SECONDS)

    def _common_environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "LANG": "C.UTF-8",
            "HOME": str(self._base),
            "TMPDIR": str(self._base / "tmp"),
        }

    def _environment(self, dist_port: int) -> dict[str, str]:
        base = self._base
        return self._common_environment() | {
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_CRASH_DUMP": str(base / "log" / "erl_crash.dump"),
            "RUNNING_UNDER_SYSTEMD": "true",
            "RABBITMQ_SCRIPTS_DIR": str(base / "home" / "sbin"),
            "RABBITMQ_CONF_ENV_FILE": str(base / "rabbitmq-env.conf"),
            "RABBITMQ_NODENAME": self._node,
            "RABBITMQ_DIST_PORT": str(dist_port),
            "RABBITMQ_MNESIA_BASE": str(base / "mnesia"),
            "RABBITMQ_LOG_BASE": str(base / "log"),
            "RABBITMQ_LOGS": str(base / "log" / "node.log"),
            "RABBITMQ_CONFIG_FILE": str(base / "rabbitmq.config"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(base / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(base / "enabled_plugins"),
            "RABBITMQ_PID_FILE": str(base / "node.pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                "+S 1:1 -kernel inet_dist_use_interface {127,0,0,1}"
            ),
        }

    def _write_config(self) -> None:
        settings = {
            "tcp_listeners": f'[{{"127.0.0.1",{self._amqp_port}}}]',
            "num_tcp_acceptors": "1",
            "heartbeat": "0",
            "vm_memory_high_watermark": "{absolute,536870912}",
            "disk_free_limit": "1000000",
        } | self._settings
        terms = ",\n  ".join(f"{{{name},{term}}}" for name, term in settings.items())
        # Erlang terms rather than the newer key = value form, which lacks some of the settings.
        (self._base / "rabbitmq.config").write_text(f"[{{rabbit,[\n  {terms}\n]}}].\n")

    def _reap_helpers(self) -> None:
        """Wait for the VM's helper processes, which end when they notice that it is gone."""
        deadline = time.monotonic() + 5.0
        epmd = self._epmd.pid if self._epmd is not None else None
        while helpers := [pid for pid in self.processes() if pid != epmd]:
            if time.monotonic() > deadline:
                for pid in helpers:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            time.sleep(_POLL_SECONDS)


def _dying_with_us(command: list[str]) -> list[str]:
    setpriv = shutil.which("setpriv")
    # The kernel ties the signal to the end of the starting thread, not of its process: a thread
    # that may end before the node must not ask for it.
    if setpriv is None or threading.current_thread() is not threading.main_thread():
        return command
    return [setpriv, "--pdeathsig", "KILL", "--", *command]


def _write_cookie(path: Path) -> None:
    if not path.exists():
        path.write_text(secrets.token_hex(16))
        path.chmod(0o400)


def _link_home(package: Path, home: Path) -> None:
    """Lay out a server home of links which has the broker and what it depends on, no plugins.

    The Erlang VM looks for each module in each directory of its path; without the fifty unused
    ones a start takes two thirds of the time.
    """
    plugins = home / "plugins"
    if plugins.exists():
        return
    plugins.mkdir(parents=True)
    for part in ("sbin", "escript"):
        (home / part).symlink_to(package / part)
    available = {
        directory.name.rpartition("-")[0]: directory
        for directory in (package / "plugins").iterdir()
        if directory.is_dir()
    }
    wanted, linked = ["rabbit"], set[str]()
    while wanted:
        name = wanted.pop()
        if name in linked or name not in available:  # the others are part of Erlang
            continue
        linked.add(name)
        directory = available[name]
        (plugins / directory.name).symlink_to(directory)
        text = (directory / "ebin" / f"{name}.app").read_text()
        dependencies = re.search(r"\{\s*applications\s*,\s*\[(.*?)\]", text, re.DOTALL)
        if dependencies:
            wanted += re.findall(r"\w+", dependencies[1])


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
    except OSError:
        return False
    return True


def _accepts_amqp(port: int) -> bool:
    """Tell whether an AMQP 0-9-1 server answers the protocol header (with Connection.Start)."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0) as client:
            client.sendall(b"AMQP\x00\x00\x09\x01")
            return client.recv(1) == b"\x01"
    except OSError:
        return False
