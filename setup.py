"""The parts in C; all else stands in pyproject.toml."""

from glob import glob

from setuptools import Extension, setup

SHARED = ("journal/c/lock.c", "journal/c/objects.c")
PARTS = {
    "journal": ("journal/c/gate.c", "journal/c/held_io.c", "journal/c/module.c"),
    "qindex": (*SHARED, *sorted(glob("qindex/c/*.c"))),
    "rocketstore": (*SHARED, *sorted(glob("rocketstore/c/*.c"))),
}

setup(
    ext_modules=[
        Extension(
            f"{package}._compiled",
            sources=list(sources),
            depends=sorted(glob("*/c/*.h")),
            extra_compile_args=["-fvisibility=hidden"],
            # Without a compiler the package is built without it, and works.
            optional=True,
        )
        for package, sources in PARTS.items()
    ]
)
