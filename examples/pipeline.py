"""Count words through two queues into SQLite: each line of the queue once, whatever is killed.

Lines from standard input go to the queue "lines". (After a kill, go on with ``< /dev/null``: lines
that are passed again are new ones.) The first stage takes a line and publishes its
words in the transaction that acknowledges it. The second stage writes a word into the database
together with its seq_id, and acknowledges it after that. A word that is delivered again, because
the process was killed in between, is known by its seq_id.

    python examples/pipeline.py DIRECTORY < text
"""

from __future__ import annotations

import sqlite3
import sys

import qindex

TABLES = """
    CREATE TABLE IF NOT EXISTS seen (seq_id INTEGER PRIMARY KEY);
    CREATE TABLE IF NOT EXISTS words (word TEXT PRIMARY KEY, count INTEGER);
"""
COUNT = "INSERT INTO words VALUES (?, 1) ON CONFLICT (word) DO UPDATE SET count = count + 1"


def split(engine: qindex.Engine) -> None:
    """Turn lines into words."""
    for line in engine.queue("lines").consume(timeout=0):
        with engine.transaction() as tx:
            for word in line.body.split():
                tx.publish("words", word)
            tx.ack(line)


def count(engine: qindex.Engine, database: sqlite3.Connection) -> None:
    """Count words."""
    for word in engine.queue("words").consume(timeout=0):
        try:
            with database:
                database.execute("INSERT INTO seen VALUES (?)", [word.seq_id])
                database.execute(COUNT, [word.body.decode()])
        except sqlite3.IntegrityError:
            pass  # it was counted before the process was killed
        word.ack()


def main() -> None:
    """Publish what comes on standard input, and work it off."""
    with qindex.open(sys.argv[1]) as engine:
        database = sqlite3.connect(f"{sys.argv[1]}.db")
        database.executescript(TABLES)
        lines = engine.queue("lines")
        for line in sys.stdin.buffer:
            lines.publish(line)
        split(engine)
        count(engine, database)
        database.close()


if __name__ == "__main__":
    main()
