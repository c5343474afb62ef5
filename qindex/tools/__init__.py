"""Tools over a store directory: verify it, repair it, salvage a RabbitMQ node's.

The checks are generators of :class:`journal.findings.Finding` over a directory, for use by other
programs as well: :func:`qindex.tools.verify.check_store` is all of them.
"""
