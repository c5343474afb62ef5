"""``python -m tests.fuzz DECODER... [--seconds N]``: let atheris look for inputs that break one.

Each decoder runs in a process of its own, for ``--seconds``; ``all`` stands for each. Inputs that
led somewhere new are kept in ``--corpus``, and one that breaks a decoder is written there as
``crash-...``; ``--replay FILE`` runs it again. Exit code 1 when anything broke.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

_INSTRUMENTED = ["journal", "msgstore", "qindex", "rocketstore"]


def _fuzz(name: str, seconds: int, corpus: Path, longest: int) -> None:
    """Fuzz one decoder; does not return: libFuzzer ends the process."""
    import atheris

    with atheris.instrument_imports(include=_INSTRUMENTED):
        from tests.fuzz.frame import all_decoders, check, measuring

        decoder = all_decoders()[name]
    folder = corpus / name
    folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(decoder.corpus()):
        (folder / f"seed-{number}").write_bytes(seed)

    def one_input(data: bytes) -> None:
        check(decoder, data)

    arguments = [
        sys.argv[0],
        f"-max_total_time={seconds}",
        f"-max_len={longest}",
        "-timeout=30",
        "-rss_limit_mb=2048",
        "-print_final_stats=1",
        f"-artifact_prefix={folder}/",
        str(folder),
    ]
    with measuring(decoder):
        atheris.Setup(arguments, one_input)
        atheris.Fuzz()


def _replay(name: str, path: Path) -> None:
    from tests.fuzz.frame import all_decoders, check, measuring

    decoder = all_decoders()[name]
    with measuring(decoder):
        accepted = check(decoder, path.read_bytes())
    print(f"{name}: {'accepted' if accepted else 'refused'}, as it should be")


def _run(name: str, seconds: int, corpus: Path, longest: int) -> bool:
    """Fuzz one decoder in a child; print a line; tell whether it held."""
    command = [sys.executable, "-m", "tests.fuzz", name, "--child", "--seconds", str(seconds)]
    command += ["--corpus", str(corpus), "--longest", str(longest)]
    child = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    executed = re.search(r"number_of_executed_units: (\d+)", child.stderr)
    coverage = re.findall(r"cov: (\d+)", child.stderr)
    executions = int(executed[1]) if executed else 0
    what = "held" if child.returncode == 0 else f"BROKE, exit code {child.returncode}"
    reached = coverage[-1] if coverage else "?"
    print(f"{name}: {executions} inputs in {seconds} s, {reached} edges: {what}", flush=True)
    if child.returncode:
        print(child.stderr[-4000:])
    return child.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("decoders", nargs="*", metavar="DECODER", help="'all', or names")
    parser.add_argument("--seconds", type=int, default=60, help="for each decoder")
    parser.add_argument("--longest", type=int, default=8192, help="bytes of an input")
    parser.add_argument("--corpus", type=Path, help="directory to keep inputs in")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="run one input again")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        _fuzz(options.decoders[0], options.seconds, options.corpus, options.longest)
        return 0
    from tests.fuzz.frame import all_decoders

    names = list(all_decoders())
    wanted = names if options.decoders == ["all"] else options.decoders
    if not wanted or set(wanted) - set(names):
        parser.error(f"decoders are: {', '.join(names)}")
    if options.replay:
        _replay(wanted[0], options.replay)
        return 0
    with tempfile.TemporaryDirectory(prefix="qindex-fuzz-") as folder:
        corpus = options.corpus or Path(folder)
        held = [_run(name, options.seconds, corpus, options.longest) for name in wanted]
        return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
