"""The part in C; all else stands in pyproject.toml."""

from setuptools import Extension, setup

NAMES = ("ack", "calls", "get", "module", "publish", "read_run")

setup(
    ext_modules=[
        Extension(
            "qindex._compiled",
            sources=[f"qindex/c/{name}.c" for name in NAMES],
            depends=["qindex/c/shared.h"],
            extra_compile_args=["-fvisibility=hidden"],
            # Without a compiler the package is built without it, and works.
            optional=True,
        )
    ]
)
