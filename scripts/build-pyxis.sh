#!/bin/sh
# Build Pyxis and enroot for tests/slurm/test_pyxis.py from checkouts of NVIDIA's repositories, which no package registry has:
#   scripts/build-pyxis.sh ENROOT_CHECKOUT PYXIS_CHECKOUT FOLDER
#   ORCH_PYXIS=FOLDER make test TESTS=tests/slurm/test_pyxis.py
# Needs root, and a Slurm whose headers apt has (libslurm-dev). Only what a job with --container-image=FILE runs is built.
set -eu
enroot=$(realpath "$1") pyxis=$(realpath "$2")
mkdir -p "$3"
folder=$(realpath "$3")
"$(dirname "$0")/apt-install.sh" gcc make libslurm-dev libbsd-dev squashfs-tools jq parallel
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r "$enroot" "$work/enroot"
cp -r "$pyxis" "$work/pyxis"
programs="bin/enroot-mount bin/enroot-switchroot bin/enroot-nsenter"
mkdir -p "$work/enroot/deps/dist/libbsd" "$work/enroot/deps/dist/makeself/bin"
ln -s /usr/include "$work/enroot/deps/dist/libbsd/include"
touch "$work/enroot/deps/dist/makeself/bin/enroot-makeself" # makes bundles, which nothing here does
make -C "$work/enroot" -o deps -o deps/dist/makeself/bin/enroot-makeself FORCE_GLIBC=1 CFLAGS= LDFLAGS= \
    UTILS="$programs" prefix="$folder" install
make -C "$work/pyxis"
cp "$work/pyxis/spank_pyxis.so" "$folder"
