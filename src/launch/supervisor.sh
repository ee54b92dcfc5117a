#! /bin/bash
# tpu-watchdog-supervisor 2.1
# Written by tpu-watchdog as this node's startup script; your own script stands verbatim in the metadata
# tpu-watchdog-user-script and is run from here. It runs at every boot of every host, which has bash, curl and systemd.
# Its output and that of the job: journalctl -u 'tpu-watchdog-*'
set -u
#@SETTINGS@
MD=${TPU_WATCHDOG_METADATA:-http://metadata.google.internal/computeMetadata/v1}
STORAGE=${TPU_WATCHDOG_STORAGE:-https://storage.googleapis.com}
SECRET_MANAGER=${TPU_WATCHDOG_SECRET_MANAGER:-https://secretmanager.googleapis.com}
# The disk, which a job may fill, has only files that outlive a reboot; all others are in memory.
STATE=${TPU_WATCHDOG_STATE:-/var/lib/tpu-watchdog}
MEMORY=${TPU_WATCHDOG_RUN:-/run}/tpu-watchdog
# Bash before 5.1 writes here-strings there.
TMPDIR=${MEMORY%/*}
BEAT=${TPU_WATCHDOG_BEAT:-60}
PAUSE=${TPU_WATCHDOG_PAUSE:-10}
# Seconds before each restart; the last one repeats.
read -ra PAUSES <<<"${TPU_WATCHDOG_PAUSES:-10 20 40 80 160 320 600}"
LONG=${TPU_WATCHDOG_LONG:-600}
ALONE=${TPU_WATCHDOG_ALONE:-300}
REFILL=${TPU_WATCHDOG_REFILL:-3600}
BOOT=${TPU_WATCHDOG_BOOT:-$(cat /proc/sys/kernel/random/boot_id 2>/dev/null || date +%s)}
mkdir -p "$STATE"
# The guest agent runs startup scripts without HOME.
export HOME=${HOME:-$(getent passwd "$(id -un)" | cut -d: -f6)}

attribute() { curl -sf --retry 3 --retry-delay 1 --retry-connrefused --max-time 10 -H 'Metadata-Flavor: Google' "$MD/instance/attributes/$1"; }
is_full() { (($(df --output=avail -k "$STATE" | tail -n 1) < 64)); }
# full_disk: to follow what is told.
full_disk() { ! is_full || echo "; the disk of $STATE is full"; }
# keep FILE TEXT: what must outlive a reboot. When the disk is full, the reserve makes room; without room the former text stays.
RESERVE=$STATE/reserve
keep() {
  for _ in 1 2; do
    { printf '%s\n' "$2" >"$1.new"; } 2>/dev/null && sync "$1.new" 2>/dev/null && mv "$1.new" "$1" && return
    rm -f "$1.new" "$RESERVE"
  done
  echo "$1 could not be written$(full_disk)"
}
# report KEY VALUE TEXT: a lost report is repeated by the next one; writes are limited to about 10 a minute.
report() {
  curl -sf --max-time 10 -X PUT -H 'Metadata-Flavor: Google' --data "$BOOT $GENERATION $2${3:+ $3}" \
    "$MD/instance/guest-attributes/tpu-watchdog/$1" >/dev/null
}
generation_in() { sed -n 's/.*"generation":\([0-9]*\).*/\1/p' <<<"$1"; }
# boot_beacon: v2 says that this supervisor follows newer orders.
boot_beacon() { report boot 1 v2; }
# order: reads the run order; without an answer the last one stays, and nothing ever starts as generation 0.
order() {
  local run generation; run=$(attribute tpu-watchdog-run) || return 1
  generation=$(generation_in "$run"); [[ -n $generation ]] || return 1
  GENERATION=$generation
  CHECKPOINT_PATH=$(sed -n 's/.*"checkpoint":"\([^"]*\)".*/\1/p' <<<"$run")
  # As the job sees it, where the location is mounted.
  CHECKPOINT_PATH=${CHECKPOINT_PATH/#"$CHECKPOINT_URI"/"$CHECKPOINT_BASE"}
  CHECKPOINT_STEP=$(sed -n 's/.*"step":\([0-9]*\).*/\1/p' <<<"$run")
  export CHECKPOINT_PATH CHECKPOINT_STEP CHECKPOINT_BASE TPU_WATCHDOG_GENERATION=$GENERATION
}

# unit NAME OPTIONS… -- PROGRAM…: a transient unit with this script's variables: a control group of its own, output in the journal.
unit() {
  local name=$1 variable options=(); shift
  while [[ $1 != -- ]]; do options+=("$1"); shift; done; shift
  for variable in HOME PATH CHECKPOINT_BASE CHECKPOINT_PATH CHECKPOINT_STEP "${!TPU_WATCHDOG_@}"; do
    options+=(-E "$variable=${!variable-}")
  done
  systemd-run --quiet --collect --unit="tpu-watchdog-$name" "${options[@]}" "$@"
}

if [[ ${1:-} != supervise ]]; then
  # First the boot beacon, then detach, so that boot goes on. Run by hand beside a running supervisor, this changes nothing:
  # bash goes on reading the file that it has open, and a unit of that name is there.
  order && boot_beacon
  cp "$0" "$MEMORY.new" && mv "$MEMORY.new" "$MEMORY.supervisor"
  # Killed, it starts again; its heartbeat ends with it; when memory is short, the job goes first.
  for _ in {1..30}; do
    unit supervisor -p Restart=on-failure -p RestartSec=10 -p TimeoutStopSec=5 -p OOMScoreAdjust=-900 \
      -- /bin/bash "$MEMORY.supervisor" supervise </dev/null && break
    # Early in a boot systemd may not answer yet.
    systemctl is-active --quiet tpu-watchdog-supervisor.service && break
    sleep "$PAUSE"
  done
  exit 0
fi

exec 9>"$MEMORY.lock"; flock -n 9 || exit 0
until order; do sleep "$PAUSE"; done
[[ -s $RESERVE ]] || head -c 65536 /dev/zero >"$RESERVE" 2>/dev/null
PROGRESS=$STATE/progress.$GENERATION
: >>"$PROGRESS"; chmod 666 "$PROGRESS"
PHASE=$MEMORY.phase; echo setup >"$PHASE"
ORDERED_PATH=$CHECKPOINT_PATH ORDERED_STEP=$CHECKPOINT_STEP

last_step() { tail -n 1 "$PROGRESS" | tr -dc '0-9'; }
# is_new STEP: beyond the checkpoint that this generation began with.
is_new() { [[ -n $1 ]] && { [[ -z $ORDERED_STEP ]] || ((10#$1 > 10#$ORDERED_STEP)); }; }
beat() {
  local count=0 step='' last=''
  while :; do
    count=$((count + 1))
    boot_beacon; report heartbeat "$count" "$(cat "$PHASE")$(full_disk)"
    step=$(last_step)
    [[ -n $step && $step != "$last" ]] && report step "$step" && last=$step
    sleep "$BEAT"
  done
}
# await KEY: the value of instance/KEY into ANSWER, when it is another one than at the last call, or after 5 min.
ETAG=0
await() {
  ANSWER=$(curl -sfi --max-time 330 -H 'Metadata-Flavor: Google' "$MD/instance/$1?wait_for_change=true&timeout_sec=300&last_etag=$ETAG" | tr -d '\r')
  ETAG=$(sed -n 's/^[Ee][Tt][Aa][Gg]: *//p' <<<"$ANSWER"); ETAG=${ETAG:-0}
}
# watch_order: a newer generation ends this one. systemd starts this supervisor again, which ends what is left of the run and reads the
# new order.
watch_order() {
  local newer
  while :; do
    await attributes/tpu-watchdog-run
    newer=$(generation_in "$ANSWER")
    if [[ $newer =~ ^[0-9]+$ ]] && ((newer > GENERATION)); then
      echo "generation $newer is ordered: the run of generation $GENERATION ends"
      kill -KILL $$
    fi
    sleep "$PAUSE"
  done
}
beat 9>&- & BEATING=$!
watch_order 9>&- & WATCHING=$!
# A subshell that is ended right after its fork still runs this trap: the heartbeat must outlive it.
NOTICING=''
trap '[[ $BASHPID == $$ ]] && kill $BEATING $WATCHING $NOTICING 2>/dev/null' EXIT
# rest PHASE: nothing more is started in this boot; the heartbeat goes on.
rest() { echo "$1" >"$PHASE"; wait "$BEATING"; exit 0; }

# A host without an index must not pass for worker 0: two of them would keep the slice from starting.
until WORKER=$(attribute agent-worker-number) && [[ $WORKER =~ ^[0-9]+$ ]]; do
  echo "setup_failed: this host has no agent-worker-number yet" >"$PHASE"; sleep "$PAUSE"
done
WORKERS=$(attribute worker-network-endpoints | tr ',' '\n' | grep -c . || true)
export TPU_WATCHDOG_SLOT=$SLOT TPU_WATCHDOG_WORKER=$WORKER TPU_WATCHDOG_WORKERS=$WORKERS TPU_WATCHDOG_PROGRESS=$PROGRESS

# fetch_user_script: 0 when it is there whole, 1 when the user has none; any other answer is asked for again.
fetch_user_script() {
  local file=$STATE/user-script answer
  while :; do
    if answer=$(curl -s --max-time 10 -H 'Metadata-Flavor: Google' -o "$file" -w '%{http_code}' "$MD/instance/attributes/tpu-watchdog-user-script"); then
      case $answer in
        200) chmod 755 "$file"; return 0 ;;
        404) rm -f "$file"; return 1 ;;
      esac
    fi
    sleep "$PAUSE"
  done
}
# The code of the last run.
CODE=$MEMORY.code
export TPU_WATCHDOG_CODE=$CODE
# The shell around a program: it tells that it began, and 139 for a program that a signal ended. A pipe and not the journal's
# socket, since scripts open /dev/stderr; it outlives SIGTERM for the last lines.
WRAPPER=$MEMORY.wrapper
# shellcheck disable=SC2016 # It is the wrapper that expands them.
printf '%s\n' "$([[ $ON_NOTICE != SIG* ]] || echo "trap '' ${ON_NOTICE#SIG}")" ': >"$TPU_WATCHDOG_CODE"' '"$@" > >(trap "" TERM; exec cat) 2>&1' 'code=$?; echo "$code" >"$TPU_WATCHDOG_CODE"; exit "$code"' >"$WRAPPER"
# run_unit NAME OPTIONS… -- PROGRAM…: runs it to its end and returns its code. A program with KillMode=control-group is over when
# nothing is left of it: a grandchild would keep the chips. Each run has a name of its own, since what a startup script leaves
# behind keeps the former one.
RUNS=0
run_unit() {
  local kind=$1 name code; shift
  while :; do
    RUNS=$((RUNS + 1)); name=$kind-$$-$RUNS; LAST=tpu-watchdog-$name.service
    rm -f "$CODE"
    unit "$name" --wait -p TimeoutStopSec="$STOP_GRACE" -p LimitNOFILE=1048576 -p LimitMEMLOCK=infinity -p TasksMax=infinity \
      -p OOMPolicy=continue -p IgnoreSIGPIPE=no "$@" 9>&-
    code=$?
    # systemd-run may end before its unit, when systemd is updated.
    while systemctl is-active --quiet "tpu-watchdog-$name.service"; do sleep "$PAUSE"; done
    [[ ! -e $CODE ]] || break
    # Nothing has begun, so nothing has failed.
    sleep "$PAUSE"
  done
  # systemd-run has no codes of signals; without one the program was ended from outside.
  [[ -s $CODE ]] && return "$(<"$CODE")"
  return $((code == 0 ? 143 : code))
}
# end_earlier: what a supervisor that was killed left running is ended whole, a startup script's finished services are not.
end_earlier() {
  local name
  for name in $(systemctl list-units --plain --no-legend --state=active,activating,deactivating 'tpu-watchdog-job-*' 'tpu-watchdog-setup-*' | cut -d' ' -f1); do
    systemctl kill --signal=TERM "$name"; systemctl stop "$name"; systemctl kill --signal=KILL "$name" 2>/dev/null
  done
}
end_earlier
# A startup script may leave services behind, as it may without us.
user_script() { run_unit setup -p KillMode=process -- /bin/bash "$WRAPPER" "$STATE/user-script"; }
# folder: RUN_IN as the job's shell reads it; ~ and $HOME are the home of the user that runs it.
folder() {
  # shellcheck disable=SC2016,SC2088 # Literally, as the config has them.
  case $RUN_IN in
    '' | '~' | '$HOME') echo '"$HOME"' ;;
    '~/'*) printf '"$HOME"/%q' "${RUN_IN:2}" ;;
    '$HOME/'*) printf '"$HOME"/%q' "${RUN_IN:6}" ;;
    *) printf '%q' "$RUN_IN" ;;
  esac
}
# free_chips: lock files that killed processes left behind keep every later one from the chips.
free_chips() {
  local lock
  for lock in /tmp/libtpu_lockfile /tmp/libtpu_lock_*; do
    [[ -e $lock ]] || continue
    [[ -n $(find /proc/[0-9]*/fd -lname "$lock" -print -quit 2>/dev/null) ]] || rm -f "$lock"
  done
}
# as_host CURL-OPTIONS…: a call with the token of the host's own account, which is among no arguments.
as_host() {
  local token
  token=$(curl -sf --max-time 10 -H 'Metadata-Flavor: Google' "$MD/instance/service-accounts/default/token" | sed -n 's/.*"access_token": *"\([^"]*\)".*/\1/p')
  curl -sf --max-time 20 -H @<(printf 'Authorization: Bearer %s\n' "$token") "$@"
}
# fetch_secrets: before each run, into memory, for the job's user alone. Fails with the name of one that can't be read.
SECRET_FILE=$MEMORY.secrets
SECRET_VALUES=() AS=()
fetch_secrets() {
  local name place data value
  rm -f "$SECRET_FILE"; (umask 077; : >"$SECRET_FILE"); chown "$RUN_AS" "$SECRET_FILE"
  SECRET_VALUES=()
  while read -r name place; do
    [[ -n $name ]] || continue
    data=$(as_host "$SECRET_MANAGER/v1/$place:access" | tr -d '\n' | sed -n 's/.*"data": *"\([^"]*\)".*/\1/p')
    [[ -n $data ]] || { UNREAD=$name; return 1; }
    value=$(base64 -d <<<"$data")
    SECRET_VALUES+=("$value"); printf 'export %s=%q\n' "$name" "$value" >>"$SECRET_FILE"
  done <<<"$SECRETS"
}
# values: of secrets and of env_file, as the job gets them: a line each, the longest first. Fails where env_file can't be read.
values() {
  # shellcheck disable=SC2016 # It is the other shell that expands them.
  local pair value whole='' all=("${SECRET_VALUES[@]}") shell='[[ -r $1 ]] && set -a && { . "$1" >/dev/null 2>&1; env -0; printf "=whole\0"; }'
  # Only as the job's user: it is a program in a file that may be that user's.
  if [[ -n $ENV_FILE && -n ${RUN_HOME-} ]]; then
    while IFS= read -r -d '' pair; do
      [[ $pair != =whole ]] || whole=1
      [[ $pair == @(PWD|OLDPWD|SHLVL|_|PATH|HOME|USER|LANG|)=* ]] || all+=("${pair#*=}")
    done < <(timeout 5 "${AS[@]}" env -i bash -c "$shell" - "$ENV_FILE" 2>/dev/null)
    [[ -n $whole ]] || return 1
  fi
  printf '%s\n' "${all[@]}" | while IFS= read -r value; do ((${#value} < 8)) || printf '%d\t%s\n' ${#value} "$value"; done | sort -rn | cut -f 2-
}
# masked: the text without them, and no text where they are not known.
masked() {
  local LC_ALL=C text known value; text=$(cat)
  known=$(values) || { echo "the lines are not kept: $ENV_FILE can't be read, so its values can't be masked"; return; }
  while IFS= read -r value; do [[ -z $value ]] || text=${text//"$value"/***}; done <<<"$known"
  printf '%s\n' "$text"
}
# shell_of FILE TEXT: the program that runs this text as the job's user, into SHELL_OF. What it is told is not among the arguments that
# ps shows, and systemd expands nothing in it. A text that was written in part must not run.
shell_of() {
  rm -f "$1"
  (umask 077; printf '%s\n' ". $SECRET_FILE" "${ENV_FILE:+set -a; . $(printf %q "$ENV_FILE") || exit 1; set +a}" "cd $(folder) || exit 1" "$JOB_ENV" "$2" >"$1") || return 1
  chown "$RUN_AS" "$1"
  SHELL_OF=(env HOME="$RUN_HOME" USER="$RUN_AS" LOGNAME="$RUN_AS" PYTHONUNBUFFERED=1 bash -l -o pipefail "$1")
  # Not runuser: a session of PAM could lower the limits again.
  [[ $RUN_AS == "$(id -un)" ]] || AS=(setpriv --reuid="$RUN_AS" --regid="$(id -g "$RUN_AS")" --init-groups --)
  SHELL_OF=("${AS[@]}" "${SHELL_OF[@]}")
}
prepare_job() {
  until fetch_secrets; do
    echo "setup_failed: the secret of $UNREAD can't be read with this host's account" >"$PHASE"; sleep "$PAUSE"
  done
  until shell_of "$MEMORY.job" "$COMMAND"; do
    echo "setup_failed: $MEMORY.job can't be written" >"$PHASE"; sleep "$PAUSE"
  done
}
job() {
  free_chips
  run_unit job -p KillMode=control-group -- /bin/bash "$WRAPPER" "${SHELL_OF[@]}"
}
# watch_notice: when the end of this machine is announced the job is asked for a checkpoint, once. A signal is ignored by all that does
# not handle it.
NOTICED=$MEMORY.notice
watch_notice() {
  local units=job name
  [[ -n $COMMAND ]] || units=setup
  while await preempted; [[ ${ANSWER##*$'\n'} != TRUE ]]; do sleep "$PAUSE"; done
  [[ ! -e $NOTICED ]] || return 0
  : >"$NOTICED"
  echo "the end of this machine is announced: $ON_NOTICE"
  [[ $(<"$PHASE") != running ]] || echo saving >"$PHASE"
  case $ON_NOTICE in
    SIG*)
      for name in $(systemctl list-units --plain --no-legend --state=active "tpu-watchdog-$units-*" | cut -d' ' -f1); do
        systemctl kill --signal="$ON_NOTICE" "$name"
      done ;;
    *) shell_of "$MEMORY.on-notice" "$ON_NOTICE" && unit "notice-$$" -- "${SHELL_OF[@]}" ;;
  esac
}
# tell_lines CODE: the last lines of a run that failed, before its exit is told: whole to LOGS, the end of them in a report. Neither may
# keep the job from starting again.
tell_lines() {
  local file=$MEMORY.last-lines bucket=${LOGS#gs://}
  timeout 10 journalctl --sync 2>/dev/null
  (umask 077; journalctl --quiet --no-pager -o cat -n 200 _SYSTEMD_UNIT="$LAST" 2>/dev/null | tr '\r' '\n' | cut -c -1000 | tail -n 200 |
    iconv -cf UTF-8 -t UTF-8 | masked >"$file")
  { printf '%s\n' "$BOOT $GENERATION $1 $$-$RUNS"; tail -n 30 "$file" | tail -c 2000 | iconv -cf UTF-8 -t UTF-8; } |
    curl -sf --max-time 10 -X PUT -H 'Metadata-Flavor: Google' --data-binary @- "$MD/instance/guest-attributes/tpu-watchdog/log" >/dev/null
  [[ -n $LOGS ]] || return 0
  as_host -X PUT -H 'Content-Type: text/plain' --data-binary "@$file" \
    "$STORAGE/$bucket/$SLOT/$GENERATION/worker-$WORKER.log" >/dev/null ||
    echo "the last lines could not be written to $LOGS"
}
# last_word: nothing follows that would repeat it.
last_word() { until report_exit "$@"; do sleep "$PAUSE"; done; }
report_exit() { report exit "$1" "$2$([[ $1 == 0 ]] || full_disk)"; }
uptime() { cut -d. -f1 /proc/uptime; }
# pause_of N: the pause before restart N, counted from 0.
pause_of() { local last=$((${#PAUSES[@]} - 1)); echo "${PAUSES[$(($1 < last ? $1 : last))]}"; }
# An end that comes because the machine goes down says nothing about the job: the next boot starts it again.
going_down() { [[ $(systemctl is-system-running 2>/dev/null) == stopping ]]; }
# Jobs that are told where to resume must not be told the checkpoint of the create for ever.
reads_order() { grep -qE 'CHECKPOINT_(PATH|STEP)' <<<"$COMMAND$JOB_ENV" || grep -qsE 'CHECKPOINT_(PATH|STEP)' "$STATE/user-script"; }

# Restarts are counted a generation over reboots of the same boot disk. So is a long run: from then on the order is stale.
DONE=$STATE/done.$GENERATION USED=$STATE/restarts.$GENERATION LONG_RUN=$STATE/long.$GENERATION FAILING=$MEMORY.failing
rm -f "$FAILING"
# not_stale CODE: before anything runs that could read the order. CODE is that of the last run, 75 after a reboot without a word.
not_stale() {
  [[ -e $LONG_RUN ]] || return 0
  if reads_order; then
    last_word "$1" "stale_order ran=$(cat "$LONG_RUN"): a run of this order lasted that long, and the order still names step ${ORDERED_STEP:-none}"
    rest stale_order
  fi
  export CHECKPOINT_PATH=stale:$ORDERED_PATH CHECKPOINT_STEP=stale:$ORDERED_STEP
}
if [[ -e $DONE ]]; then
  # This boot follows a success: the job is not run again, only reported.
  last_word 0 "$(cat "$DONE")"; rest 'done'
fi
# A host is set up once a boot: a newer order and a supervisor that was killed find it so. A script that reads the order runs for each.
SET_UP=$MEMORY.set-up
set_up_for() { grep -qsE 'CHECKPOINT_(PATH|STEP)|TPU_WATCHDOG_GENERATION' "$STATE/user-script" && echo "$BOOT $GENERATION" || echo "$BOOT"; }
is_set_up() { [[ -e $SET_UP && $(<"$SET_UP") == "$(set_up_for)" ]]; }
if [[ -n $COMMAND ]]; then
  if ! is_set_up && fetch_user_script; then
    not_stale 75
    tries=0
    until user_script; do
      code=$?
      going_down && rest stopping
      tell_lines "$code"
      pause=$(pause_of "$tries"); tries=$((tries + 1))
      echo "setup_failed code=$code tries=$tries: the startup script is tried again in $pause s" | tee "$PHASE"
      sleep "$pause"
    done
    set_up_for >"$SET_UP"
  fi
  RUN_AS=${RUN_AS:-$(id -un)}
  # The startup script, OS Login or the guest agent makes it.
  until RUN_HOME=$(getent passwd "$RUN_AS" | cut -d: -f6) && [[ -n $RUN_HOME ]]; do
    echo "setup_failed: the user $RUN_AS does not exist yet" >"$PHASE"; sleep "$PAUSE"
  done
  RUN=job
elif fetch_user_script; then
  RUN=user_script
else
  # No command and no script: what runs here is started by other means, so that there is no end to report.
  rest running
fi

# tell_exit: on several hosts the last word must be told, since the watchdog orders all of them on it.
tell_exit() { if ((WORKERS == 1)); then report_exit "$@"; else last_word "$@"; fi; }
# wait_for_order CODE: a host of several that starts by itself meets others that hang in the former run. A newer order ends and starts
# them all, within two polls; without a watchdog each starts by itself, as before.
wait_for_order() {
  ((WORKERS == 1)) && return
  echo "waiting for an order" >"$PHASE"
  tell_exit "$1" "waits: for a newer order, or starts by itself in $ALONE s"
  sleep "$ALONE"
  tell_exit "$1" "restarting by itself, since no order came in $ALONE s"
}
# A job that takes its host down counts as well, or it would do so for ever.
RUNNING=$STATE/running.$GENERATION
cut_off=''
[[ -e $RUNNING && $(<"$RUNNING") != "$BOOT" ]] && cut_off=1
if [[ -n $cut_off && ! -e $LONG_RUN ]]; then
  used=$(cat "$USED" 2>/dev/null); used=$((${used:-0} + 1)); keep "$USED" "$used"; rm -f "$RUNNING"
  report exit 75 "restarting: the host went down in a run, which counts as restart $used of $RESTARTS"
  if ((used > RESTARTS && WORKERS == 1)); then
    last_word 75 "final after $RESTARTS restarts: the host went down in a run"; rest failed
  fi
fi
if [[ -n $cut_off ]]; then not_stale 75; wait_for_order 75; fi
became_long() { keep "$LONG_RUN" "$1"; }
# mark_long: beside each run, so that a host that goes down without a word leaves the mark as well.
mark_long() {
  local sleeping; sleep "$LONG" & sleeping=$!
  trap 'kill $sleeping 2>/dev/null; exit' TERM
  wait "$sleeping"; became_long "$LONG"
  [[ -e $FAILING ]] && last_word "$(cat "$FAILING")" "recovered ran=$LONG" && rm -f "$FAILING"
}
ANSWER='' ETAG=0 FREE=0
if [[ -n $ON_NOTICE ]]; then watch_notice 9>&- & NOTICING=$!; fi
code=75
used=$(cat "$USED" 2>/dev/null); used=${used:-0}
while :; do
  not_stale "$code"
  # Time in which a secret can't be read is no running.
  [[ $RUN != job ]] || prepare_job
  keep "$RUNNING" "$BOOT"
  echo running >"$PHASE"; began=$(uptime)
  mark_long 9>&- & marking=$!
  $RUN; code=$?
  ran=$(($(uptime) - began))
  kill "$marking" 2>/dev/null; wait "$marking" 2>/dev/null
  going_down && rest stopping
  rm -f "$RUNNING"
  # Right after an announced end 0 means that the job has saved, not that its work is done.
  if [[ $code == 0 && -e $NOTICED ]] && (($(date +%s) - $(stat -c %Y "$NOTICED") < 300)); then code=143; fi
  if [[ $code == 0 ]]; then
    # A startup script that ends well has set things up; only a command can finish.
    [[ -n $COMMAND ]] || rest idle
    step=$(last_step)
    if ((ran >= LONG)) || is_new "$step"; then
      text="done ran=$ran step=${step:-none}"; keep "$DONE" "$text"; last_word 0 "$text"; rest 'done'
    fi
    # Not kept on disk: the next boot starts it again.
    last_word 0 "done ran=$ran step=none"; rest ended_early
  fi
  tell_lines "$code"
  ((ran >= LONG)) && became_long "$ran"
  [[ -e $LONG_RUN ]] && reads_order && continue
  ((ran < REFILL)) || used=0
  # After an announced end three say nothing about the job.
  if [[ -e $NOTICED ]] && ((FREE < 3)); then used=0 FREE=$((FREE + 1)); fi
  # Each try has a number of its own: an answered report is known by it.
  keep "$USED" $((used + 1))
  wait_for_order "$code"
  if ((used < RESTARTS)); then
    pause=$(pause_of "$used")
    tell_exit "$code" "restarting $((used + 1)) of $RESTARTS in $pause s"
  else
    echo "$code" >"$FAILING"
    # One host of several that gives up keeps the others from ever starting; how many there are may not have been answered.
    ((WORKERS != 1)) || { last_word "$code" "final after $RESTARTS restarts"; rest failed; }
    pause=${PAUSES[-1]}
    tell_exit "$code" "failing after $used restarts: tried again every $pause s"
  fi
  used=$((used + 1))
  echo restarting >"$PHASE"; sleep "$pause"
done
