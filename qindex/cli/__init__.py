"""The command line ``qindex``; its entry point is :func:`qindex.cli.start.main`.

Nothing in :mod:`qindex` imports this package. It needs typer and rich: ``qindex[cli]``.
"""
