# Sourced by the other scripts: make the virtual environment .venv in the clone, once, and install
# the project with the extras that the caller put into $extras. Installs again only when pyproject.toml
# has changed since.
set -eu
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
stamp=.venv/installed-$(printf '%s' "$extras" | tr -c 'a-z0-9' '-')

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "qindex needs Python 3.11 or newer; set PYTHON to one" >&2
    exit 2
}
if [ ! -x .venv/bin/python ]; then
    "$python" -m venv .venv
fi
if [ ! -f "$stamp" ] || [ -n "$(find pyproject.toml -newer "$stamp")" ]; then
    echo "installing qindex${extras} into .venv ..." >&2
    .venv/bin/python -m pip install --quiet --disable-pip-version-check -e ".${extras}"
    touch "$stamp"
fi
