"""Follow a queue from another process, as it is written; see :func:`follow`."""

from __future__ import annotations

from qindex.following.follower import Follower, QueueGoneError, follow
from qindex.following.gap import Gap

__all__ = ["Follower", "Gap", "QueueGoneError", "follow"]
