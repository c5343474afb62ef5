#!/bin/sh
# Run the quick tier on the other versions of Python that this machine has, each in a copy of the clone (build/python3.13).
# Says which versions it lacks. Arguments go to pytest.
set -eu
cd "$(dirname "$0")/.."
root=$PWD
for version in 3.12 3.13; do
    for python in "python$version" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/python; do
        "$python" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$version')" 2> /dev/null || continue
        echo "the quick tier on Python $version"
        mkdir -p "build/python$version"
        git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t "build/python$version"
        (cd "build/python$version" && QINDEX_INTERPRETED=1 PYTHON=$python sh scripts/test.sh "$@")
        cd "$root"
        continue 2
    done
    echo "no Python $version on this machine: nothing ran on it"
done
