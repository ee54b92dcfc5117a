#! /bin/bash
# tpu-watchdog-supervisor 1
# Written by tpu-watchdog as this node's startup script; your own script stands verbatim in the metadata
# tpu-watchdog-user-script and is run from here. It runs at every boot of every host.
set -u
#@SETTINGS@
MD=${TPU_WATCHDOG_METADATA:-http://metadata.google.internal/computeMetadata/v1}
STATE=${TPU_WATCHDOG_STATE:-/var/lib/tpu-watchdog}
BEAT=${TPU_WATCHDOG_BEAT:-60}
PAUSE=${TPU_WATCHDOG_PAUSE:-10}
BOOT=$(cat /proc/sys/kernel/random/boot_id 2>/dev/null || date +%s)
mkdir -p "$STATE"
# The guest agent runs startup scripts without HOME.
export HOME=${HOME:-$(getent passwd "$(id -un)" | cut -d: -f6)}

attribute() { curl -sf --retry 3 --retry-delay 1 --retry-connrefused --max-time 10 -H 'Metadata-Flavor: Google' "$MD/instance/attributes/$1"; }
# report KEY VALUE TEXT: a lost report is repeated by the next one; writes are limited to about 10 a minute.
report() {
  curl -sf --max-time 10 -X PUT -H 'Metadata-Flavor: Google' --data "$BOOT $GENERATION $2${3:+ $3}" \
    "$MD/instance/guest-attributes/tpu-watchdog/$1" >/dev/null
}
# order: reads the run order; without an answer the last one stays, and nothing ever starts as generation 0.
order() {
  local run generation; run=$(attribute tpu-watchdog-run) || return 1
  generation=$(sed -n 's/.*"generation":\([0-9]*\).*/\1/p' <<<"$run"); [[ -n $generation ]] || return 1
  GENERATION=$generation
  CHECKPOINT_PATH=$(sed -n 's/.*"checkpoint":"\([^"]*\)".*/\1/p' <<<"$run")
  CHECKPOINT_STEP=$(sed -n 's/.*"step":\([0-9]*\).*/\1/p' <<<"$run")
  export CHECKPOINT_PATH CHECKPOINT_STEP TPU_WATCHDOG_GENERATION=$GENERATION
}

if [[ ${1:-} != supervise ]]; then
  # First the boot beacon, then detach, so that boot goes on.
  order && report boot 1
  cp "$0" "$STATE/supervisor" && chmod 755 "$STATE/supervisor"
  setsid bash "$STATE/supervisor" supervise </dev/null >>"$STATE/supervisor.log" 2>&1 &
  exit 0
fi

exec 9>"$STATE/lock"; flock -n 9 || exit 0
until order; do sleep "$PAUSE"; done
WORKER=$(attribute agent-worker-number || echo 0)
WORKERS=$(attribute worker-network-endpoints | tr ',' '\n' | grep -c . || true)
PROGRESS=$STATE/progress.$GENERATION
: >>"$PROGRESS"; chmod 666 "$PROGRESS"
PHASE=$STATE/phase; echo setup >"$PHASE"

beat() {
  local count=0 step='' last=''
  while :; do
    count=$((count + 1))
    report boot 1; report heartbeat "$count" "$(cat "$PHASE")"
    step=$(tail -n 1 "$PROGRESS" | tr -dc '0-9')
    [[ -n $step && $step != "$last" ]] && report step "$step" && last=$step
    sleep "$BEAT"
  done
}
beat 9>&- & BEATING=$!
trap 'kill $BEATING 2>/dev/null' EXIT

export TPU_WATCHDOG_SLOT=$SLOT TPU_WATCHDOG_WORKER=$WORKER TPU_WATCHDOG_WORKERS=$WORKERS TPU_WATCHDOG_PROGRESS=$PROGRESS

# fetch_user_script: 0 when it is there, 1 when the user has none; any other answer is asked for again.
fetch_user_script() {
  local file=$STATE/user-script
  while :; do
    case $(curl -s --max-time 10 -H 'Metadata-Flavor: Google' -o "$file" -w '%{http_code}' "$MD/instance/attributes/tpu-watchdog-user-script") in
      200) chmod 755 "$file"; return 0 ;;
      404) return 1 ;;
    esac
    sleep "$PAUSE"
  done
}
user_script() { "$STATE/user-script" 9>&-; }
job() {
  local body="cd ${RUN_IN:+$(printf %q "$RUN_IN")} || exit 1"$'\n'"$JOB_ENV"$'\n'"$COMMAND"
  if [[ -n $RUN_AS && $RUN_AS != "$(id -un)" ]]; then
    runuser -u "$RUN_AS" -- env HOME="$(getent passwd "$RUN_AS" | cut -d: -f6)" bash -c "$body" 9>&-
  else
    bash -c "$body" 9>&-
  fi
}
last_word() { local try; for try in 1 2 3 4 5; do report exit "$@" && return; sleep "$PAUSE"; done; }

DONE=$STATE/done.$GENERATION
if [[ -e $DONE ]]; then
  # This boot follows a success: the job is not run again, only reported.
  echo done >"$PHASE"; last_word 0 done; wait "$BEATING"; exit 0
fi
if [[ -n $COMMAND ]]; then
  fetch_user_script && { user_script || echo "the user's startup script ended with code $?"; }
  RUN=job
elif fetch_user_script; then
  RUN=user_script
else
  # No command and no script: what runs here is started by somebody else, so that there is no end to report.
  echo running >"$PHASE"; wait "$BEATING"; exit 0
fi
# Restarts are counted a generation over reboots of the same boot disk.
USED=$STATE/restarts.$GENERATION
while :; do
  echo running >"$PHASE"
  $RUN; code=$?
  used=$(cat "$USED" 2>/dev/null || echo 0)
  if [[ $code == 0 ]]; then
    : >"$DONE"; echo done >"$PHASE"; last_word 0 done; wait "$BEATING"; exit 0
  fi
  if ((used >= RESTARTS)); then
    echo failed >"$PHASE"; last_word "$code" "final after $used restarts"; wait "$BEATING"; exit 1
  fi
  echo $((used + 1)) >"$USED"
  echo restarting >"$PHASE"; report exit "$code" "restarting $((used + 1)) of $RESTARTS"
  sleep "$PAUSE"
done
