#!/usr/bin/env bash
# Resolves the dependency ranges of pyproject.toml anew and writes the versions into requirements.lock, which
# scripts/setup.sh installs. Run it after a change of the ranges, or to take newer versions in.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=$(mktemp -d)
trap 'rm -rf "$venv"' EXIT
"${PYTHON:-.venv/bin/python}" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
{
  echo "# Written by \`make lock\`: the versions that \`make setup\` installs and the tests run with."
  "$venv/bin/python" -m pip freeze --exclude-editable --exclude pip
} > requirements.lock
