"""The ConsumeQueues, and the offsets of their consumers."""
