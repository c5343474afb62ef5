#!/bin/sh
# Compile a copy of the clone (build/compiled), and run the quick tier of the tests of what is compiled on it. A build that fails,
# or that is not the one that runs, is an error.
#
#   sh scripts/compiled.sh                      journal, message store, engine, every crash state, faults
#   sh scripts/compiled.sh tests/journal -x     arguments go to pytest
#
# Needs a C compiler. Two processes share the tests.
set -eu
copy=build/compiled
. "$(dirname "$0")/copy.sh"
if [ $# = 0 ]; then
    set -- tests/journal tests/msgstore tests/qindex/test_*.py tests/crash tests/faults
fi
exec "$python" -m pytest -n 2 -p no:cacheprovider "$@"
