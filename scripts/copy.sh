# Sourced by the other scripts: compile a copy of the clone in the folder $copy, with $QINDEX_CFLAGS, and go there. remove_copy
# removes an old one. $python is then its Python. The clone itself stays as it is, compiled or not.
extras="[test]"
unset QINDEX_COMPILE QINDEX_INTERPRETED
. "$(dirname "$0")/venv.sh"
python=$PWD/.venv/bin/python

remove_copy
mkdir -p "$copy"
git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t "$copy"
cd "$copy"
echo "compiling a copy in $copy ..." >&2
# For the tests as well: they refuse to run on another build.
export QINDEX_COMPILE=require QINDEX_TIER=quick PYTHONPATH="$PWD"
"$python" -m pip install --quiet --disable-pip-version-check --no-deps --target site .
mv site/journal/_compiled journal/
rm -r site
