"""A web service that takes orders: each POST is a message. Any WSGI server runs ``app``, with as
many worker processes as it likes; ``python orders_web.py PORT`` runs one process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import qindex

# Also with gunicorn --preload: a forked worker gets a session of its own.
engine = qindex.open(os.environ.get("ORDERS", "orders-data"), shared=True)
orders = engine.queue("orders", delivery_limit=5, dead_letter="failed-orders")


def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Take an order; it is on disk when the customer is told so."""
    size = int(environ.get("CONTENT_LENGTH") or 0)
    try:
        number = orders.publish(environ["wsgi.input"].read(size), confirm=True)
    except qindex.DisconnectedError as error:
        # The server of the store was killed just now; the next call finds or starts another.
        tried = "perhaps" if error.maybe_done else "no"
        start_response("503 Service Unavailable", [("X-Published", tried), ("Retry-After", "1")])
        return [b"try again\n"]
    start_response("201 Created", [("Content-Type", "text/plain")])
    return [b"%d\n" % number]


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


if __name__ == "__main__":
    with make_server("127.0.0.1", int(sys.argv[1]), app, handler_class=_Quiet) as server:
        print(f"http://127.0.0.1:{server.server_port}/", flush=True)
        server.serve_forever()
