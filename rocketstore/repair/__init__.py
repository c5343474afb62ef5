"""Opening and recovery, repair of what is damaged, and rebuilding queues and index from the log."""
