#!/usr/bin/env bash
# Make the virtual environment FOLDER as a T20's software is: Python 3.8, torch 1.10, mmengine 0.10.4 (t20-requirements.txt).
# Python 3.8 comes from PATH or pyenv; without one, nothing is made, and the tests that need it are skipped.
set -euo pipefail
here=$(dirname -- "${BASH_SOURCE[0]}")
folder=$1

find_python() {
  local candidate
  for candidate in python3.8 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.8.*/bin/python3; do
    if [[ $("$candidate" -V 2>/dev/null || true) == "Python 3.8."* ]]; then
      echo "$candidate"
      return
    fi
  done
  return 1
}

if ! python=$(find_python); then
  echo "no Python 3.8 on PATH or in pyenv: the tests of a T20's software will be skipped" >&2
  exit 0
fi
"$python" -m venv "$folder"
"$folder/bin/pip" --disable-pip-version-check install -qq --no-compile --no-deps --requirement "$here/t20-requirements.txt"
