# Sourced by the other scripts: make the virtual environment .venv in the clone, once, and install
# the project with the extras that the caller put into $extras. Installs again only when pyproject.toml
# has changed since, or with QINDEX_COMPILE a source that is compiled.
set -eu
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "qindex needs Python 3.11 or newer; set PYTHON to one" >&2
    exit 2
}
if [ ! -x .venv/bin/python ]; then
    "$python" -m venv .venv
fi
# Where the project is compiled a stamp is for one state of its sources: an install makes the build
# anew.
sources=interpreted
case ${QINDEX_COMPILE:-no} in
    no) ;;
    *) sources=$("$python" -c 'import runpy; print(runpy.run_path("journal/compiled.py")["digest"]())') ;;
esac
stamp=.venv/installed-$(printf '%s' "$extras" | tr -c 'a-z0-9' '-')-$sources
if [ ! -f "$stamp" ] || [ -n "$(find pyproject.toml -newer "$stamp")" ]; then
    echo "installing qindex${extras} into .venv ..." >&2
    .venv/bin/python -m pip install --quiet --disable-pip-version-check -e ".${extras}"
    if [ "$sources" != interpreted ]; then  # builds of other sources are gone
        find .venv/ -maxdepth 1 -name "installed-*" ! -name "*-$sources" ! -name "*-interpreted" -delete
    fi
    touch "$stamp"
fi
