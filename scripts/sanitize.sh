#!/bin/sh
# Compile with the sanitizers of addresses and of undefined behaviour, in a copy of the clone (build/sanitized), and run
# the quick tier of the engine's tests on that build. What a sanitizer finds ends the process with a report.
#
#   sh scripts/sanitize.sh                      tests/journal and tests/qindex
#   sh scripts/sanitize.sh tests/journal -x     arguments go to pytest
#
# Needs gcc with its sanitizers. Python's own allocator is switched off, so that each object has
# an end that is seen; so a run takes several times as long. Leaks are not looked for: Python keeps what it
# has at its end (tests/qindex/test_single_messages.py counts objects).
set -eu
extras="[test]"
. "$(dirname "$0")/venv.sh"
python=$PWD/.venv/bin/python

rm -rf build/sanitized
mkdir -p build/sanitized
git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t build/sanitized
cd build/sanitized
echo "compiling with sanitizers ..." >&2
QINDEX_COMPILE=require \
    QINDEX_CFLAGS="-O1 -g1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined" \
    "$python" -m pip install --quiet --disable-pip-version-check --no-deps --target site .
mv site/journal/_compiled journal/

if [ $# = 0 ]; then
    set -- tests/journal tests/qindex
fi
sanitizers="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libubsan.so)"
QINDEX_COMPILE=require QINDEX_TIER=quick PYTHONPATH=$PWD PYTHONMALLOC=malloc \
    LD_PRELOAD=$sanitizers ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
    "$python" -m pytest -p no:cacheprovider "$@"
