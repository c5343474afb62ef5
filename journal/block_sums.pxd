# Types for the names of block_sums.py.
from journal cimport read_words
