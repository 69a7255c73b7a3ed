#!/usr/bin/env bash
# Makes .venv with everything that Firesteel needs: Python 3.11+, the packages of requirements.lock, the gRPC stubs, Java 17+; and
# archives Spark's classes in ~/.cache/firesteel, where it also installs Apache Kafka for tests.
# Safe to run again at any time; it does only what is missing. PYTHON=... chooses the interpreter.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv
python=$venv/bin/python

say() { printf '==> %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }
is_root() { [ "$(id -u)" -eq 0 ]; }
can_install() { is_root && command -v apt-get >/dev/null; }
# A fresh machine has no package lists yet.
apt_install() { apt-get install -y --no-install-recommends "$@" || { apt-get update && apt-get install -y --no-install-recommends "$@"; }; }

is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }
has_venv() { "$1" -c 'import venv, ensurepip' >/dev/null 2>&1; }

# The first interpreter that is new enough and can make a venv; else the first that is new enough.
find_python() {
  local candidate without_venv=""
  for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3 /usr/bin/python3}; do
    if command -v "$candidate" >/dev/null && is_new_enough "$candidate"; then
      if has_venv "$candidate"; then echo "$candidate"; return; fi
      without_venv=${without_venv:-$candidate}
    fi
  done
  echo "$without_venv"
}

make_venv() {
  if [ -x $python ] && is_new_enough $python && $python -m pip --version >/dev/null 2>&1; then return; fi
  local base version
  base=$(find_python)
  if [ -z "$base" ] && [ -z "${PYTHON:-}" ] && can_install; then
    say "installing Python"
    apt_install python3 python3-venv
    base=$(find_python)
  fi
  [ -n "$base" ] || fail "Python 3.11 or later is needed and none was found${PYTHON:+ at PYTHON=$PYTHON}; install one (on Debian: apt-get install python3 python3-venv), or run: make setup PYTHON=/path/to/python3"
  if ! has_venv "$base"; then
    version=$("$base" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    can_install || fail "$base cannot make virtual environments; install its venv module (on Debian: apt-get install python$version-venv)"
    say "installing python$version-venv"
    apt_install "python$version-venv" || apt_install python3-venv
    has_venv "$base" || fail "$base still cannot make virtual environments after installing python$version-venv"
  fi
  say "making $venv with $("$base" --version)"
  rm -rf $venv
  "$base" -m venv $venv
}

install_packages() {
  if [ $venv/.packages -nt requirements.lock ] && [ $venv/.packages -nt pyproject.toml ] && [ $venv/.packages -nt setup.py ]; then
    return
  fi
  say "installing packages (the first time takes a few minutes)"
  $python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock --editable '.[dev]'
  touch $venv/.packages $venv/.stubs
}

generate_stubs() {
  local newer
  newer=$(find proto -name '*.proto' -newer $venv/.stubs 2>/dev/null || echo all)
  if [ -z "$newer" ] && [ -f firesteel/_proto/common_pb2.py ]; then return; fi
  say "generating gRPC stubs"
  $python setup.py --quiet build_proto
  touch $venv/.stubs
}

find_java() {
  if $python -m firesteel.common.process.java >/dev/null 2>&1; then return; fi
  if can_install; then
    local package
    for package in openjdk-17-jre-headless openjdk-21-jre-headless default-jre-headless; do
      say "installing Java: $package"
      if apt_install "$package" && $python -m firesteel.common.process.java >/dev/null 2>&1; then return; fi
    done
  fi
  $python -m firesteel.common.process.java >/dev/null || fail "then run it again"
}

# Only tests of the dashboard need it.
find_chromium() {
  if [ -x /usr/bin/chromium ] || ! can_install; then return; fi
  say "installing Chromium"
  apt_install chromium || true
}

# Only tests and benchmarks with Kafka need it.
install_kafka() {
  if ! command -v mvn >/dev/null && can_install; then
    say "installing Maven"
    apt_install maven || true
  fi
  $python -m tests.kafka.distribution || say "Apache Kafka is missing; tests that need it will fail"
}

make_venv
install_packages
generate_stubs
find_java
find_chromium
install_kafka
# Everything works without them, only slots and PySpark programs start more slowly.
$python -m taskexecutor.executor.columnar.jvm.archive || true
$python -m firesteel.spark_connect.archive || true
touch $venv/.ready
