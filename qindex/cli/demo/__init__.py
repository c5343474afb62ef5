"""``qindex demo``: a process is killed while it works, and nothing is lost."""
