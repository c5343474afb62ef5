"""Messages that a follower came too late for."""

from __future__ import annotations

from dataclasses import dataclass

GONE = "acknowledged and removed before the follower came to them"
MISSING = "its message is not in the message store any more"
UNSOUND = "damaged"


@dataclass(frozen=True, slots=True)
class Gap:
    """The seq_ids ``first .. stop - 1``, which a follower could not give; ``reason`` says why.

    Mostly messages that a consumer acknowledged, and a flush removed, before the follower looked.
    seq_ids that a loss of power made the queue skip, and that no message ever had, also count here.
    """

    first: int
    stop: int
    reason: str = GONE

    def __len__(self) -> int:
        return self.stop - self.first

    def __str__(self) -> str:
        last = self.stop - 1
        which = f"seq_id {last}" if self.first == last else f"seq_ids {self.first} to {last}"
        return f"{which}: {self.reason}"
