#!/usr/bin/env bash
# A separate engine with the runtime gVisor, for the tests: `tests/gvisor.sh up|down DIRECTORY`.
# `up` starts a second dockerd in a separate network namespace, with its data, state and socket in DIRECTORY, and copies the
# images named in GANTRY_GVISOR_IMAGES from the existing engine. `down` stops it and removes its files.
# Never touches, reconfigures or signals another engine: two engines in one network namespace would share a bridge. Needs
# root on Linux, runsc and dockerd.
set -euo pipefail

readonly NAMESPACE=gantry-gvisor
readonly WAIT_SECONDS=60

say() { printf 'gvisor: %s\n' "$*"; }
fail() {
  printf 'gvisor: %s\n' "$*" >&2
  exit 1
}

[ $# -eq 2 ] || { sed -n '2s/^# //p' "${BASH_SOURCE[0]}" >&2; exit 2; }
directory="$2"
socket="$directory/docker.sock"

on_it() { env -u DOCKER_CONTEXT DOCKER_HOST="unix://$socket" docker "$@"; }

answers() { [ -S "$socket" ] && on_it version >/dev/null 2>&1; }

# Option names depend on the version: `--fsgofer-host-uds` is older than `--host-uds`. `ptrace` needs no virtualisation.
write_settings() {
  local uds=--fsgofer-host-uds
  if runsc flags 2>&1 | grep -q -- '-host-uds value'; then uds=--host-uds=open; fi
  cat >"$directory/daemon.json" <<JSON
{"runtimes": {"runsc": {"path": "$(command -v runsc)", "runtimeArgs": ["--platform=ptrace", "$uds", "--network=none"]}}}
JSON
}

start() {
  mkdir -p "$directory"
  write_settings
  ip netns list | grep -q "^$NAMESPACE\b" || ip netns add "$NAMESPACE"
  ip -n "$NAMESPACE" link set lo up
  # `nsenter`, because `ip netns exec` would hide the control groups. The daemon gets none of our descriptors, so that readers
  # of this script's output do not wait for it.
  setsid nsenter --net="/var/run/netns/$NAMESPACE" dockerd --config-file "$directory/daemon.json" \
    --data-root "$directory/data" --exec-root "$directory/exec" --pidfile "$directory/pid" -H "unix://$socket" \
    >"$directory/log" 2>&1 </dev/null 9>&- &
  local deadline=$((SECONDS + WAIT_SECONDS))
  until answers; do
    if [ "$SECONDS" -ge "$deadline" ]; then
      tail -n 20 "$directory/log" >&2
      fail "the engine did not respond within ${WAIT_SECONDS} s"
    fi
    sleep 0.3
  done
}

# Makes the worker readable by its user: gVisor cannot run a program that is only executable.
copy_images() {
  local image
  for image in ${GANTRY_GVISOR_IMAGES:-}; do
    docker save "$image" | on_it load >/dev/null
    printf 'FROM %s\nUSER root\nRUN chmod 0755 /usr/local/bin/gantry-worker\nUSER 10001:10001\n' "$image" |
      on_it build --quiet --network none --tag "$image" - >/dev/null
  done
}

case "$1" in
  up)
    answers || start
    copy_images
    say "listening on $socket, with runsc $(runsc --version | sed -n 's/^runsc version //p')"
    ;;
  down)
    if [ -f "$directory/pid" ]; then
      on_it ps -aq | xargs -r env DOCKER_HOST="unix://$socket" docker rm -f >/dev/null || true
      pid="$(cat "$directory/pid")"
      kill "$pid" 2>/dev/null || true
      for _ in $(seq 100); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
    fi
    ip netns delete "$NAMESPACE" 2>/dev/null || true
    ;;
  *) fail "unknown command $1: must be up or down" ;;
esac
