"""``qindex compare``: one workload on the queue-index design and on the RocketMQ-style store.

Nothing else in the package imports this: it sits on top of both designs, and is loaded when a user
runs the command.
"""
