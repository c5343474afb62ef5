"""An engine and a store that a finalizer closes at the end of the interpreter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import rocketstore
from tests.qindex.support import drain, open_quietly
from tests.waiting import WAIT

_APP = """
import sys, qindex, rocketstore
from qindex.compat import PersistentQueue

class App:
    def __init__(self, directory):
        self.engine = qindex.open(directory + "/store", flush_idle=0.01, rest_idle=0.01)
        self.engine.queue("q", message_ttl=1e6).publish_many([b"x"] * 3)
        self.log = rocketstore.open(directory + "/log")
        self.log.put("T", b"x", keys="k")
        self.jobs = PersistentQueue(directory + "/jobs")
        self.jobs.put(1)

    def __del__(self):
        for one in (self.engine, self.log, self.jobs):
            one.close()

app = App(sys.argv[1])
"""


def test_a_close_at_the_end_of_the_interpreter(tmp_path: Path) -> None:
    """It printed an ImportError, or a LookupError."""
    done = subprocess.run(
        [sys.executable, "-c", _APP, str(tmp_path)], capture_output=True, text=True, timeout=WAIT
    )
    assert (done.returncode, done.stderr) == (0, "")
    with open_quietly(tmp_path / "store") as engine:
        assert len(drain(engine.queue("q"))) == 3
    with open_quietly(tmp_path / "jobs") as engine:
        assert [len(engine.queue(name)) for name in engine.queue_names()] == [1]
    with rocketstore.open(tmp_path / "log") as log:
        assert [message.body for message in log.query("T", "k")] == [b"x"]
