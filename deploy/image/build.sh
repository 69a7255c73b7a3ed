#!/bin/sh
# build.sh DESTINATION: installs Firesteel and the packages of requirements.lock into a virtual environment, without pip.
# Run it from the repository's root. Equal sources produce equal files. Only wheels are installed, except PySpark, which has
# no wheel and no C code; so no compiler is needed.
set -eu
destination=$1
image=deploy/image
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
umask 022
export PYTHONHASHSEED=0 SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-1704067200}" PIP_DISABLE_PIP_VERSION_CHECK=1

python3 -m venv "$work/tools"
tools=$work/tools/bin/python
"$tools" -m pip install --quiet --only-binary :all: --require-hashes --no-deps -r $image/build.lock
wheel() { "$tools" -m pip wheel --quiet --no-deps --no-build-isolation --use-pep517 --wheel-dir "$work/wheels" "$@"; }
wheel --only-binary :all: --no-binary pyspark --require-hashes -r $image/requirements.lock
cp -r proto firesteel dispatcher resourcemanager jobmaster taskexecutor \
  pyproject.toml setup.py MANIFEST.in README.md LICENSE "$work"
wheel "$work"

python3 -m venv --without-pip "$destination"
# By name: pip records the path of a wheel that is installed by its path, and this path differs each time.
for file in "$work"/wheels/*.whl; do
  basename "$file" | sed -E 's/^([^-]+)-([^-]+)-.*/\1==\2/'
done > "$work/installed"
"$tools" -m pip --python "$destination/bin/python" install --quiet --no-index --find-links "$work/wheels" --no-deps \
  --no-compile -r "$work/installed"
# The interpreter never writes below /opt, so the byte code is complete, and it is not compared with the sources.
"$destination/bin/python" -m compileall -q --invalidation-mode unchecked-hash "$destination/lib"
find "$destination" -exec touch --no-dereference --date "@$SOURCE_DATE_EPOCH" {} +
