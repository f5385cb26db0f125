#!/usr/bin/env bash
# Install missing Debian packages as root with apt, without starting or enabling a service; if that is not possible, name them.
set -euo pipefail

# one instance at a time: make installs the tests' components and the virtual environment's Python in parallel
exec {self}<"${BASH_SOURCE[0]}"
flock "$self"

missing=()
for package in "$@"; do
  state=$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null || true)
  [[ $state == installed ]] || missing+=("$package")
done
[[ ${#missing[@]} -gt 0 ]] || exit 0

if [[ $EUID -ne 0 ]] || ! command -v apt-get >/dev/null; then
  echo "missing: ${missing[*]} (as root on Debian: apt-get install --no-install-recommends ${missing[*]})" >&2
  exit 1
fi

# Debian starts a service at its installation unless this file forbids it. An existing file is left unchanged.
policy=/usr/sbin/policy-rc.d
if [[ ! -e $policy ]]; then
  trap 'rm -f "$policy"' EXIT
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod 755 "$policy"
fi

export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -qq --yes --no-install-recommends "${missing[@]}" >/dev/null

# Nor may they start at the next boot. A minimal Debian has no systemctl, but has the links that it would remove.
for package in "${missing[@]}"; do
  case $package in
    openssh-server) units=(ssh.service) ;;
    munge) units=(munge.service) ;;
    slurm-wlm) units=(slurmctld.service slurmd.service) ;;
    slurmdbd) units=(slurmdbd.service) ;;
    docker.io) units=(docker.service docker.socket containerd.service) ;;
    podman) units=(podman.service podman.socket podman-auto-update.timer podman-restart.service) ;;
    *) continue ;;
  esac
  if command -v systemctl >/dev/null; then
    systemctl disable --quiet "${units[@]}"
  else
    rm -f "${units[@]/#//etc/systemd/system/multi-user.target.wants/}"
  fi
done
