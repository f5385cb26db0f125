#!/usr/bin/env bash
# Build the sdist and the wheel of the commit checked out into dist/, install and run them, and print what a person has to sign off.
# `make release-check`; uploads nothing.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
root=$PWD
python=$root/.venv/bin/python
pip=("$python" -m pip --disable-pip-version-check)
work=$(mktemp --directory --suffix=-orch-release)
trap 'rm -rf "$work"' EXIT

step() { printf '\n== %s\n' "$*"; }

step "build from the commit, without files that git does not track"
mkdir "$work/tree"
git archive HEAD | tar --extract --directory "$work/tree"
rm -rf dist
"$python" -m build --no-isolation --outdir dist "$work/tree" &>"$work/build.log" || { cat "$work/build.log"; exit 1; }
sdist=$(echo "$root"/dist/*.tar.gz) wheel=$(echo "$root"/dist/*.whl)
ls -l dist

step "metadata, as the index reads it"
"$python" -m venv "$work/twine"
"${pip[@]}" --python "$work/twine" install -qq twine
"$work/twine/bin/twine" check --strict "$sdist" "$wheel"

step "install the wheel in an empty environment and launch with it"
"$python" -m venv --without-pip "$work/venv"
"${pip[@]}" --python "$work/venv" install -qq --constraint constraints.txt "$wheel"
"${pip[@]}" --python "$work/venv" check
mkdir "$work/home"
cd "$work/home"
version=$(HOME=$PWD "$work/venv/bin/orch" --version)
[[ "$sdist" == *"-${version#orch }.tar.gz" ]] || { echo "orch --version prints $version, the sdist is $sdist" >&2; exit 1; }
HOME=$PWD "$work/venv/bin/orch" ssh-launch -i local -- sh -c "echo rank \$RANK of \$WORLD_SIZE" | tee "$work/launch.log"
grep --quiet 'rank 3 of 4' "$work/launch.log"

step "run the quick tests of the sdist from the sdist"
mkdir "$work/sdist"
tar --extract --gzip --file "$sdist" --directory "$work/sdist" --strip-components=1
cd "$work/sdist"
"$python" -m pytest -q --numprocesses 2 -m "not processes"

cd "$root"
step "$version, commit $(git rev-parse --short HEAD): left for a person to do (docs/releasing.md)"
[[ -z $(git status --porcelain) ]] || echo "NOTE: files differ from the commit; what was built is the commit"
sed -n '/^## Sign-off/,/^## /{/^## /d;p}' docs/releasing.md
