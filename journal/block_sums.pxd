# Types for the names of block_sums.py.
from journal.memory cimport read_words
