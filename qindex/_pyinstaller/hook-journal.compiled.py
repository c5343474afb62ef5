"""Take the compiled modules, and all that only they import, into a frozen program."""

from __future__ import annotations

import os

from journal.compiled import COMPILED, build, builds_folder, digest

_ROOT = os.path.dirname(os.path.dirname(builds_folder()))
hiddenimports: list[str] = []
binaries: list[tuple[str, str]] = []

for package in ("journal", "msgstore", "qindex", "rocketstore"):
    for folder, inner, names in os.walk(os.path.join(_ROOT, package)):
        inner[:] = [each for each in inner if not each.startswith("_")]
        parts = os.path.relpath(folder, _ROOT).split(os.sep)
        hiddenimports += [
            ".".join([*parts, name.removesuffix(".py")]).removesuffix(".__init__")
            for name in names
            if name.endswith(".py")
        ]

if build() == COMPILED:
    built = os.path.join(builds_folder(), digest())
    target = os.path.join("journal", "_compiled", digest())
    binaries += [(os.path.join(built, name), target) for name in os.listdir(built)]
