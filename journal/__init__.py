"""The ground floor: durable files, and the append-only action log of one queue.

Nothing here knows of queues, engines or message stores. The packages above import down:
``qindex -> msgstore -> journal`` and ``rocketstore -> journal``.
"""

from journal.compiled import install

# Before any module is imported that may be compiled.
install()
