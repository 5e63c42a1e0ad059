#!/usr/bin/env bash
# Makes sure that a container engine is running, and prints one line.
# Does nothing if an engine responds. On Debian as root, installs the distribution's engine and starts it.
# Never replaces, reconfigures, stops or restarts an existing engine.
set -euo pipefail

readonly WAIT_SECONDS=60
readonly DAEMON_LOG=/var/log/gantry-dockerd.log

say() { printf 'engine: %s\n' "$*"; }
fail() {
  printf 'engine: %s\n' "$*" >&2
  exit 1
}

answers() { command -v docker >/dev/null && timeout 10 docker version >/dev/null 2>&1; }

wait_for_answer() {
  local deadline=$((SECONDS + WAIT_SECONDS))
  until answers; do
    [ "$SECONDS" -lt "$deadline" ] || return 1
    sleep 0.3
  done
}

# Debian's package names. In some releases the daemon's package does not depend on the client's.
install_engine() {
  [ -e /etc/debian_version ] ||
    fail "no container engine found; install Docker 20.10 or newer (or set DOCKER_HOST) and run this again"
  say "installing the distribution's docker.io and iptables"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends docker.io iptables >/dev/null
  command -v docker >/dev/null || apt-get install -y -qq --no-install-recommends docker-cli >/dev/null
}

# A busy engine answers late; a second one could not start beside it.
is_at_work() {
  local pid
  # The file may be left over, and its number be that of another process.
  pid="$(cat /var/run/docker.pid 2>/dev/null)" && [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = dockerd ]
}

start_engine() {
  if is_at_work; then
    say "the engine does not answer yet: waiting"
    return
  fi
  if [ -d /run/systemd/system ]; then
    say "starting the docker unit"
    systemctl start docker
    return
  fi
  # The daemon gets its own session and none of our file descriptors, so that readers of this script's output do not wait for it.
  say "starting dockerd (log: $DAEMON_LOG)"
  setsid dockerd >"$DAEMON_LOG" 2>&1 </dev/null 9>&- &
}

main() {
  if answers; then
    say "running ($(docker version --format '{{.Server.Version}}'))"
    return
  fi
  if [ -n "${DOCKER_HOST:-}" ]; then
    fail "DOCKER_HOST is set, but no engine responds there; start that engine or unset DOCKER_HOST"
  fi
  if [ "$(id -u)" -ne 0 ]; then
    fail "no engine is accessible to this user; start Docker, join the group docker, or run this as root"
  fi
  # Concurrent runs would start two daemons.
  exec 9>/run/gantry-engine.lock
  flock 9
  if answers; then
    say "running"
    return
  fi
  { command -v dockerd && command -v docker && command -v iptables; } >/dev/null || install_engine
  answers || start_engine
  if ! wait_for_answer; then
    tail -n 20 "$DAEMON_LOG" >&2 2>/dev/null || true
    fail "the engine did not respond within ${WAIT_SECONDS} s; see $DAEMON_LOG"
  fi
  say "running ($(docker version --format '{{.Server.Version}}'))"
}

main
