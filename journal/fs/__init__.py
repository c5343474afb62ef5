"""The file seam: the one place that calls the operating system for the files of a store."""
