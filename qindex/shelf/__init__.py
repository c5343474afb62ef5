"""The queues of a store: finding, making, waking, resting, recovering, removing them."""
