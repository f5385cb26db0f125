#!/usr/bin/env bash
# Install Debian packages that are missing: as root with apt, starting no service and leaving none enabled; otherwise name them.
set -euo pipefail

# one at a time: the tests' components are installed beside the virtual environment, which may need a Python
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

# Debian starts a service as soon as it is installed, unless this file forbids it. One that is there already stays as it is.
policy=/usr/sbin/policy-rc.d
if [[ ! -e $policy ]]; then
  trap 'rm -f "$policy"' EXIT
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod 755 "$policy"
fi

export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -qq --yes --no-install-recommends "${missing[@]}" >/dev/null

# Nor are they to come up with the next boot. A minimal Debian has no systemctl, and the links that it would remove all the same.
for package in "${missing[@]}"; do
  case $package in
    openssh-server) units=(ssh.service) ;;
    munge) units=(munge.service) ;;
    slurm-wlm) units=(slurmctld.service slurmd.service) ;;
    slurmdbd) units=(slurmdbd.service) ;;
    *) continue ;;
  esac
  if command -v systemctl >/dev/null; then
    systemctl disable --quiet "${units[@]}"
  else
    rm -f "${units[@]/#//etc/systemd/system/multi-user.target.wants/}"
  fi
done
