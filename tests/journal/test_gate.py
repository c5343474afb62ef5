"""A gate lets its thread go on when it is called, and not before; in C and in Python."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from journal.gate import Gate, open_next

WAIT = 30.0


def test_called_before_and_called_twice() -> None:
    gate = Gate()
    gate.call()
    gate.call()
    for _ in range(2):
        thread = threading.Thread(target=gate.wait, daemon=True)
        thread.start()
        thread.join(WAIT)
        assert not thread.is_alive()


def test_nobody_goes_on_before_the_call() -> None:
    gate, passed = Gate(), threading.Event()

    def work() -> None:
        gate.wait()
        passed.set()

    thread = threading.Thread(target=work)
    thread.start()
    open_next()
    assert not passed.wait(0.05)
    gate.call()
    # The one that called comes to no gate.
    assert passed.wait(WAIT)
    thread.join(WAIT)


def test_a_ring_of_threads_in_turn() -> None:
    """Each passes its gate and calls the next one; all of them take their turns in order."""
    count, rounds = 6, 300
    gates = [[Gate() for _ in range(count)] for _ in range(rounds + 1)]
    order: list[int] = []

    def work(number: int) -> None:
        for each in range(rounds):
            gates[each][number].wait()
            order.append(number)
            last = number == count - 1
            gates[each + last][(number + 1) % count].call()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    gates[0][0].call()
    for thread in threads:
        thread.join(WAIT)
        assert not thread.is_alive()
    assert order == list(range(count)) * rounds


def test_several_are_called_by_one() -> None:
    gates = [Gate() for _ in range(8)]
    threads = [threading.Thread(target=gate.wait) for gate in gates]
    for thread in threads:
        thread.start()
    for gate in gates:
        gate.call()
    for thread in threads:
        thread.join(WAIT)
        assert not thread.is_alive()


def test_nothing_is_kept() -> None:
    """Of gates that were called, waited at or neither; but for the one that was called last."""
    gone = 0

    class Counted(Gate):
        def __del__(self) -> None:
            nonlocal gone
            gone += 1

    for number in range(1000):
        gate = Counted()
        if number % 2:
            gate.call()
        if number % 4 == 1:
            gate.wait()
    del gate
    assert gone >= 999
    open_next()
    assert gone == 1000


@contextmanager
def signals(handler: Callable[..., object], gate: Gate, count: int) -> Iterator[list[Gate]]:
    """This thread gets so many signals, one after the other; then the gate is called, and listed
    in what this gives."""
    called: list[Gate] = []
    before = signal.signal(signal.SIGUSR1, handler)
    main = threading.main_thread().ident
    assert main is not None

    def work() -> None:
        for _ in range(count):
            time.sleep(0.02)
            signal.pthread_kill(main, signal.SIGUSR1)
        time.sleep(0.05)
        called.append(gate)
        gate.call()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield called
    finally:
        thread.join(WAIT)
        signal.signal(signal.SIGUSR1, before)


def test_a_handler_that_raises_while_its_thread_waits() -> None:
    """It is raised; the next wait goes on waiting, and finds a call that came meanwhile."""
    gate = Gate()

    def handler(_signal: int, _frame: object) -> None:
        raise InterruptedError

    with signals(handler, gate, 1) as called:
        with pytest.raises(InterruptedError):
            gate.wait()
        gate.wait()
        assert called == [gate]


def test_a_handler_that_returns_while_its_thread_waits() -> None:
    gate, seen = Gate(), []
    with signals(lambda *_: seen.append(1), gate, 3):
        gate.wait()
        assert seen == [1, 1, 1]
