"""Every call that the engine makes of the file system fails once: what then becomes of it, and of
what it had promised."""
