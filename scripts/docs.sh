#!/usr/bin/env bash
# Builds the site of the documentation in build/site, with the API reference. MkDocs and its packages are in .docs-venv, which
# `make setup` and the tests do not need.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.docs-venv
if ! [ $venv/.packages -nt requirements-docs.lock ]; then
  .venv/bin/python -m venv --clear $venv
  $venv/bin/python -m pip install --quiet --disable-pip-version-check --requirement requirements-docs.lock
  touch $venv/.packages
fi
rm -rf build/api
.venv/bin/python scripts/api_reference.py build/api
NO_MKDOCS_2_WARNING=1 $venv/bin/mkdocs build --quiet --strict
echo build/site/index.html
