"""Settings of the shop: ``TASKS`` is what matters here."""

from __future__ import annotations

import os
from pathlib import Path

BASE_DIR = Path(os.environ.get("SHOP", Path(__file__).parents[1]))

SECRET_KEY = "of an example"
DEBUG = True
USE_TZ = True
ROOT_URLCONF = "shop.urls"
INSTALLED_APPS = ["qindex.compat.django"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": BASE_DIR / "db.sqlite3"}}

TASKS = {
    "default": {
        "BACKEND": "qindex.compat.django.QindexBackend",
        "QUEUES": ["default", "mails"],
        "OPTIONS": {"directory": BASE_DIR / "tasks"},
    }
}
