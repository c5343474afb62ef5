"""The tasks of the shop."""

from __future__ import annotations

import os
import time

from django.conf import settings

try:
    from django.tasks import task
except ImportError:  # before Django 6
    from django_tasks import task


@task(queue_name="mails")
def send_mail(address: str) -> str:
    """Send a mail."""
    time.sleep(float(os.environ.get("SECONDS", "0.01")))
    if "@" not in address:
        raise ValueError(f"{address!r} is no address")
    sent = os.open(settings.BASE_DIR / "sent", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(sent, f"{address}\n".encode())
    os.close(sent)
    return f"sent to {address}"


@task(priority=50, takes_context=True)
def count_words(context, text: str) -> dict[str, int]:  # noqa: ANN001  # of either package
    """Count words."""
    return {"words": len(text.split()), "attempt": context.attempt}
