"""Follow a queue from another process, as it is written; see :func:`follow`."""

from __future__ import annotations

from qindex.following.follower import Follower, QueueGoneError
from qindex.following.gap import Gap
from qindex.following.start import follow

__all__ = ["Follower", "Gap", "QueueGoneError", "follow"]
