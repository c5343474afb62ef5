"""Take orders into SQLite, and send what follows from each of them exactly once.

An order and its row in the outbox are one transaction of the database. The relay publishes a row's
messages in one transaction of the store, and then deletes the row. If the process is killed between
the two, the relay publishes the row again, and the unique key refuses it.

    python examples/outbox.py DIRECTORY 100
"""

from __future__ import annotations

import sqlite3
import sys

import qindex

TABLES = """
    CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, what TEXT);
    CREATE TABLE IF NOT EXISTS outbox (id INTEGER PRIMARY KEY, what TEXT);
"""
A_DAY = 86_400.0


def place(database: sqlite3.Connection, what: str) -> None:
    """Take an order. It is in both tables, or in none."""
    with database:
        number = database.execute("INSERT INTO orders (what) VALUES (?)", [what]).lastrowid
        database.execute("INSERT INTO outbox VALUES (?, ?)", [number, what])


def relay(database: sqlite3.Connection, engine: qindex.Engine) -> None:
    """Publish what is in the outbox."""
    for number, what in database.execute("SELECT id, what FROM outbox ORDER BY id").fetchall():
        try:
            with engine.transaction() as tx:
                tx.publish("mails", what.encode(), unique=f"order {number}", window=A_DAY)
                tx.publish("invoices", what.encode(), key=str(number))
        except qindex.DuplicateError:
            pass  # both were published before the process was killed
        with database:
            database.execute("DELETE FROM outbox WHERE id = ?", [number])


def main() -> None:
    """Take orders until there are as many as the second argument says."""
    directory, count = sys.argv[1], int(sys.argv[2])
    with qindex.open(directory) as engine:
        database = sqlite3.connect(f"{directory}.db")
        database.executescript(TABLES)
        relay(database, engine)
        taken = database.execute("SELECT count(*) FROM orders").fetchone()[0]
        for number in range(taken, count):
            place(database, f"order {number}")
            relay(database, engine)
        database.close()


if __name__ == "__main__":
    main()
