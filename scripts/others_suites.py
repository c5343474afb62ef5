"""Run the tests of another library against qindex's backend for it, and against its own backend.

``python scripts/others_suites.py huey SOURCES DIRECTORY``: see ``scripts/others-suites.sh``.
"""

from __future__ import annotations

import sys
import unittest
from pathlib import Path
from typing import Any

HUEY_MODULES = ["api", "consumer", "immediate", "priority", "registry", "signals", "stats"]


def names(found: list[tuple[Any, str]]) -> set[str]:
    """Return the names of tests."""
    return {test.id().partition("tests.")[2] for test, _trace in found}


def run(suite: unittest.TestSuite) -> tuple[unittest.TestResult, set[str]]:
    """Run tests; return the result, and the names of those that failed."""
    result = unittest.TextTestRunner(stream=sys.stderr, verbosity=0).run(suite)
    return result, names(result.failures) | names(result.errors)


def huey(sources: Path, directory: Path) -> int:
    """Run huey's own tests: those of its storages, and those that take any storage."""
    sys.path.insert(0, str(sources))
    import importlib

    from huey.api import MemoryHuey
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
    assert MemoryHuey is not make
    return 0


if __name__ == "__main__":
    sys.exit({"huey": huey}[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3])))
