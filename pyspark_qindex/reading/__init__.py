"""The tasks that read stores: entries, messages and files as rows, batch by batch."""
