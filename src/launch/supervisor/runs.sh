
# Runs: each in a unit of its own, ended whole.
# The code of the last run.
CODE=$MEMORY.code
export TPU_WATCHDOG_CODE=$CODE
# The shell around a program, which follows `all` where its whole unit is signalled, and `main` elsewhere: it tells that it began, and
# 139 for a program that a signal ended. A pipe and not the journal's socket, since scripts open /dev/stderr; it outlives SIGTERM for the
# last lines.
WRAPPER=$MEMORY.wrapper
# ignore_notice: the signal of a notice, by all that does not handle it.
ignore_notice() { [[ $ON_NOTICE != SIG* ]] || echo "trap '' ${ON_NOTICE#SIG}"; }
write_wrapper() {
  { ignore_notice; cat <<'WRAPPER'; } >"$WRAPPER"
# Its unit was started once more, by a person or an update of the machine: the supervisor takes it for an end, and begins a run of its own.
[[ ! -e $TPU_WATCHDOG_CODE ]] || { echo 143 >"$TPU_WATCHDOG_CODE"; exit 143; }
# left: in LEFT, the processes of this control group that the command has started and left. A child of this shell is none of them.
left() {
  local own='' group pid of key value name; LEFT=''
  read -r -d '' own <"/proc/$$/cgroup"
  [[ $own == *tpu-watchdog-job-* ]] || return
  for pid in /proc/[0-9]*; do
    [[ $pid != "/proc/$$" ]] || continue
    group='' of='' name=''
    { read -r -d '' group <"$pid/cgroup"; } 2>/dev/null
    [[ $group == "$own" ]] || continue
    { while read -r key value; do [[ $key != PPid: ]] || of=$value; done <"$pid/status"; read -r name <"$pid/comm"; } 2>/dev/null
    if [[ $of != "$$" && -n $name ]]; then LEFT+=" $name"; fi
  done
}
: >"$TPU_WATCHDOG_CODE"
# Ignored before the fork: the lines of a program that ends at once would be lost with it.
trap "" TERM
exec 3> >(exec cat)
# It outlives the signal where that reaches its program as well: a unit without its main process is sent it once more. A startup script
# is not reached.
stopped=''
if [[ $1 == all ]]; then trap 'stopped=1' TERM; else trap - TERM; fi
shift
"$@" >&3 2>&1 3>&-
code=$?
[[ -z $stopped || $code != 0 ]] || code=143
exec 3>&-
if [[ $code == 0 ]]; then
  # Helpers that end with the command are given a moment.
  for _ in {1..50}; do left; [[ -n $LEFT ]] || break; sleep 0.2; done
  [[ -z $LEFT ]] || echo "${LEFT:1:100}" >"$TPU_WATCHDOG_CODE.left"
fi
echo "$code" >"$TPU_WATCHDOG_CODE"; exit "$code"
WRAPPER
}
# run_unit NAME OPTIONS… -- PROGRAM…: runs it to its end and returns its code. A program with KillMode=control-group is over when
# nothing is left of it: a grandchild would keep the chips. Each run has a name of its own, since what a startup script leaves
# behind keeps the former one. No line is suppressed for its rate, or the last ones would be (an interval of 0 would not reach journald);
# the journal's size is bounded all the same. Their level keeps them out of a syslog (bound_syslog).
# When the machine goes down it ends before the network, docker and what is mounted, which its last save needs.
RUNS=0
UNBEGUN='setup_failed: systemd does not start the unit of the run'
run_unit() {
  local kind=$1 name code mount tries=0 phase needs='network.target nss-lookup.target remote-fs.target docker.service'; phase=$(<"$PHASE"); shift
  if [[ $CHECKPOINT_BASE == /* ]]; then
    mount=$(findmnt -no TARGET -T "$CHECKPOINT_BASE" 2>/dev/null | tail -n 1)
    mount=$(systemd-escape --path --suffix=mount "${mount:-/}") needs+=" ${mount//\\/\\\\}"
  fi
  while :; do
    RUNS=$((RUNS + 1)); name=$kind-$$-$RUNS; LAST=tpu-watchdog-$name.service
    rm -f "$CODE" "$CODE.left"
    unit "$name" --wait -p TimeoutStopSec="$STOP_GRACE" -p LimitNOFILE=1048576 -p LimitMEMLOCK=infinity -p TasksMax=infinity \
      -p OOMPolicy=continue -p IgnoreSIGPIPE=no -p After="$needs" -p LogRateLimitIntervalSec=1 -p LogRateLimitBurst=1000000000 -p SyslogLevel=debug "$@" 9>&-
    code=$?
    # systemd-run may end before its unit, when systemd is updated; it may not answer then either.
    until [[ $(systemctl is-active "tpu-watchdog-$name.service" 2>/dev/null) == @(inactive|failed|unknown) ]]; do sleep "$PAUSE"; done
    [[ ! -e $CODE ]] || break
    # Nothing has begun, so nothing has failed.
    tries=$((tries + 1))
    if ((tries == 3)); then
      echo "$UNBEGUN: systemd-run ended with code $code$(full_disk)" | tee "$PHASE"
      # Until one does begin.
      { until [[ -e $CODE ]]; do sleep "$PAUSE"; done; [[ $(<"$PHASE") != "$UNBEGUN"* ]] || echo "$phase" >"$PHASE"; } 9>&- &
    fi
    sleep "$PAUSE"
  done
  # systemd-run has no codes of signals; without one the program was ended from outside.
  [[ -s $CODE ]] && return "$(<"$CODE")"
  return $((code == 0 ? 143 : code))
}
# end_earlier: what a supervisor that was killed left running is ended whole, a startup script's finished services are not.
end_earlier() {
  local name names
  # No answer does not mean that nothing runs.
  until names=$(systemctl list-units --plain --no-legend --state=active,activating,deactivating 'tpu-watchdog-job-*' 'tpu-watchdog-setup-*'); do sleep "$PAUSE"; done
  while read -r name _ <&8; do
    [[ -n $name ]] || continue
    # A stop signals a job by itself.
    [[ $name != tpu-watchdog-setup-* ]] || systemctl kill --signal=TERM "$name"
    systemctl stop "$name"; systemctl kill --signal=KILL "$name" 2>/dev/null
  done 8<<<"$names"
  end_container
}
job() {
  end_container; free_chips
  if [[ -n $IMAGE ]]; then
    write_container
    run_unit job -p KillMode=mixed -- /bin/bash "$MEMORY.container"
    set -- $?; end_container; return "$1"
  fi
  run_unit job -p KillMode=control-group -- /bin/bash "$WRAPPER" all "${SHELL_OF[@]}"
}
# notice: the end of this machine is announced, so that the job is asked for a checkpoint. A signal is ignored by all that does not
# handle it.
NOTICED=$MEMORY.notice
# noticed SECONDS: within so many.
noticed() { [[ -e $NOTICED ]] && (($(date +%s) - $(stat -c %Y "$NOTICED") < $1)); }
notice() {
  local units=job name
  [[ -n $COMMAND ]] || units=setup
  : >"$NOTICED"
  echo "the end of this machine is announced${ON_NOTICE:+: $ON_NOTICE}"
  [[ -n $ON_NOTICE ]] || return 0
  [[ $(<"$PHASE") != running ]] || echo saving >"$PHASE"
  case $ON_NOTICE in
    SIG*)
      if [[ -n $IMAGE ]]; then docker exec "$CONTAINER" /bin/bash -c "kill -${ON_NOTICE#SIG} -1" >/dev/null 2>&1; return; fi
      for name in $(systemctl list-units --plain --no-legend --state=active "tpu-watchdog-$units-*" | cut -d' ' -f1); do
        systemctl kill --signal="$ON_NOTICE" "$name"
      done ;;
    *) shell_of "$MEMORY.on-notice" "$ON_NOTICE" && unit "notice-$$" -- "${SHELL_OF[@]}" ;;
  esac
}
# watch_notice: by the machine itself, once a boot.
watch_notice() {
  while await preempted; [[ ${ANSWER##*$'\n'} != TRUE ]]; do sleep "$PAUSE"; done
  [[ -e $MEMORY.preempted ]] || { : >"$MEMORY.preempted"; notice; }
}
# time_of KEY: seconds since 1970, in the notice that is in text.
time_of() { [[ $text =~ [{,]$1:([0-9tz:.+-]+) ]] && date -d "${BASH_REMATCH[1]^^}" +%s 2>/dev/null; }
# watch_maintenance: a maintenance of the machine that is going on, or begins within 15 min; each once a boot. Notices come days before, and
# the keys are written in more than one way.
watch_maintenance() {
  local text start end now
  while :; do
    await upcoming-maintenance 'recursive=true&alt=json'
    text=$(tr -d ' _"\n' <<<"$ANSWER"); text=${text,,} now=$(date +%s)
    start=$(time_of windowstarttime) end=$(time_of windowendtime)
    # A notice may stay when its maintenance is over.
    if [[ -n $start ]] && ((now < ${end:-now + 1})) && { [[ $text == *maintenancestatus:ongoing* ]] || ((start - now <= 900)); } &&
      [[ $(cat "$MEMORY.maintenance" 2>/dev/null) != "$start" ]]; then
      echo "$start" >"$MEMORY.maintenance"; notice
    elif [[ -n $ANSWER && -z $start ]]; then
      calm
    fi
    sleep "$PAUSE"
  done
}
# calm: what was announced is over.
calm() { [[ -e $ANNOUNCED || -e $MEMORY.preempted || $(<"$PHASE") != saving ]] || echo running >"$PHASE"; }
# watch_announced: by the run order, each time that it says so after it did not.
watch_announced() {
  local told=''
  while sleep "$PAUSE"; do
    if [[ ! -e $ANNOUNCED ]]; then [[ -z $told ]] || calm; told=''; elif [[ -z $told ]]; then told=1; notice; fi
  done
}
uptime() { cut -d. -f1 /proc/uptime; }
# pause_of N: the pause before restart N, counted from 0.
pause_of() { local last=$((${#PAUSES[@]} - 1)); echo "${PAUSES[$(($1 < last ? $1 : last))]}"; }
# An end that comes because the machine goes down says nothing about the job: the next boot starts it again.
going_down() { [[ $(systemctl is-system-running 2>/dev/null) == stopping ]]; }
# Jobs that are told where to resume must not be told the checkpoint of the create for ever.
reads_order() {
  [[ $RESUME != watchdog ]] || return 0
  [[ $RESUME != framework ]] || return 1
  grep -qE 'CHECKPOINT_(PATH|STEP)' <<<"$COMMAND$JOB_ENV" || grep -qsE 'CHECKPOINT_(PATH|STEP)' "$STATE"/user-script*
}
# not_stale CODE: before anything runs that could read the order. CODE is that of the last run, 75 after a reboot without a word.
not_stale() {
  [[ -e $LONG_RUN ]] || return 0
  if reads_order; then
    last_word "$1" "stale_order ran=$(cat "$LONG_RUN"): a run of this order was long or made new steps, and the order still names step ${ORDERED_STEP:-none}"
    rest stale_order
  fi
  export CHECKPOINT_PATH=stale:$ORDERED_PATH CHECKPOINT_STEP=stale:$ORDERED_STEP
}
# wait_for_order CODE: the others of several hosts may hang in the former run. A newer order ends and starts them all, within two polls;
# without a watchdog they start once all of them wait.
wait_for_order() {
  ((WORKERS == 1)) && return
  echo "waiting for an order" >"$PHASE"
  tell_exit "$1" "waits: for a newer order, or $ALONE s$([[ -z $COMMAND ]] || echo ", then for the other hosts")$(! noticed 900 || echo '; after a notice')${ran:+; ran=$ran}"
  sleep "$ALONE"
  held_back
}
# held_back: while the order says wait, nothing starts.
held_back() {
  [[ ! -e $WAITS ]] || echo "the run order says wait: nothing starts until it no longer does"
  while [[ -e $WAITS ]]; do echo "waiting: the run order says wait" >"$PHASE"; sleep "$PAUSE"; done
}
# read_used: how many restarts of this generation are used since the best step, and the code of the last ends with their number.
read_used() { used=0 last_code='' same=0 best=''; [[ ! -s $USED ]] || read -r used last_code same best <"$USED"; }
# came_further: its last run made a step that no run of this generation had made.
came_further() {
  local step; step=$(last_step)
  is_new "$step" && { [[ -z $best ]] || ((10#$step > 10#$best)); } && best=$step
}
# count_code CODE RAN STEP-BEFORE: in WHY, why a run would end the same way once more: memory ran out, or the third end with one code that is
# not a transient one. A run that came further, or was long, says nothing of the kind.
count_code() {
  local step; step=$(last_step); WHY=''
  if (($2 >= LONG)) || [[ -n $step && $step != "$3" ]]; then same=0 last_code=''; return; fi
  if [[ $1 == "$last_code" ]]; then same=$((same + 1)); else same=1 last_code=$1; fi
  if grep -qiP "$OUT_OF_MEMORY" "$MEMORY.last-lines"; then
    WHY='memory ran out'
  elif ((same >= 3)) && [[ " $TRANSIENT " != *" $1 "* ]]; then
    WHY="code $1 $same times in a row without a new step"
  fi
}
became_long() { keep "$LONG_RUN" "$1"; }
# mark_long: beside each run, so that a host that goes down without a word leaves the mark as well.
mark_long() {
  local sleeping; sleep "$LONG" & sleeping=$!
  trap 'kill $sleeping 2>/dev/null; exit' TERM
  wait "$sleeping"; became_long "$LONG"; keep "$RUNNING" "$BOOT long"
  [[ -e $FAILING ]] && last_word "$(cut -d' ' -f1 "$FAILING")" "recovered ran=$LONG" && rm -f "$FAILING"
}
