"""Run the tests of another library against qindex's backend for it, and against its own backend.

``python scripts/others_suites.py huey|django SOURCES DIRECTORY``: ``scripts/others-suites.sh``
fetches the sources, and calls it.
"""

from __future__ import annotations

import sys
import unittest
from pathlib import Path
from typing import Any

HUEY_MODULES = ["api", "consumer", "immediate", "priority", "registry", "signals", "stats"]


def names(found: list[tuple[Any, str]]) -> set[str]:
    """Return the names of tests."""
    return {str(test.id()).removeprefix("huey.tests.") for test, _trace in found}


def run(suite: unittest.TestSuite) -> tuple[unittest.TestResult, set[str]]:
    """Run tests; return the result, and the names of those that failed."""
    result = unittest.TextTestRunner(stream=sys.stderr, verbosity=0).run(suite)
    return result, names(result.failures) | names(result.errors)


def huey(sources: Path, directory: Path) -> int:
    """Run huey's own tests: those of its storages, and those that take any storage."""
    sys.path.insert(0, str(sources))
    import importlib

    from huey.tests import base, test_storage

    from qindex.compat.huey import QindexHuey

    used: list[QindexHuey] = []

    def make(**options: Any) -> QindexHuey:
        while used:
            used.pop().storage.close()
        made = QindexHuey(directory=directory, blocking=False, **options)
        made.storage.flush_all()
        made.storage.flush_queue()
        used.append(made)
        return made

    class TestQindexStorage(test_storage.StorageTests, base.BaseTestCase):  # type: ignore[misc]
        def get_huey(self) -> QindexHuey:
            return make(utc=False)

        test_put_if_empty_concurrent = test_storage.TestMemoryStorage.test_put_if_empty_concurrent

    loader = unittest.TestLoader()
    modules = [importlib.import_module(f"huey.tests.test_{name}") for name in HUEY_MODULES]

    def suite(storage: type[unittest.TestCase]) -> unittest.TestSuite:
        found = [loader.loadTestsFromModule(module) for module in modules]
        return unittest.TestSuite([loader.loadTestsFromTestCase(storage), *found])

    control, failed = run(suite(test_storage.TestMemoryStorage))
    print(f"MemoryHuey: {control.testsRun} tests, {len(failed)} failed {sorted(failed)}")
    base.MemoryHuey = make
    ours, mine = run(suite(TestQindexStorage))
    print(f"QindexHuey: {ours.testsRun} tests, {len(ours.skipped)} skipped, {len(mine)} failed:")
    for name in sorted(mine - failed):
        print(f"  {name}")
    while used:
        used.pop().storage.close()
    return wait_for_server(directory)


def django(sources: Path, directory: Path) -> int:
    """Run Django's own tests of tasks. Those of the dummy backend, which runs nothing, and of the
    interface take the place of that backend."""
    sys.path.insert(0, str(sources))
    import django as library
    from django.conf import settings

    databases = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
    settings.configure(DATABASES=databases, USE_TZ=True, INSTALLED_APPS=["qindex.compat.django"])
    library.setup()
    from django.tasks.backends import dummy

    from qindex.compat.django import QindexBackend
    from qindex.compat.django.backend import close_stores

    class Recorder(QindexBackend):
        """The backend, with what the tests ask of the dummy one."""

        def __init__(self, alias: str, params: dict[str, Any]) -> None:
            super().__init__(alias, params | {"OPTIONS": {"directory": directory}})
            self.options: dict[str, Any] = {}

        @property
        def results(self) -> list[Any]:
            return [self.get_result(key) for key in self.store.values.items()]

        def clear(self) -> None:
            self.store.values.clear()
            for name in self.store.queue_names():
                self.store.queue(name).purge()

    names_ = ["tasks.test_dummy_backend", "tasks.test_tasks"]

    def suite() -> unittest.TestSuite:
        return unittest.defaultTestLoader.loadTestsFromNames(names_)

    control, failed = run(suite())
    print(f"DummyBackend: {control.testsRun} tests, {len(failed)} failed {sorted(failed)}")
    for module in (dummy, *(sys.modules[name] for name in names_)):
        module.DummyBackend = Recorder  # type: ignore[attr-defined]
    ours, mine = run(suite())
    print(f"QindexBackend: {ours.testsRun} tests, {len(mine)} failed:")
    for name in sorted(mine - failed):
        print(f"  {name}")
    close_stores()
    return wait_for_server(directory)


def wait_for_server(directory: Path) -> int:
    """Wait until the store's server has ended, so that the directory can be removed."""
    from qindex.server import spawn

    return 0 if spawn.wait_until_gone(str(directory), 60) else 1


if __name__ == "__main__":
    suites = {"huey": huey, "django": django}
    sys.exit(suites[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3])))
