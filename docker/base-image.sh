#!/usr/bin/env bash
# Makes sure that the engine has the base image of both Dockerfiles: pulled from a registry if one is reachable, else built
# from Debian packages under the same name, including this host's CA certificates.
# Never replaces an existing image and never pushes one.
set -euo pipefail

readonly BASE=debian:bookworm-slim
readonly SUITE=bookworm
readonly PULL_SECONDS=120
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
readonly here

say() { printf 'base image: %s\n' "$*"; }
fail() {
  printf 'base image: %s\n' "$*" >&2
  exit 1
}

image_exists() { docker image inspect "$BASE" >/dev/null 2>&1; }

install_mmdebstrap() {
  if [ ! -e /etc/debian_version ] || [ "$(id -u)" -ne 0 ]; then
    fail "cannot pull $BASE, and building it needs mmdebstrap; install mmdebstrap, or configure a registry that the engine can reach"
  fi
  export DEBIAN_FRONTEND=noninteractive
  "$here/progress.sh" apt-get update -qq
  "$here/progress.sh" apt-get install -y -qq --no-install-recommends mmdebstrap
}

# Removes what a slim image does not contain, and adds the host's certificate authorities for builds behind a proxy.
make_base() {
  local work="$1"
  local options=(
    --variant=minbase --include=ca-certificates
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright'
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*'
    --dpkgopt='path-exclude=/usr/share/info/*'
  )
  if [ -d /usr/local/share/ca-certificates ]; then
    # The variables in the hook belong to mmdebstrap.
    # shellcheck disable=SC2016
    options+=(
      --customize-hook='copy-in /usr/local/share/ca-certificates /usr/local/share/'
      --customize-hook='chroot "$1" update-ca-certificates >/dev/null'
    )
  fi
  "$here/progress.sh" mmdebstrap "${options[@]}" "$SUITE" "$work/base.tar"
  docker import --change 'CMD ["bash"]' "$work/base.tar" "$BASE" >/dev/null
}

main() {
  if image_exists; then
    say "$BASE exists"
    return
  fi
  say "pulling $BASE"
  if timeout "$PULL_SECONDS" docker pull --quiet "$BASE" >/dev/null 2>&1; then
    say "$BASE pulled"
    return
  fi
  say "no registry is reachable; building $BASE from Debian packages, which takes a minute"
  command -v mmdebstrap >/dev/null || install_mmdebstrap
  local work
  work="$(mktemp -d)"
  # mmdebstrap's helpers need access to it.
  chmod 0755 "$work"
  # shellcheck disable=SC2064
  trap "rm -rf '$work'" EXIT
  make_base "$work"
  say "$BASE built"
}

main
