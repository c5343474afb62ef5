"""Django's tasks on qindex: a backend for ``TASKS``, and the command ``qindex_worker``.

``django.tasks`` is part of Django 6. For earlier versions there is the package ``django-tasks``.
"""

from __future__ import annotations

from qindex.compat.django.backend import QindexBackend

__all__ = ["QindexBackend"]
