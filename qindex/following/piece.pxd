# Types for the names of piece.py.
from qindex.format cimport plain_rows
