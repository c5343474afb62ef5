"""The sink: what Spark writes to a store, staged by its tasks and published once."""
