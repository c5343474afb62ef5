"""The bytes of each file, of records and their properties; nothing here opens a file."""
