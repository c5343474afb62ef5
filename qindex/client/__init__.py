"""The engine's face in a process that shares its store with others: calls go to a server."""
