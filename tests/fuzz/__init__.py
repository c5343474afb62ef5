"""Fuzzing of everything that reads bytes which somebody else may have written.

In the test suite hypothesis mutates real files for a second or so each (``test_decoders.py``);
``python -m tests.fuzz DECODER --seconds N`` lets atheris look for as long as one likes.
"""
