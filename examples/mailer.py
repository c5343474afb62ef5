"""Send reminders later, unless they are cancelled before.

    python examples/mailer.py DIRECTORY remind 3600 "pay for order 17"     prints a number
    python examples/mailer.py DIRECTORY cancel 0
    python examples/mailer.py DIRECTORY send                               until SIGTERM

A reminder that was not sent because the process was killed, or because sending it failed, is sent
by the next run. A failure is followed by a pause, which doubles from one second to five minutes.
After five failures the reminder goes to the queue "unsent".
"""

from __future__ import annotations

import signal
import sys

import qindex


def send(reminder: qindex.Delivery) -> None:
    """Send one reminder. A mail server would get it here."""
    print(reminder.seq_id, reminder.body.decode(), flush=True)


def main() -> None:
    """Do what the second argument says."""
    directory, what, *rest = sys.argv[1:]
    with qindex.open(directory, shared=True) as engine:
        reminders = engine.queue(
            "reminders", backoff="exponential:1:300", delivery_limit=5, dead_letter="unsent"
        )
        if what == "remind":
            print(reminders.publish(rest[1].encode(), delay=float(rest[0])))
        elif what == "cancel":
            print("cancelled" if reminders.cancel(int(rest[0])) else "too late")
        else:
            consumer = reminders.consume(prefetch=1)
            signal.signal(signal.SIGTERM, lambda _number, _frame: consumer.stop())
            for reminder in consumer:
                with reminder:
                    send(reminder)


if __name__ == "__main__":
    main()
