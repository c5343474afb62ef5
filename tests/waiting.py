"""How long a test waits for another thread or process."""

from __future__ import annotations

__all__ = ["WAIT"]

WAIT = 120.0
"""Seconds until a test gives up: it hangs then, however busy the machine is."""
