"""``qindex inspect``: the records of one file."""
