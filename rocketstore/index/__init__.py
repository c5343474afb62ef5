"""The IndexFiles, by which messages are found by key and time."""
