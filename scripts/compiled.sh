#!/bin/sh
# Compile a copy of the clone (build/compiled), and run the quick tier of the tests of what is compiled on it. A build that fails,
# or that is not the one that runs, is an error.
#
#   sh scripts/compiled.sh                      journal, message store, engine, crash states, faults, rocketstore
#   sh scripts/compiled.sh tests/journal -x     arguments go to pytest
#
# Needs a C compiler. Three processes share the tests, as in scripts/test.sh.
set -eu
copy=build/compiled
remove_copy() { rm -rf build/compiled; }
. "$(dirname "$0")/copy.sh"
if [ $# = 0 ]; then
    set -- tests/journal tests/msgstore tests/qindex tests/crash tests/faults tests/rocketstore
fi
exec "$python" -m pytest -n 3 -p no:cacheprovider "$@"
