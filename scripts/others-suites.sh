#!/bin/sh
# Run the test suites that other projects have for what qindex stands in for, on qindex.
# Their sources come from PyPI, pinned, and stay in a temporary directory.
#
#   sh scripts/others-suites.sh [kombu]
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
python="$root/.venv/bin/python"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

kombu() {
    version=5.7.0
    "$python" -m pip download -q --no-deps --no-binary :all: -d "$work" "kombu==$version"
    tar -xzf "$work/kombu-$version.tar.gz" -C "$work"
    cp "$root/scripts/kombu_suite.py" "$work/kombu-$version/t/integration/test_qindex.py"
    cd "$work/kombu-$version"
    # Its tests import the kombu that is installed: the directory beside them would win.
    mv kombu kombu-of-the-sdist
    "$python" -m pytest -q -c /dev/null --rootdir . -p no:cacheprovider --timeout 120 \
        t/integration/test_qindex.py
    cd "$root"
}

for suite in "${@:-kombu}"; do
    "$suite"
done
