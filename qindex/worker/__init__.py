"""Running the work that a store's queues hold, and the schedules that publish it."""
