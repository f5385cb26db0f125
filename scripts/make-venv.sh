#!/usr/bin/env bash
# Make the virtual environment FOLDER with the first Python >= 3.10 that can; 3.11 first, for which constraints.txt is made.
# The system's Python comes before others: the test nodes' unprivileged account cannot reach one in somebody's home (pyenv).
set -euo pipefail
here=$(dirname -- "${BASH_SOURCE[0]}")
folder=$1

find_python() {
  local candidate
  for candidate in ${PYTHON:+"$PYTHON"} /usr/bin/python3.11 /usr/bin/python3 python3.11 python3; do
    if "$candidate" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  return 1
}

if ! python=$(find_python); then
  "$here/apt-install.sh" python3 python3-venv
  python=$(find_python) || {
    echo "no Python >= 3.10 with venv; name one: make PYTHON=/path/to/python3" >&2
    exit 1
  }
fi
"$python" -m venv "$folder"
