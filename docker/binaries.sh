#!/usr/bin/env bash
# Puts the two programs, `gantry` and `gantry-worker`, into a folder: `docker/binaries.sh builder|prebuilt OUT`.
# `builder` compiles them with the cargo at hand; `prebuilt` takes what such a build left in docker/prebuilt.
# The images' build stage runs it, and so does docker/up.sh on the host, so that there is one way to build them.
# Never falls back from one to the other, and never writes outside OUT and cargo's target folder.
#
# GANTRY_BUILD_PROFILE is cargo's profile for `gantry` (default: release). The worker always has the profile `worker`, made
# for size, and is always static: it runs in images that somebody else made.
set -euo pipefail

# Run by a job's user, read by nobody but root: the kernel hides a process whose program its user cannot read, from its
# first instruction on.
readonly WORKER_MODE=0711
readonly WORKER_TARGET=x86_64-unknown-linux-gnu
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"

say() { printf 'binaries: %s\n' "$*"; }
fail() {
  printf 'binaries: %s\n' "$*" >&2
  exit 1
}

# Where cargo leaves a profile's programs.
profile_folder() { if [ "$1" = dev ]; then echo debug; else echo "$1"; fi; }

worker_target() {
  case "$(uname -m)" in
    x86_64) echo "$WORKER_TARGET" ;;
    aarch64) echo aarch64-unknown-linux-gnu ;;
    *) fail "the worker is built for x86_64 and aarch64 only, not for $(uname -m)" ;;
  esac
}

build() {
  local out="$1" profile="${GANTRY_BUILD_PROFILE:-release}" target_dir="${CARGO_TARGET_DIR:-target}" triple
  triple="$(worker_target)"
  say "compiling gantry (1 of 2, profile $profile)"
  cargo build --locked --profile "$profile" -p orchestrator --bin gantry
  say "compiling gantry-worker (2 of 2, profile worker)"
  # Always with a target, else build scripts would be linked statically too. It is a folder of its own in the target
  # folder, so the flag does not make cargo build everybody else's dependencies again.
  # Relative relocations packed: a third of a megabyte less in every job's image.
  RUSTFLAGS="-C target-feature=+crt-static" cargo rustc --locked --profile worker --target "$triple" -p worker \
    --bin gantry-worker -- -C link-arg=-Wl,-z,pack-relative-relocs
  install -D -m 0755 "$target_dir/$(profile_folder "$profile")/gantry" "$out/gantry"
  install -D -m "$WORKER_MODE" "$target_dir/$triple/worker/gantry-worker" "$out/gantry-worker"
  # A dev build's debug information is most of it, and nobody reads it in an image.
  if command -v strip >/dev/null; then strip --strip-debug "$out/gantry"; fi
}

take_prebuilt() {
  local out="$1" name
  for name in gantry gantry-worker; do
    [ -f "docker/prebuilt/$name" ] || fail "docker/prebuilt/$name is missing; docker/up.sh makes it"
  done
  install -D -m 0755 docker/prebuilt/gantry "$out/gantry"
  install -D -m "$WORKER_MODE" docker/prebuilt/gantry-worker "$out/gantry-worker"
}

case "${1:-}" in
  builder) build "${2:?an output folder}" ;;
  prebuilt) take_prebuilt "${2:?an output folder}" ;;
  *) fail "usage: docker/binaries.sh builder|prebuilt OUT" ;;
esac
