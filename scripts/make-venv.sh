#!/usr/bin/env bash
# Make the virtual environment FOLDER with the first usable Python >= 3.10. 3.11 comes first, the version of constraints.txt.
# The system's Python comes before others: the unprivileged account of the test nodes cannot read one in a home (pyenv).
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
