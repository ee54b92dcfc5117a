
# The chips of this host: their number, and processes that keep them from the job.
CHIPS=${TPU_WATCHDOG_CHIPS:-/dev/accel[0-9]* /dev/vfio/[0-9]*}
chip_files() { local chip; for chip in $CHIPS; do [[ ! -e $chip ]] || echo "$chip"; done; }
chip_count() { chip_files | wc -l; }
# free_chips: lock files that killed processes left behind keep every later one from the chips.
free_chips() {
  local lock
  for lock in /tmp/libtpu_lockfile /tmp/libtpu_lock_*; do
    [[ -e $lock ]] || continue
    [[ -n $(find /proc/[0-9]*/fd -lname "$lock" -print -quit 2>/dev/null) ]] || rm -f "$lock"
  done
}
# holder: the process that has a chip open, if any.
holder() {
  local chip
  while read -r chip; do find /proc/[0-9]*/fd -lname "$chip" -print -quit 2>/dev/null; done < <(chip_files) | head -n 1 | cut -d/ -f3
}
# version_1: the process of a supervisor of the first version, if any: it has its lock open.
version_1() { find /proc/[0-9]*/fd -lname "$STATE/lock" -print -quit 2>/dev/null | cut -d/ -f3; }
# A process that has chips open may be harmless, as an agent of Google's: only when a run failed for it is it waited for.
CHIPS_HELD=$MEMORY.chips-held
note_held_chips() { ! grep -qiP "$CHIPS_BUSY" "$MEMORY.last-lines" || : >"$CHIPS_HELD"; }
# await_chips: the holder is told, and never ended; the rest of an earlier run was ended before.
await_chips() {
  local pid word
  while [[ -e $CHIPS_HELD ]] && pid=$(holder) && [[ -n $pid ]]; do
    word=chips_busy
    # A startup script may have left it on purpose.
    if grep -qs 'tpu-watchdog-job' "/proc/$pid/cgroup"; then word='chips_stuck: left by an earlier run and not to be ended:'; fi
    echo "${word/%busy/busy:} process $pid of user $(stat -c %U "/proc/$pid" 2>/dev/null) has a chip open: $(tr '\0' '\n' <"/proc/$pid/cmdline" 2>/dev/null | paste -sd ' ' | masked | cut -c -80)" >"$PHASE"
    sleep "$PAUSE"
  done
  rm -f "$CHIPS_HELD"
}
