#!/usr/bin/env bash
# What the tests run against, and what `make check` reads shell with. The test grounds start their own daemons as needed.
set -euo pipefail
here=$(dirname -- "${BASH_SOURCE[0]}")

"$here/apt-install.sh" openssh-server openssh-client slurm-wlm munge slurmdbd mariadb-server-core mariadb-client-core \
  iproute2 shellcheck rsync gcc g++ libc6-dev python3-dev ||
  # tests that need a missing one say so: they skip, and fail in CI
  [[ $EUID -ne 0 && -z ${CI:-} ]]
