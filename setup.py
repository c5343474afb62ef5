"""Compile the modules that have types beside them; pyproject.toml has the rest.

``QINDEX_COMPILE``: without it they are compiled where a C compiler is found, except for an editable
install; where they can't be, one line says so, and they run interpreted. ``no`` compiles nothing,
``yes`` compiles for an editable install as well, ``require`` makes a failure an error.
``QINDEX_CFLAGS``: more for the compiler, as ``-fsanitize=address``.
"""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent
# By its path: to import the package would be to choose a build.
COMPILED: dict[str, Any] = runpy.run_path(str(ROOT / "journal" / "compiled.py"))
MODE = os.environ.get("QINDEX_COMPILE", "")
IS_EDITABLE = not {"editable_wheel", "develop"}.isdisjoint(sys.argv)
FLAGS = ["-g0", "-fno-strict-aliasing", *os.environ.get("QINDEX_CFLAGS", "").split()]
AT_O2 = {
    "rocketstore.dispatcher",
    "rocketstore.format.heads",
    "rocketstore.format.javahash",
    "rocketstore.format.properties",
    "rocketstore.log.store_clock",
    "rocketstore.putter",
}
"""The modules that -O1 makes slower. It takes three fifths of the time to compile."""
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
GENERATED = Path("build", "cython")
SHARED = str(GENERATED.joinpath(*COMPILED["SHARED"].split("."))) + ".c"
"""Cython takes the module's name from the name of the file."""


def extensions() -> list[Extension]:
    """Give what is to be compiled; nothing where that is not wanted, or can't be."""
    if MODE == "no" or (IS_EDITABLE and not MODE) or sys.implementation.name != "cpython":
        return []
    sources = {module: module.replace(".", "/") + ".py" for module in COMPILED["MODULES"]}
    sources[COMPILED["SHARED"]] = SHARED
    return [
        Extension(
            module,
            [source],
            extra_compile_args=["-O2" if module in AT_O2 else "-O1", *FLAGS],
            extra_link_args=[each for each in FLAGS if each.startswith("-fsanitize")],
        )
        for module, source in sources.items()
    ]


def translate(extensions: list[Extension]) -> None:
    """Have them made of C in place of Python.

    Not before there is something to build: pip runs this file several times."""
    from Cython.Build import cythonize

    # Views of memory are a third of what is to be compiled, if each module has its own.
    made = cythonize(
        [each for each in extensions if each.name != COMPILED["SHARED"]],
        compiler_directives=DIRECTIVES,
        include_path=[str(ROOT)],
        build_dir=str(GENERATED),
        force=True,  # it does not see that directives have changed
        quiet=True,
        nthreads=os.cpu_count() or 1,
        shared_utility_qualified_name=COMPILED["SHARED"],
    )
    Path(SHARED).parent.mkdir(parents=True, exist_ok=True)
    subprocess.run([sys.executable, "-m", "cython", f"--generate-shared={SHARED}"], check=True)
    sources = {each.name: each.sources for each in made}
    for each in extensions:
        each.sources = sources.get(each.name, each.sources)


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
        """Remove other builds, and build."""
        for root in (ROOT, Path(self.build_lib)):
            for old in root.glob("journal/_compiled/*"):
                if old.name != COMPILED["digest"]():
                    shutil.rmtree(old)
        super().run()

    def build_extensions(self) -> None:
        """Build all modules or none: they are compiled against each other."""
        try:
            self._try_compiler()
            translate(self.extensions)
            super().build_extensions()
        except Exception as error:
            if MODE == "require":
                raise
            shutil.rmtree(Path(self.get_ext_fullpath("any")).parent, ignore_errors=True)
            self.extensions = []
            why = textwrap.shorten(str(error), 90) or type(error).__name__
            print(
                "qindex is not compiled and runs interpreted: a publish takes eight times the CPU "
                f"of the compiled build, a get with its ack four times ({why})",
                file=sys.stderr,
            )

    def _try_compiler(self) -> None:
        """See that a program for Python can be compiled: it takes a minute to get to the first."""
        source = Path(self.build_temp, "try.c")
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_text("#include <Python.h>\n")
        self.compiler.compile([str(source)], output_dir=self.build_temp, extra_postargs=FLAGS)


if __name__ == "__main__":  # the processes that translate import this file again, on macOS
    setup(ext_modules=extensions(), cmdclass={"build_ext": BuildCompiled})
