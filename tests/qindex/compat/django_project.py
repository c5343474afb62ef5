"""Settings for the tests of Django's tasks."""

from __future__ import annotations

import os

SECRET_KEY = "of the tests"
USE_TZ = True
INSTALLED_APPS = ["qindex.compat.django"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
TASKS = {
    "default": {
        "BACKEND": "qindex.compat.django.QindexBackend",
        "QUEUES": ["default", "other"],
        "OPTIONS": {"directory": os.environ.get("TASKS_DIRECTORY", "unset"), "max_attempts": 2},
    }
}
