"""The CommitLog: mapped files, reading them in order, and what queues and index take from it."""
