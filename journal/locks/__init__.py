"""Locks that know their owner, the lock of a directory, and the sync that callers share."""
