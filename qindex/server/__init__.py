"""The server of a shared store: one process has it open, and others use it through a socket."""
