"""Opening and recovery, repair of damage, and rebuilding queues and index from the log."""
