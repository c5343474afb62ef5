"""The engine: one store directory, its queues, its housekeeping, and moves between queues."""
