"""From files to state: read, merge, reconcile, rewrite what must be."""
