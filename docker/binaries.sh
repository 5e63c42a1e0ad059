#!/usr/bin/env bash
# Puts the programs `gantry` and `gantry-worker` into a directory: `docker/binaries.sh builder|prebuilt OUT`.
# `builder` compiles them with the installed cargo; `prebuilt` copies them from docker/prebuilt.
# Used by the images' build stage and by docker/up.sh on the host, so that there is one way to build them.
# Never falls back from one mode to the other, and never writes outside OUT and cargo's target directory.
#
# GANTRY_BUILD_PROFILE is cargo's profile for `gantry` (default: release). The worker is always built with the profile
# `worker`, which optimises for size, and linked statically: it also runs in custom images.
set -euo pipefail

# Executable by the job's user, but readable only by root: the kernel makes a process non-dumpable from its first
# instruction if its user cannot read the program.
readonly WORKER_MODE=0711
readonly WORKER_TARGET=x86_64-unknown-linux-gnu
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"

say() { printf 'binaries: %s\n' "$*"; }
fail() {
  printf 'binaries: %s\n' "$*" >&2
  exit 1
}

# The directory of a profile's programs below cargo's target directory.
profile_directory() { if [ "$1" = dev ]; then echo debug; else echo "$1"; fi; }

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
  # An explicit target keeps build scripts from being linked statically. It has a separate directory in the target
  # directory, so the flag does not make cargo rebuild other dependencies.
  # Packed relative relocations save a third of a megabyte in every job image.
  RUSTFLAGS="-C target-feature=+crt-static" cargo rustc --locked --profile worker --target "$triple" -p worker \
    --bin gantry-worker -- -C link-arg=-Wl,-z,pack-relative-relocs
  install -D -m 0755 "$target_dir/$(profile_directory "$profile")/gantry" "$out/gantry"
  install -D -m "$WORKER_MODE" "$target_dir/$triple/worker/gantry-worker" "$out/gantry-worker"
  # Debug information is most of a dev build and is not used in an image.
  if command -v strip >/dev/null; then strip --strip-debug "$out/gantry"; fi
}

take_prebuilt() {
  local out="$1" name
  for name in gantry gantry-worker; do
    [ -f "docker/prebuilt/$name" ] || fail "docker/prebuilt/$name is missing; run docker/up.sh to build it"
  done
  install -D -m 0755 docker/prebuilt/gantry "$out/gantry"
  install -D -m "$WORKER_MODE" docker/prebuilt/gantry-worker "$out/gantry-worker"
}

case "${1:-}" in
  builder) build "${2:?an output directory}" ;;
  prebuilt) take_prebuilt "${2:?an output directory}" ;;
  *) fail "usage: docker/binaries.sh builder|prebuilt OUT" ;;
esac
