#!/bin/sh
# Run the tests. Makes a virtual environment in the clone on the first run.
#
#   sh scripts/test.sh             quick: the most convincing three minutes
#   sh scripts/test.sh --all       everything, real servers and Spark among it: under 25 minutes
#   sh scripts/test.sh --nightly   every bit, every point, minutes of fuzzing: hours
#
# Further arguments go to pytest. Three processes share the tests, four the quick ones: on two cores
# some of them wait for something, as a rule. Tests that need a program which is not here say so and are skipped.
# tests/effort.py has what the tiers differ in; QINDEX_ROTATION sets which slices the long tests take,
# else the commit does. The tests make their stores in TMPDIR. Where it is not set they make them in
# memory, if there is enough of it: they sync thousands of small files. Nightly ones use the disk.
set -eu
processes=4
case ${1-} in
    --all | --nightly)
        QINDEX_TIER=${1#--}
        processes=3
        shift
        ;;
    *) QINDEX_TIER=quick ;;
esac
export QINDEX_TIER
# Each process of the tests, and the hundreds that they start, would compile all its sources again.
unset PYTHONDONTWRITEBYTECODE
extras="[test]"
. "$(dirname "$0")/venv.sh"
has_room() {
    [ -w /dev/shm ] && [ "$(df -Pk /dev/shm | awk 'NR == 2 { print $4 }')" -ge 4194304 ] &&
        awk '/^MemAvailable/ { exit $2 < 8388608 }' /proc/meminfo
}
if [ -z "${TMPDIR-}" ] && [ "$QINDEX_TIER" != nightly ] && has_room; then
    export TMPDIR=/dev/shm
fi
exec .venv/bin/python -m pytest -n $processes "$@"
