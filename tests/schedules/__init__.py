"""Every schedule of threads of small workloads: tests/schedules/scheduler.py says how."""
