#!/bin/sh
# Run all the tests. Makes a virtual environment in the clone on the first run.
# Two processes share them, file by file. Arguments go to pytest. Tests that need a program which is not here say so and are skipped.
set -eu
extras="[test]"
. "$(dirname "$0")/venv.sh"
exec .venv/bin/python -m pytest -n 2 --dist loadfile "$@"
