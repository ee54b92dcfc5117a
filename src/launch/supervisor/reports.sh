
# Reports, and changes of the metadata that are waited for.
# last_step: the last line, where it is a whole number, or one whose fraction is zero.
last_step() {
  local line; line=$(tail -n 1 "$PROGRESS" | tr -d '\0')
  if [[ $line =~ ^[[:space:]]*([0-9]{1,18})(\.0*)?[[:space:]]*$ ]]; then echo "${BASH_REMATCH[1]}"; fi
}
# is_new STEP: beyond the checkpoint that this generation began with.
is_new() { [[ -n $1 ]] && { [[ -z $ORDERED_STEP ]] || ((10#$1 > 10#$ORDERED_STEP)); }; }
beat() {
  local count=0 step='' last='' phase=setup said told=''
  while :; do
    count=$((count + 1))
    # Empty while it is being written.
    said=$(cat "$PHASE"); phase=${said:-$phase}
    boot_beacon; report heartbeat "$count" "$phase$(full_disk)"
    [[ $phase == "$told" ]] || { report phase "$(stat -c %Y "$PHASE")" "$phase" && told=$phase; }
    step=$(last_step)
    [[ -n $step && $step != "$last" ]] && report step "$step" && last=$step
    sleep "$BEAT"
  done
}
# await KEY QUERY: the value of instance/KEY into ANSWER, when it is another one than at the last call, or after 5 min.
ETAG=0
await() {
  ANSWER=$(curl -sfi --max-time 330 -H 'Metadata-Flavor: Google' "$MD/instance/$1?wait_for_change=true&timeout_sec=300&last_etag=$ETAG${2:+&$2}" | tr -d '\r')
  ETAG=$(sed -n 's/^[Ee][Tt][Aa][Gg]: *//p' <<<"$ANSWER"); ETAG=${ETAG:-0}
}
# reboot_ordered ORDER: this boot is to end. Nothing of the job can run in it.
reboot_ordered() { [[ $(sed -n 's/.*"reboot":\[\([^]]*\)\].*/\1/p' <<<"$1") == *"\"$BOOT\""* ]]; }
# watch_order: the flags of this generation are followed, a newer one ends it. systemd starts this supervisor again, which ends what is left of the run and reads the
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
    if reboot_ordered "$ANSWER" && [[ $(<"$PHASE") != @(running|saving|exited|idle)* ]]; then echo 'the run order tells this host to reboot'; systemctl reboot; fi
    if [[ $newer == "$GENERATION" ]]; then flags "$ANSWER"; boot_beacon; elif [[ -z $newer ]] && is_released; then flags ''; fi
    sleep "$PAUSE"
  done
}
# rest PHASE: nothing more is started in this boot; the heartbeat goes on.
rest() { echo "$1" >"$PHASE"; wait "$BEATING"; exit 0; }
# last_word: nothing follows that would repeat it. A TPU that was given back may have no reports.
last_word() { until report_exit "$@" || is_released; do sleep "$PAUSE"; done; }
# is_released: the watchdog has given this TPU back, and orders nothing any longer.
is_released() { [[ $(curl -s --max-time 10 -o /dev/null -w '%{http_code}' -H 'Metadata-Flavor: Google' "$MD/instance/attributes/tpu-watchdog-run") == 404 ]]; }
report_exit() { report exit "$1" "$2$([[ $1 == 0 ]] || full_disk)"; }
# tell_exit: on several hosts it must be told, since the watchdog orders all of them on it; where no report can be written, no order
# comes either.
tell_exit() {
  local since; since=$(uptime)
  until report_exit "$@" || ((WORKERS == 1)) || is_released || (($(uptime) - since >= ALONE)); do sleep "$PAUSE"; done
}
# killed_for_memory: a program that the kernel ends writes nothing itself. One of another unit is none of the job's.
killed_for_memory() {
  local lines; lines=$(journalctl --quiet --no-pager -o cat -k --since "@$(($(date +%s) - 60))" 2>/dev/null)
  if [[ $lines == *task_memcg=*tpu-watchdog-* || -n $IMAGE ]]; then grep -iP "$OUT_OF_MEMORY" <<<"$lines" | sed 's/^/kernel: /'; fi
}
# tell_lines CODE: the last lines of a run that failed, before its exit is told: whole to LOGS, the end of them in a report. Neither may
# keep the job from starting again.
tell_lines() {
  local file=$MEMORY.last-lines bucket=${LOGS#gs://}
  timeout 10 journalctl --sync 2>/dev/null
  (umask 077; { journalctl --quiet --no-pager -b -o cat -n 200 _SYSTEMD_UNIT="$LAST" 2>/dev/null; killed_for_memory; } | tr '\r' '\n' |
    cut -c -4000 | tail -n 200 | iconv -cf UTF-8 -t UTF-8 | masked | cut -c -1000 >"$file")
  { printf '%s\n' "$BOOT $GENERATION.$(tried) $1 $$-$RUNS"; tail -n 30 "$file" | tail -c 2000 | iconv -cf UTF-8 -t UTF-8; } |
    curl -sf --max-time 10 -X PUT -H 'Metadata-Flavor: Google' --data-binary @- "$MD/instance/guest-attributes/tpu-watchdog/log" >/dev/null
  [[ -n $LOGS ]] || return 0
  as_host -X PUT -H 'Content-Type: text/plain' --data-binary "@$file" \
    "$STORAGE/$bucket/$SLOT/$GENERATION.$(tried)/worker-$WORKER.log" >/dev/null ||
    echo "the last lines could not be written to $LOGS"
}
