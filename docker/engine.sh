#!/usr/bin/env bash
# Makes sure that a container engine answers, and says so in one line.
# With an engine that answers it does nothing. On Debian, as root, it installs the distribution's engine and starts it.
# Never replaces, reconfigures, stops or restarts an engine that is there.
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

# What Debian calls the pieces: the daemon brings the client along in some releases and not in others.
install_engine() {
  [ -e /etc/debian_version ] ||
    fail "no container engine here; install Docker 20.10 or newer (or set DOCKER_HOST), then run this again"
  say "installing the distribution's docker.io and iptables"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends docker.io iptables >/dev/null
  command -v docker >/dev/null || apt-get install -y -qq --no-install-recommends docker-cli >/dev/null
}

start_engine() {
  if [ -d /run/systemd/system ]; then
    say "starting the docker unit"
    systemctl start docker
    return
  fi
  # A daemon of its own session, holding none of our files: whoever waits for this script's output must not wait for it.
  say "starting dockerd (log: $DAEMON_LOG)"
  setsid dockerd >"$DAEMON_LOG" 2>&1 </dev/null 9>&- &
}

main() {
  if answers; then
    say "answers ($(docker version --format '{{.Server.Version}}'))"
    return
  fi
  if [ -n "${DOCKER_HOST:-}" ]; then
    fail "DOCKER_HOST is set but nothing answers there; start that engine or unset DOCKER_HOST"
  fi
  if [ "$(id -u)" -ne 0 ]; then
    fail "no engine answers to this user; start Docker, or join the group docker, or run this as root"
  fi
  # Two at once would start two daemons.
  exec 9>/run/gantry-engine.lock
  flock 9
  if answers; then
    say "answers"
    return
  fi
  { command -v dockerd && command -v docker && command -v iptables; } >/dev/null || install_engine
  answers || start_engine
  if ! wait_for_answer; then
    tail -n 20 "$DAEMON_LOG" >&2 2>/dev/null || true
    fail "the engine did not answer within ${WAIT_SECONDS} s; see $DAEMON_LOG"
  fi
  say "answers ($(docker version --format '{{.Server.Version}}'))"
}

main
