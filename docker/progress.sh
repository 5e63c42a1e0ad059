#!/usr/bin/env bash
# Runs a command that may take minutes, and shows its steps: `docker/progress.sh [--verbose] COMMAND…`.
# Prints a line for each step that took longer than a moment. On a terminal it also shows the current step with its seconds;
# otherwise, a long step has a line every half a minute. The command's own output is shown with `--verbose`; without it, only its
# end if the command fails.
# Knows the output of Compose, of both image builders, and of cargo. For other commands the last line of output is the step.
# Exits with the command's code.
set -euo pipefail

readonly LOG_LINES=40
# Steps that take less time, such as those from the build cache, have no line.
readonly SHORT_SECONDS=2
readonly QUIET_SECONDS=30

# Characters of a line. A longer line than the terminal's could not be overwritten.
columns=120
if [ -t 1 ] && size="$(stty size <&1 2>/dev/null)" && [ "${size##* }" -ge 40 ]; then columns="${size##* }"; fi
readonly MAX_CHARS=$((columns - 18))

log="$(mktemp)"
trap 'rm -f "$log"' EXIT

# The current step, then, separated by a tab, what it does: `gantry 5/12: RUN …` and `Compiling serde v1.0.0`.
current_step() {
  tr '\r' '\n' <"$log" | awk -v most="$MAX_CHARS" '
    { gsub(/\033\[[0-9;?]*[A-Za-z]/, ""); gsub(/[[:cntrl:]]/, " ") }
    /^Building / { service = $2 " " }
    # The classic builder.
    /^Step [0-9]+\/[0-9]+ : / { number = $2; sub(/^Step [0-9\/]+ : /, ""); step = service number ": " $0; detail = ""; next }
    # BuildKit, which prints a number and seconds before the output of a step.
    /^#[0-9]+ \[[^\]]*\] / { sub(/^#[0-9]+ /, ""); step = $0; detail = ""; next }
    { sub(/^#[0-9]+ [0-9.]+ +/, ""); sub(/^ +/, "") }
    /^(Compiling|Downloading|Get:[0-9]+|Unpacking|Setting up) / { detail = $0 }
    # What the classic builder says of itself, which ends with an address.
    /^DEPRECATED: / || /^Install the buildx component/ || /^https?:\/\/[^ ]*$/ { next }
    NF && !/^#/ { last = $0 }
    END { print substr(step == "" ? last : step, 1, most * 2 / 3) "\t" substr(detail, 1, most / 3 - 2) }
  '
}

# Waits for the process $1 and shows its steps.
show_steps() {
  local step detail shown="" since=$SECONDS told=$SECONDS
  while kill -0 "$1" 2>/dev/null; do
    IFS=$'\t' read -r step detail <<<"$(current_step)"
    if [ "$step" != "$shown" ]; then
      end_step "$shown" "$((SECONDS - since))"
      shown="$step" since=$SECONDS told=$SECONDS
    fi
    if [ -t 1 ]; then
      printf '\r\033[K    %s, %s s' "$step${detail:+ ($detail)}" "$((SECONDS - since))"
    elif [ $((SECONDS - told)) -ge "$QUIET_SECONDS" ]; then
      printf '    %s: running for %s s\n' "$step${detail:+ ($detail)}" "$((SECONDS - since))"
      told=$SECONDS
    fi
    sleep 0.5
  done
  end_step "$shown" "$((SECONDS - since))"
}

end_step() {
  if [ -t 1 ]; then printf '\r\033[K'; fi
  if [ -n "$1" ] && [ "$2" -ge "$SHORT_SECONDS" ]; then printf '    %s: %s s\n' "$1" "$2"; fi
}

main() {
  local code=0 process
  if [ "${1:-}" = --verbose ]; then
    shift
    "$@"
    return
  fi
  "$@" >"$log" 2>&1 </dev/null &
  process=$!
  trap 'kill "$process" 2>/dev/null; exit 130' INT TERM
  show_steps "$process"
  wait "$process" || code=$?
  if [ "$code" -ne 0 ]; then tail -n "$LOG_LINES" "$log" >&2; fi
  return "$code"
}

main "$@"
