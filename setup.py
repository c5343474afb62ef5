"""The parts in C; all else stands in pyproject.toml."""

from setuptools import Extension, setup

SHARED = ("lock", "objects")
PARTS = {
    "qindex": ("ack", "calls", "get", "module", "publish", "read_run"),
    "rocketstore": ("bodies", "module", "put"),
}

setup(
    ext_modules=[
        Extension(
            f"{package}._compiled",
            sources=[
                *(f"journal/c/{name}.c" for name in SHARED),
                *(f"{package}/c/{name}.c" for name in names),
            ],
            depends=[*(f"journal/c/{name}.h" for name in SHARED), f"{package}/c/shared.h"],
            extra_compile_args=["-fvisibility=hidden"],
            # Without a compiler the package is built without it, and works.
            optional=True,
        )
        for package, names in PARTS.items()
    ]
)
