#!/usr/bin/env bash
# Makes sure that the base image both Dockerfiles start from is on the engine: pulled where a registry answers, else
# made from Debian's own packages under the same name, with this host's CA certificates taken along.
# Never replaces an image that is there and never pushes one.
set -euo pipefail

readonly BASE=debian:bookworm-slim
readonly SUITE=bookworm
readonly PULL_SECONDS=120

say() { printf 'base image: %s\n' "$*"; }
fail() {
  printf 'base image: %s\n' "$*" >&2
  exit 1
}

present() { docker image inspect "$BASE" >/dev/null 2>&1; }

install_mmdebstrap() {
  if [ ! -e /etc/debian_version ] || [ "$(id -u)" -ne 0 ]; then
    fail "$BASE could not be pulled, and making it needs mmdebstrap; install that, or give the engine a registry it can reach"
  fi
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends mmdebstrap >/dev/null
}

# What a slim image leaves out, and the host's own certificate authorities, which a build behind a proxy needs.
make_base() {
  local work="$1"
  local options=(
    --variant=minbase --include=ca-certificates --quiet
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright'
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*'
    --dpkgopt='path-exclude=/usr/share/info/*'
  )
  if [ -d /usr/local/share/ca-certificates ]; then
    # The hook's variables are mmdebstrap's.
    # shellcheck disable=SC2016
    options+=(
      --customize-hook='copy-in /usr/local/share/ca-certificates /usr/local/share/'
      --customize-hook='chroot "$1" update-ca-certificates >/dev/null'
    )
  fi
  mmdebstrap "${options[@]}" "$SUITE" "$work/base.tar"
  docker import --change 'CMD ["bash"]' "$work/base.tar" "$BASE" >/dev/null
}

main() {
  if present; then
    say "$BASE is here"
    return
  fi
  if timeout "$PULL_SECONDS" docker pull --quiet "$BASE" >/dev/null 2>&1; then
    say "$BASE pulled"
    return
  fi
  say "no registry answers; making $BASE from Debian's packages"
  command -v mmdebstrap >/dev/null || install_mmdebstrap
  local work
  work="$(mktemp -d)"
  # mmdebstrap's helpers must be able to enter it.
  chmod 0755 "$work"
  # shellcheck disable=SC2064
  trap "rm -rf '$work'" EXIT
  make_base "$work"
  say "$BASE made"
}

main
