"""Compile the modules that have types beside them; pyproject.toml has the rest.

``QINDEX_COMPILE``: without it nothing is compiled. ``yes`` compiles what can be, and the rest is
interpreted; ``require`` makes a failure an error. ``QINDEX_CFLAGS``: more for the compiler, as
``-fsanitize=address``.
"""

from __future__ import annotations

import os
import runpy
import shutil
import sys
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent
# By its path: to import the package would be to choose a build.
COMPILED: dict[str, Any] = runpy.run_path(str(ROOT / "journal" / "compiled.py"))
MODE = os.environ.get("QINDEX_COMPILE", "no")
FLAGS = ["-O2", "-g0", "-fno-strict-aliasing", *os.environ.get("QINDEX_CFLAGS", "").split()]
DIRECTIVES = {
    "language_level": 3,
    # Annotations are for mypy; the .pxd files are for the compiler.
    "annotation_typing": False,
    # A wrong index is an IndexError, and not a wrong byte.
    "boundscheck": True,
    "wraparound": True,
    # None where an object of ours is expected is an AttributeError.
    "nonecheck": True,
}


def extensions() -> list[Extension]:
    """Give what is to be compiled; nothing where that was not asked for, or can't be."""
    if MODE == "no" or sys.implementation.name != "cpython":
        return []
    return [
        Extension(
            module,
            [module.replace(".", "/") + ".py"],
            extra_compile_args=FLAGS,
            extra_link_args=[each for each in FLAGS if each.startswith("-fsanitize")],
            optional=MODE != "require",
        )
        for module in COMPILED["MODULES"]
    ]


def translate(extensions: list[Extension]) -> None:
    """Have them made of C in place of Python.

    Not before there is something to build: pip runs this file several times."""
    from Cython.Build import cythonize

    made = cythonize(
        extensions,
        compiler_directives=DIRECTIVES,
        include_path=[str(ROOT)],
        build_dir="build/cython",
        force=True,  # it does not see that directives have changed
        quiet=True,
    )
    sources = {each.name: each.sources for each in made}
    for each in extensions:
        each.sources = sources[each.name]


class BuildCompiled(build_ext):
    """Puts the modules where no import finds them by itself (journal/compiled.py)."""

    def finalize_options(self) -> None:
        """Let as many compilers run at a time as there are processors."""
        super().finalize_options()
        if self.parallel is None:
            self.parallel = os.cpu_count()

    def get_ext_filename(self, fullname: str) -> str:
        """Give the path of a compiled module, from the root."""
        folder = Path("journal", "_compiled", COMPILED["digest"]())
        return str(folder / COMPILED["file_name"](fullname))

    def get_ext_fullpath(self, ext_name: str) -> str:
        """Give the path that it is written to."""
        return str(Path(self.build_lib, self.get_ext_filename(ext_name)))

    def _get_inplace_equivalent(self, _build_py: object, ext: Extension) -> tuple[str, str]:
        """Give where a module stands in the clone, and where it was written to."""
        file = Path(self.get_ext_filename(ext.name))
        ROOT.joinpath(file).parent.mkdir(parents=True, exist_ok=True)
        return str(ROOT / file), str(Path(self.build_lib, file))

    def run(self) -> None:
        """Remove builds of other sources, and build."""
        wanted = COMPILED["digest"]()
        for root in (ROOT, Path(self.build_lib)):
            for old in root.glob("journal/_compiled/*"):
                if old.name != wanted:
                    shutil.rmtree(old)
        if self.extensions:
            try:
                translate(self.extensions)
            except Exception as error:
                if MODE == "require":
                    raise
                print(f"qindex is not compiled, and runs interpreted: {error}", file=sys.stderr)
                self.extensions = []
        super().run()


setup(ext_modules=extensions(), cmdclass={"build_ext": BuildCompiled})
