"""Tell PyInstaller where the hooks of qindex are (the entry point ``pyinstaller40``)."""

from __future__ import annotations

import os


def hook_dirs() -> list[str]:
    """Return the directories of the hooks."""
    return [os.path.dirname(__file__)]
