#!/bin/sh
# Run the tests that other projects wrote for their task queues against qindex's backends, and
# against their own ones for comparison. Fetches the sources into build/others.
#
#   sh scripts/others-suites.sh           all of them
#   sh scripts/others-suites.sh kombu     kombu's tests for any transport
#   sh scripts/others-suites.sh huey      the tests of huey's storages and of its API
#   sh scripts/others-suites.sh django    those of Django's tasks; needs Python 3.12 or newer
#
# PYTHON names the interpreter: it needs the extras huey and django. docs/huey.md and docs/django.md
# say which tests fail, and why.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
kombu=5.7.0
huey=3.5.4
django=6.1.3
fetch() {
    [ -d "build/others/$3" ] && return
    mkdir -p build/others
    "$python" -m pip download --quiet --disable-pip-version-check --no-deps --no-binary :all: \
        --dest build/others "$1==$2"
    tar -xzf "build/others/$3.tar.gz" -C build/others
}
for suite in ${*:-kombu huey django}; do
    store=$(mktemp -d "${TMPDIR:-/tmp}/qindex-others-XXXXXX")
    case $suite in
        kombu)
            fetch kombu $kombu kombu-$kombu
            cp scripts/kombu_suite.py build/others/kombu-$kombu/t/integration/test_qindex.py
            # The tests import the kombu that is installed: the directory beside them would win.
            [ ! -d build/others/kombu-$kombu/kombu ] || mv build/others/kombu-$kombu/kombu build/others/kombu-$kombu/kombu-of-the-sdist
            "$python" -m pytest -q -c /dev/null --rootdir build/others/kombu-$kombu -p no:cacheprovider --timeout 120 \
                build/others/kombu-$kombu/t/integration/test_qindex.py
            ;;
        huey)
            fetch huey $huey huey-$huey
            HUEY_SLOW_TESTS=1 "$python" -P scripts/others_suites.py huey build/others/huey-$huey "$store/data"
            ;;
        django)
            if ! "$python" -c 'import django.tasks' 2> /dev/null; then
                echo "django: skipped, $python has no Django 6, which needs Python 3.12"
                continue
            fi
            fetch django $django django-$django
            "$python" -P scripts/others_suites.py django build/others/django-$django/tests "$store/data"
            ;;
    esac
    rm -r "$store"
done
