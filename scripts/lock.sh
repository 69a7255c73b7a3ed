#!/usr/bin/env bash
# Resolves the dependency ranges of pyproject.toml and writes the versions into requirements.lock, which scripts/setup.sh
# installs, requirements-docs.lock, which scripts/docs.sh installs, and the locks of deploy/image, with hashes. Run it after a
# change of the ranges or to upgrade.
set -euo pipefail
cd "$(dirname "$0")/.."

temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT
python=${PYTHON:-.venv/bin/python}

# lock FILE COMMENT REQUIREMENT...: installs the requirements into a new environment and writes its versions into FILE.
lock() {
  local file=$1 comment=$2 venv
  shift 2
  venv=$temporary/$file
  "$python" -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
  {
    echo "# Written by \`make lock\`: $comment"
    "$venv/bin/python" -m pip freeze --exclude-editable --exclude pip
  } > "$file"
}

lock requirements.lock "the versions that \`make setup\` installs and the tests run with." --editable '.[dev]'
mapfile -t docs < <("$python" -c '
import tomllib
print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"], sep="\n")
')
lock requirements-docs.lock "the versions that \`make docs\` builds the site with." "${docs[@]}"

# lock_image FILE ARGUMENT...: the same versions for the image, a line for each package, with the hashes of all its files.
"$python" -m venv "$temporary/uv"
"$temporary/uv/bin/python" -m pip install --quiet --disable-pip-version-check uv
lock_image() {
  local file=deploy/image/$1
  shift
  {
    echo "# Written by \`make lock\` for the image."
    "$temporary/uv/bin/uv" pip compile --quiet --generate-hashes --no-header --no-annotate --python-version 3.11 \
      --constraint requirements.lock "$@" | sed -e ':a' -e '/\\$/N' -e 's/\\\n *//' -e 'ta'
  } > "$file"
}
lock_image requirements.lock --extra kafka pyproject.toml
"$python" -c '
import tomllib
print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")
' > "$temporary/build.in"
lock_image build.lock "$temporary/build.in"
