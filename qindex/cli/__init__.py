"""The command line ``qindex``; its entry point is :func:`qindex.cli.app.main`.

Nothing in :mod:`qindex` imports this package, which needs typer, and rich for the demo.
"""
