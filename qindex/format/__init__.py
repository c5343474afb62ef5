"""Bytes of the files, and nothing else: records, segments, seq_ids, moves, names; RabbitMQ's beside
ours.

Nothing here opens a file.
"""
