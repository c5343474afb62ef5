"""The ConsumeQueues, and the offsets of those who read them."""
