#!/usr/bin/env bash
# Builds the project's two images, and removes what building leaves behind: `docker/images.sh build|tidy`.
# `build` ends with a `tidy`; one more, after the stack has moved to the new images, takes the replaced ones too.
# One at a time on a machine: a classic builder's stages look abandoned to another build's prune while they are being made.
# Never removes an image that has a name or a container, nor anybody else's.
set -euo pipefail

readonly LOCK=/tmp/gantry-images.lock
readonly LOG_LINES=40

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"

say() { printf 'images: %s\n' "$*"; }

# Held until this script ends. Opened for reading, since the file may be another user's.
take_lock() {
  [ -e "$LOCK" ] || : 2>/dev/null >>"$LOCK" || true
  exec 9<"$LOCK"
  flock --nonblock 9 && return
  say "another build is at work on this machine; waiting for it"
  flock 9
}

prune() { docker image prune --force --filter "label=$1" >/dev/null 9>&-; }

tidy() {
  # In `builder` a stage is what the next build starts from.
  if [ "$(docker/setting.sh GANTRY_BINARIES builder)" = prebuilt ]; then prune gantry.stage=binaries; fi
  prune org.opencontainers.image.title=gantry
  prune org.opencontainers.image.title=gantry-worker
}

build() {
  local log
  log="$(mktemp)"
  # shellcheck disable=SC2064
  trap "rm -f '$log'" EXIT
  if ! docker/compose.sh build >"$log" 2>&1 9>&-; then
    tail -n "$LOG_LINES" "$log" >&2
    echo "images: they did not build; the end of the build's log is above" >&2
    exit 1
  fi
}

case "${1:-}" in
  build)
    take_lock
    build
    tidy
    ;;
  tidy)
    take_lock
    tidy
    ;;
  *)
    echo "usage: docker/images.sh build|tidy" >&2
    exit 2
    ;;
esac
