"""Directories that somebody else made: links, special files, giants, values that nobody wrote."""
