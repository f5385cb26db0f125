#!/usr/bin/env bash
# Install the programs that the tests use, shellcheck for `make check`, and the packages in the arguments. The tests start their own daemons.
set -euo pipefail
here=$(dirname -- "${BASH_SOURCE[0]}")

"$here/apt-install.sh" openssh-server openssh-client slurm-wlm munge slurmdbd mariadb-server-core mariadb-client-core \
  iproute2 docker.io podman shellcheck rsync gcc g++ libc6-dev python3-dev "$@" ||
  # a test that needs a missing program skips with its name, and fails in CI
  [[ $EUID -ne 0 && -z ${CI:-} ]]
