"""Numbers, bytes and arrays in memory, and the stamp of the process they belong to."""
