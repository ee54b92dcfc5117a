
# The order of things in a boot.
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

# What a killed supervisor has left may hold it for a while: systemd starts this one again.
exec 9>"$MEMORY.lock"; flock -n 9 || exit 1
until order; do sleep "$PAUSE"; done
[[ -s $RESERVE ]] || head -c 65536 /dev/zero >"$RESERVE" 2>/dev/null
PROGRESS=$STATE/progress.$GENERATION
: >>"$PROGRESS"; chmod 666 "$PROGRESS"
PHASE=$MEMORY.phase; echo setup >"$PHASE"
bound_syslog
ORDERED_PATH=$CHECKPOINT_PATH ORDERED_STEP=$CHECKPOINT_STEP
# Restarts are counted a generation over reboots of the same boot disk. So is a long run: from then on the order is stale.
DONE=$STATE/done.$GENERATION USED=$STATE/restarts.$GENERATION LONG_RUN=$STATE/long.$GENERATION FAILING=$MEMORY.failing
RUNNING=$STATE/running.$GENERATION
rm -f "$FAILING"

beat 9>&- & BEATING=$!
watch_order 9>&- & WATCHING=$!
# A subshell that is ended right after its fork still runs this trap: the heartbeat must outlive it.
NOTICING=''
trap '[[ $BASHPID == $$ ]] && kill $BEATING $WATCHING $NOTICING 2>/dev/null' EXIT

# A host without an index must not pass for worker 0: two of them would keep the slice from starting.
rm -f "$MEMORY.index"
until WORKER=$(attribute agent-worker-number) && [[ $WORKER =~ ^[0-9]+$ ]]; do
  echo "setup_failed: this host has no agent-worker-number yet" >"$PHASE"; sleep "$PAUSE"
done
until find_slice; do
  echo "setup_failed: tpu-env names $SLICES slices${ORDERED_SLICES:+ of $ORDERED_SLICES}, or not which one this is" >"$PHASE"; sleep "$PAUSE"
done
HOST=$WORKER BEGAN=$(uptime)
# In a multislice it follows from the number of hosts.
((SLICES > 1)) || { echo "$WORKER" >"$MEMORY.index"; boot_beacon; }
until find_hosts; do
  echo "setup_failed: the metadata lacks the owner, or names $WORKERS hosts, and this is worker $WORKER" >"$PHASE"; sleep "$PAUSE"
done
echo "$WORKER" >"$MEMORY.index"; boot_beacon
echo setup >"$PHASE"
((WORKERS <= 1 || WORKER != 0)) || listen
# A job that writes this file says that its work is done. A folder of its own, so that the job's user may make it.
WORK=$MEMORY.work
export TPU_WATCHDOG_SLOT=$SLOT TPU_WATCHDOG_WORKER=$WORKER TPU_WATCHDOG_WORKERS=$WORKERS TPU_WATCHDOG_PROGRESS=$PROGRESS TPU_WATCHDOG_DONE=$WORK/done
# Where a node was given this script while it ran: the job of the first version is in no unit, and goes on.
while pid=$(version_1) && [[ -n $pid ]]; do
  echo "chips_busy: process $pid of user $(stat -c %U "/proc/$pid" 2>/dev/null) is supervisor 1, whose job runs on: a reboot ends both" >"$PHASE"
  sleep "$PAUSE"
done
echo setup >"$PHASE"
end_earlier; write_wrapper
if [[ -e $DONE ]]; then
  # This boot follows a success: the job is not run again, only reported.
  last_word 0 "$(cat "$DONE")"; rest 'done'
fi
if [[ -n $COMMAND ]]; then
  if ! is_set_up && fetch_user_scripts; then
    not_stale 75
    set_up
  fi
  find_user
  RUN=job
elif fetch_user_scripts; then
  RUN=user_scripts
else
  # No command and no script: what runs here is started by other means, so that there is no end to report.
  rest running
fi

# A job that takes its host down counts as well, or it would do so for ever.
cut_off='' ran_in='' long=''
[[ ! -e $RUNNING ]] || read -r ran_in long <"$RUNNING"
[[ -n $ran_in && $ran_in != "$BOOT" ]] && cut_off=1
if [[ -n $cut_off && -z $long ]]; then
  read_used; if came_further; then used=0; fi
  used=$((used + 1)); keep "$USED" "$used ${last_code:--} $same $best"; rm -f "$RUNNING"
  report exit 75 "restarting: the host went down in a run, which counts as restart $used of $RESTARTS"
  if ((used > RESTARTS && WORKERS == 1)); then
    last_word 75 "final after $RESTARTS restarts: the host went down in a run"; rest failed
  fi
fi
# The others may still be in a run that ended here with its supervisor.
if [[ -n $cut_off || -e $RUNNING ]]; then not_stale 75; wait_for_order 75; fi
ANSWER='' ETAG=0 FREE=0
watch_notice 9>&- & NOTICING=$!
watch_announced 9>&- & NOTICING+=" $!"
watch_maintenance 9>&- & NOTICING+=" $!"
code=75
read_used
while :; do
  held_back
  not_stale "$code"
  # Time in which a secret can't be read is no running.
  [[ $RUN != job ]] || prepare_job
  await_chips
  begin
  # What has failed so often is told until it runs on.
  if [[ -e $FAILING ]]; then read -r failed text <"$FAILING"; report_exit "$failed" "$text"; fi
  rm -rf "$WORK"; mkdir "$WORK" && chown "${RUN_AS:-$(id -un)}" "$WORK"
  keep "$RUNNING" "$BOOT"
  echo running >"$PHASE"; began=$(uptime); before=$(last_step)
  mark_long 9>&- & marking=$!
  $RUN; code=$?
  ran=$(($(uptime) - began)) said=$(<"$PHASE")
  echo exited >"$PHASE"
  kill "$marking" 2>/dev/null; wait "$marking" 2>/dev/null
  going_down && rest stopping
  rm -f "$RUNNING"
  # After an announced end 0 means that the job has saved, however long that took, and not that its work is done.
  if [[ $said == saving ]]; then asked=3600; else asked=900; fi
  if [[ $code == 0 && -n $COMMAND && ! -e $TPU_WATCHDOG_DONE ]] && { [[ -e $ANNOUNCED ]] || noticed "$asked"; }; then code=143; fi
  if [[ $code == 0 ]]; then
    # A startup script that ends well has set things up; only a command can finish.
    [[ -n $COMMAND ]] || rest idle
    step=$(last_step); text="done ran=$ran step=${step:-none}"
    [[ ! -e $TPU_WATCHDOG_DONE ]] || text+='; it wrote TPU_WATCHDOG_DONE'
    # A trainer that was left in the background is ended with its run, long before its work is done.
    left=$(cat "$CODE.left" "$WORK/left" 2>/dev/null | tr -dc '[:alnum:] ._-' | cut -c -100); text+=${left:+; left running: $left}
    if [[ -e $TPU_WATCHDOG_DONE ]] || { [[ -z $left ]] && { ((ran >= LONG)) || is_new "$step"; }; }; then
      keep "$DONE" "$text"; last_word 0 "$text"; rest 'done'
    fi
    # Not kept on disk: the next boot starts it again.
    last_word 0 "$text"; rest ended_early
  fi
  tell_lines "$code"; note_held_chips
  further=''; ! came_further || further=1
  # A job that is told where to begin would do once more what this run did.
  if ((ran >= LONG)) || { [[ -n $further ]] && reads_order; }; then became_long "$ran"; fi
  [[ -e $LONG_RUN ]] && reads_order && continue
  if [[ -n $further ]] || ((ran >= REFILL)); then used=0 last_code=''; fi
  count_code "$code" "$ran" "$before"
  # After an announced end three say nothing about the job.
  if [[ -e $NOTICED ]] && ((FREE < 3)); then used=0 same=0 WHY='' FREE=$((FREE + 1)); fi
  # Each try has a number of its own: an answered report is known by it.
  keep "$USED" "$((used + 1)) ${last_code:--} $same $best"
  wait_for_order "$code"
  # Of several hosts it is the watchdog that judges.
  if [[ -n $WHY ]] && ((WORKERS == 1)); then last_word "$code" "final after $used restarts: $WHY"; rest failed; fi
  if ((used < RESTARTS)); then
    pause=$(pause_of "$used")
    tell_exit "$code" "restarting $((used + 1)) of $RESTARTS in $pause s"
  else
    # One host of several that gives up keeps the others from ever starting; how many there are may not have been answered.
    ((WORKERS != 1)) || { last_word "$code" "final after $RESTARTS restarts"; rest failed; }
    pause=${PAUSES[-1]}; text="failing after $used restarts: tried again every $pause s"
    echo "$code $text" >"$FAILING"
    tell_exit "$code" "$text"
  fi
  used=$((used + 1))
  echo restarting >"$PHASE"; sleep "$pause"
done
