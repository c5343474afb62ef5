"""The queue a user holds: producing, delivering, settling; leases, limits, wake-ups."""
