"""A child that is forked while a thread of its parent waits for the server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import qindex
from tests.server.support import WAIT, end_store


def test_a_forked_child_does_not_keep_the_session_of_its_parent(tmp_path: Path) -> None:
    store = tmp_path / "data"
    program = f"""if True:
        import os, threading, time
        import qindex
        engine = qindex.open({str(store)!r}, shared=True)
        engine.queue("held").publish(b"x")
        held = engine.queue("held").get()
        threading.Thread(target=engine.queue("empty").get, daemon=True).start()
        time.sleep(0.2)
        child = os.fork()
        if not child:
            time.sleep(600)
        print(child, flush=True)
        time.sleep(600)
    """
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            parent.kill()
            with qindex.open(store, shared=True) as engine:
                assert engine.queue("held").get(WAIT / 4) is not None
        finally:
            os.kill(child, signal.SIGKILL)
    end_store(store)
