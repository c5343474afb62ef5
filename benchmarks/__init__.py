"""Programs that measure qindex, each beside its peers in the same run.

Each prints one JSON line for each figure and each bar on standard output (or into the file that
``--json`` names), and tables on standard error. ``python -m benchmarks.engine --help``.
"""
