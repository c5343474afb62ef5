"""Programs that measure the project beside what a Python service would use instead.

Each prints one JSON line for each figure, and a table. ``python -m benchmarks.engine --help``.
"""
