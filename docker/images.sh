#!/usr/bin/env bash
# Builds the project's two images, and removes leftovers of builds: `docker/images.sh build [--verbose]|tidy`.
# `build` shows its steps, and with `--verbose` all output; it ends with a `tidy`. Another one, after the stack uses the new images, also removes the replaced images.
# Only one build at a time on a machine: the classic builder's stages look unused to another build's prune.
# Never removes images that have a name or a container, or that belong to others.
set -euo pipefail

readonly LOCK=/tmp/gantry-images.lock

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"

say() { printf 'images: %s\n' "$*"; }

# Locked until this script ends. Opened for reading, because the file may belong to another user.
take_lock() {
  [ -e "$LOCK" ] || : 2>/dev/null >>"$LOCK" || true
  exec 9<"$LOCK"
  flock --nonblock 9 && return
  say "waiting for another build on this machine"
  flock 9
}

prune() { docker image prune --force --filter "label=$1" >/dev/null 9>&-; }

tidy() {
  # With `builder`, the next build starts from these stages.
  if [ "$(docker/setting.sh GANTRY_BINARIES builder)" = prebuilt ]; then prune gantry.stage=binaries; fi
  prune org.opencontainers.image.title=gantry
  prune org.opencontainers.image.title=gantry-worker
}

# The arguments are options of docker/progress.sh. Plain output can be read by it, and is all that `--verbose` can show.
build() {
  if ! BUILDKIT_PROGRESS=plain docker/progress.sh "$@" docker/compose.sh build 9>&-; then
    echo "images: the build failed; the end of its log is above" >&2
    exit 1
  fi
}

case "${1:-}" in
  build)
    shift
    take_lock
    build "$@"
    tidy
    ;;
  tidy)
    take_lock
    tidy
    ;;
  *)
    echo "usage: docker/images.sh build [--verbose]|tidy" >&2
    exit 2
    ;;
esac
