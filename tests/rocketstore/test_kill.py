"""Real processes killed with SIGKILL while threads put, in a loop on one store."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rocketstore.verify import verify
from tests.rocketstore.support import open_tiny

ROOT = Path(__file__).parents[2]
CHILD = f"""
import sys, threading
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from tests.rocketstore.support import open_tiny
store = open_tiny(Path(sys.argv[1]), background=True, flush_interval=0.005,
                  checkpoint_interval=0.02, commitlog_file_size=65536, index_entries=200)
log = open(sys.argv[2], "ab", buffering=0)

def work(number):
    for at in range(100000):
        name = f"{{sys.argv[3]}}-{{number}}-{{at}}"
        if number:
            put = store.put("T", name.encode() * 3, queue_id=number, keys=name)
            log.write(f"{{name}} {{put.offset}}\\n".encode())
        else:
            names = [f"{{name}}-{{one}}" for one in range(20)]
            puts = store.put_many("T", [one.encode() * 3 for one in names], keys=names)
            text = "".join(f"{{one}} {{put.offset}}\\n" for one, put in zip(names, puts))
            log.write(text.encode())

for number in range(3):
    threading.Thread(target=work, args=(number,), daemon=True).start()
print("ready", flush=True)
threading.Event().wait()
"""


@pytest.mark.rotates(2)
def test_kill_in_a_loop(tmp_path: Path) -> None:
    root, promised = tmp_path / "s", tmp_path / "promised"
    for round_ in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", CHILD, str(root), str(promised), str(round_)],
            stdout=subprocess.PIPE,
        ) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
            time.sleep(0.15)
            os.kill(child.pid, signal.SIGKILL)
        with open_tiny(root, commitlog_file_size=65536, index_entries=200) as store:
            rows = [line.split() for line in promised.read_text().splitlines()]
            assert len(rows) > 50 * (round_ + 1)
            for number, (name, offset) in enumerate(rows):
                message = store.lookup(int(offset))
                assert message is not None
                assert message.body == name.encode() * 3
                # Each query looks into every index file, of which there are many.
                if number % max(1, len(rows) // 150) == 0:
                    assert [hit.offset for hit in store.query("T", name)] == [int(offset)]
            for key in store.queues():
                found = [message.offset for message in store.messages(*key)]
                assert found == sorted(set(found))
        assert verify(root, commitlog_file_size=65536, index_entries=200) == []
