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
export QINDEX_CFLAGS="-O1 -g1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined"
copy=build/sanitized
remove_copy() { rm -rf build/sanitized; }
. "$(dirname "$0")/copy.sh"

if [ $# = 0 ]; then
    set -- tests/journal tests/qindex
fi
sanitizers="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libubsan.so)"
PYTHONMALLOC=malloc LD_PRELOAD=$sanitizers ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
    "$python" -m pytest -p no:cacheprovider "$@"
