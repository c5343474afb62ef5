"""The queue index: the owner of every entry's life, with its journal, segments, flush and
seq_ids."""
