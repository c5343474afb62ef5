"""A FastAPI service that answers at once, and workers that send the mails behind it.

``uvicorn signup:app --workers 4`` serves; ``qindex worker signup:welcome signup-data mails
--processes 2`` sends, as often as you start it. A mail that fails is tried again after a pause; one
that can't be sent is put aside, and ``qindex redrive signup-data mails.failed --rate 10`` puts
those back when the fault is mended, ten a second.
"""

from __future__ import annotations

import json
import os

from fastapi import FastAPI, Response

import qindex
from qindex.worker import Reject

app = FastAPI()
engine = qindex.open(os.environ.get("SIGNUP", "signup-data"), shared=True)
mails = engine.queue(
    "mails", delivery_limit=4, backoff="exponential:0.1:60", dead_letter="mails.failed"
)


@app.post("/signup/{name}", status_code=202)
def sign_up(name: str, response: Response) -> dict[str, int | str]:
    """Take a user; the mail is on disk when this answers."""
    try:
        return {"mail": mails.publish(json.dumps({"to": name}).encode(), key=name, confirm=True)}
    except qindex.DisconnectedError:
        response.status_code = 503  # the store's server was killed just now: the next call goes on
        return {"error": "try again"}


def welcome(mail: qindex.Delivery) -> None:
    """Send one mail: here, a line in a file."""
    name = json.loads(mail.body)["to"]
    if not os.path.exists(os.environ.get("SMTP", "smtp-is-up")):
        raise ConnectionError("the mail server is down")
    if name == "nobody":
        raise Reject("no such address")
    out = os.open(os.environ.get("SENT", "sent"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(out, f"{name} {mail.delivery_count} {mail.headers.get('x-redrives', 0)}\n".encode())
    os.close(out)
