"""Works off the orders, one after the other, until SIGTERM; run as many as you like.

An order whose worker is killed is given to another one at once. So an order may be handled twice:
what is written names its number.
"""

from __future__ import annotations

import os
import signal
import time

import qindex


def handle(order: qindex.Delivery) -> None:
    """Handle one order: write it down, as one line that is there whole or not at all."""
    line = b"%d %s\n" % (order.seq_id, order.body)
    path = os.environ.get("DONE", "orders-done")
    done = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(done, line)
    os.close(done)
    time.sleep(0.01)


def main() -> None:
    """Consume until SIGTERM. The order in hand is finished."""
    with qindex.open(os.environ.get("ORDERS", "orders-data"), shared=True) as engine:
        orders = engine.queue("orders").consume(prefetch=10)
        signal.signal(signal.SIGTERM, lambda _number, _frame: orders.stop())
        while not orders.stopped:
            try:
                for order in orders:
                    with order:  # acknowledged at the end, requeued if the block raises
                        handle(order)
            except (qindex.DisconnectedError, qindex.LeaseExpiredError):
                continue  # the server was killed; the next round finds or starts one


if __name__ == "__main__":
    main()
