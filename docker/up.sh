#!/usr/bin/env bash
# From a clone to a finished first job: container engine, base image, programs, images, the stack, a token, a demo job.
# Run it again whenever you like: what is there is kept, what changed is built and started again.
# With an engine and Compose at hand it changes nothing but this project's own images, containers and volume. Never
# stops another container and never deletes the data volume.
#
# Settings of its own (all others are compose.yaml's):
#   GANTRY_BINARIES       prebuilt: cargo on this machine compiles; builder: a build stage on rust:1-bookworm does,
#                         which takes a registry. Default: prebuilt where a fitting cargo is at hand.
#   GANTRY_BUILD_PROFILE  cargo's profile for the orchestrator; default release
#   GANTRY_READY_SECONDS  how long to wait for the stack; default 120
set -euo pipefail

readonly DEMO_PROMPT="Write a small Python program that finds the median of a list of numbers, with tests. Run the tests, mend the program until they pass, and report."
readonly IMAGE_GLIBC=2.36

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"
port="${GANTRY_PORT:-8080}"
demo=yes
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

say() { printf '\n==> %s\n' "$*"; }
fail() {
  printf '\nup: %s\n' "$*" >&2
  exit 1
}
usage() {
  cat <<'TEXT'
usage: docker/up.sh [--no-demo]
  Builds and starts Gantry on 127.0.0.1:8080 and runs one demo job; its outcome is the exit code.
  --no-demo   start only
TEXT
}

# True when version $1 is at least $2.
at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

# What this machine compiles must run in the images: Linux, a compiler that is new enough, and a C library that is not
# newer than theirs.
cargo_fits() {
  local wanted glibc
  command -v cargo >/dev/null && command -v cc >/dev/null && [ "$(uname -s)" = Linux ] || return 1
  wanted="$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)"
  at_least "$(rustc --version | cut -d ' ' -f 2)" "$wanted" || return 1
  glibc="$(getconf GNU_LIBC_VERSION 2>/dev/null | cut -d ' ' -f 2)"
  [ -n "$glibc" ] && at_least "$IMAGE_GLIBC" "$glibc"
}

choose_binaries() {
  if [ -z "${GANTRY_BINARIES:-}" ]; then
    if cargo_fits; then GANTRY_BINARIES=prebuilt; else GANTRY_BINARIES=builder; fi
  fi
  case "$GANTRY_BINARIES" in
    prebuilt)
      # The build stage then only copies, and any image will do for that.
      GANTRY_BUILDER_BASE=debian:bookworm-slim
      say "compiling gantry and gantry-worker with this machine's cargo"
      docker/binaries.sh builder docker/prebuilt
      ;;
    builder)
      GANTRY_BUILDER_BASE="${GANTRY_BUILDER_BASE:-rust:1-bookworm}"
      if ! docker image inspect "$GANTRY_BUILDER_BASE" >/dev/null 2>&1; then
        say "fetching $GANTRY_BUILDER_BASE"
        docker pull --quiet "$GANTRY_BUILDER_BASE" >/dev/null ||
          fail "no registry gave $GANTRY_BUILDER_BASE, and no fitting cargo is here; install Rust $(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml) or newer and a C compiler"
      fi
      ;;
    *) fail "GANTRY_BINARIES=$GANTRY_BINARIES: must be prebuilt or builder" ;;
  esac
  export GANTRY_BINARIES GANTRY_BUILDER_BASE
}

# The ids of the project's two images, as far as they are there.
image_ids() { docker image inspect --format '{{.Id}}' gantry:latest gantry-worker:latest 2>/dev/null || true; }

# Removes the images among $1 that lost their name to a newer build. One that a container still uses stays.
remove_replaced() {
  local id
  for id in $1; do
    if [ "$(docker image inspect --format '{{len .RepoTags}}' "$id" 2>/dev/null)" = 0 ]; then
      docker image rm "$id" >/dev/null 2>&1 || true
    fi
  done
}

build_images() {
  replaced="$(image_ids)"
  say "building the images (the first time takes minutes)"
  if ! docker/compose.sh build >"$work/build.log" 2>&1; then
    tail -n 40 "$work/build.log" >&2
    fail "the images did not build; the end of the build's log is above"
  fi
  # A classic builder leaves its stages behind. In `builder` they are the next build's cache.
  if [ "$GANTRY_BINARIES" = prebuilt ]; then
    docker image prune --force --filter label=gantry.stage=binaries >/dev/null
  fi
}

start_stack() {
  say "starting the stack"
  docker/compose.sh up -d >"$work/up.log" 2>&1 || {
    cat "$work/up.log" >&2
    fail "compose could not start the stack"
  }
  container="$(docker/compose.sh ps -a -q gantry)"
  [ -n "$container" ] || fail "compose started no container for the service gantry"
}

# One line about the container and what its readiness check says.
readiness() {
  docker exec "$container" curl -sS --max-time 5 http://127.0.0.1:8080/readyz 2>&1 | tr -d '\n' | cut -c 1-300 || true
}

wait_until_ready() {
  local deadline=$((SECONDS + ${GANTRY_READY_SECONDS:-120})) seen="" now restarts
  say "waiting for readiness (store, container engine, a probe of the sandbox)"
  until docker exec "$container" curl -fsS -o /dev/null --max-time 5 http://127.0.0.1:8080/readyz 2>/dev/null; do
    now="$(readiness)"
    if [ "$now" != "$seen" ]; then
      printf '    %s\n' "$now"
      seen="$now"
    fi
    restarts="$(docker inspect --format '{{.RestartCount}}' "$container")"
    if [ "$restarts" -ge 3 ] || [ "$SECONDS" -ge "$deadline" ]; then
      docker logs --tail 30 "$container" >&2 || true
      fail "the stack is not ready ($restarts restarts); the end of its log is above"
    fi
    sleep 0.5
  done
  echo "    ready: http://127.0.0.1:$port"
}

run_demo() {
  local code=0
  say "the first job: an agent writes, tests and mends a small program in a container of its own"
  GANTRY_TOKEN="$(docker/compose.sh exec -T gantry gantry token create --user demo --role user --ttl 1d | tail -n 1 | tr -d '\r')"
  export GANTRY_TOKEN
  docker/compose.sh exec -T -e GANTRY_TOKEN gantry gantry job run --title demo "$DEMO_PROMPT" </dev/null || code=$?
  [ "$code" -eq 0 ] || fail "the demo job ended with code $code; 'docker/compose.sh logs gantry' has more"
}

next_steps() {
  cat <<TEXT

Gantry is up.

  API      http://127.0.0.1:$port/api/docs
  token    export GANTRY_TOKEN=\$(docker/compose.sh exec -T gantry gantry token create --user \$USER --role user --ttl 30d)
  a job    docker/compose.sh exec -T -e GANTRY_TOKEN gantry gantry job run "run: id; cat /proc/net/dev"
  log      docker/compose.sh logs -f gantry
  stop     docker/down.sh
TEXT
  if [ -z "${GANTRY_LLM_PROVIDER:-}" ] && ! grep -qs '^GANTRY_LLM_PROVIDER=' .env; then
    cat <<'TEXT'

No model is set, so the built-in demo script answers. To set one, write a file .env here, for example
  GANTRY_LLM_PROVIDER=anthropic
  GANTRY_LLM_MODEL=<the model's name>
  GANTRY_LLM_API_KEY=<your key>
and run docker/up.sh again.
TEXT
  fi
}

main() {
  while [ $# -gt 0 ]; do
    case "$1" in
      --no-demo) demo=no ;;
      -h | --help)
        usage
        return
        ;;
      *)
        usage >&2
        exit 2
        ;;
    esac
    shift
  done
  docker/engine.sh
  docker/base-image.sh
  choose_binaries
  build_images
  start_stack
  remove_replaced "$replaced"
  wait_until_ready
  if [ "$demo" = yes ]; then run_demo; fi
  next_steps
}

main "$@"
