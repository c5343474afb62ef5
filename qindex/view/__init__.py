"""Looking without writing: a point in time, readers, live figures."""
