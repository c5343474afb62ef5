#!/bin/sh
# Watch the queue survive kill -9. Makes a virtual environment in the clone on the first run.
set -eu
extras="[cli]"
. "$(dirname "$0")/venv.sh"
exec .venv/bin/qindex demo "$@"
