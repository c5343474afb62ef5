#!/bin/sh
# What qindex does with each version of pyspark that it allows besides the newest, on which the tests run: every source, stream and
# job once, and the recipes for lakes. Makes an environment for each version in build/.
#
#   sh scripts/spark-versions.sh          both versions
#   sh scripts/spark-versions.sh 4.1      one of them
set -eu
cd "$(dirname "$0")/.."
for version in ${*:-4.1 4.2}; do
    python=build/spark-$version/bin/python
    if [ ! -x "$python" ]; then
        "${PYTHON:-python3}" -m venv "build/spark-$version"
        "$python" -m pip install --quiet --disable-pip-version-check -e ".[cli,spark]" "pyspark==$version.*"
    fi
    "$python" -m tests.spark.smoke
    case $version in
        4.1) "$python" -m tests.spark.lakes Iceberg ;;
        4.2) "$python" -m tests.spark.lakes Delta ;;
    esac
done
