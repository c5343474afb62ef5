"""What a queue notes of its messages beside the index: due times, unique keys, counts, leases."""
