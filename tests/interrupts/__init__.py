"""A signal's handler that raises (Ctrl-C) ends a call at any point."""
