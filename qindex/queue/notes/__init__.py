"""The notes that a queue keeps beside its index: due times, unique keys, counts and leases."""
