#! /bin/bash
# tpu-watchdog-supervisor 4.0
# Written by tpu-watchdog as this node's startup script; your own stands verbatim in the metadata tpu-watchdog-user-script, its URL in
# tpu-watchdog-user-script-url, and is run from here. It runs at every boot of every host, which has bash, curl and systemd.
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
ALONE=${TPU_WATCHDOG_ALONE:-600}
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
  curl -sf --max-time 10 -X PUT -H 'Metadata-Flavor: Google' --data "$BOOT $GENERATION.$(tried) $2${3:+ $3}" \
    "$MD/instance/guest-attributes/tpu-watchdog/$1" >/dev/null
}
generation_in() { sed -n 's/.*"generation":\([0-9]*\).*/\1/p' <<<"$1"; }
# boot_beacon: v4 says that this supervisor follows newer orders and their flags, and takes the roll-call; the index, `-` where there is none
# yet; c4, that it has four chips; wait, that it has read it.
boot_beacon() { report boot 1 "v4 i$(cat "$MEMORY.index" 2>/dev/null || echo -) c$(chip_count)$([[ ! -e $WAITS ]] || echo ' wait')"; }
# flags ORDER: wait, notice and roll_called, as files, since a change of them ends nothing.
WAITS=$MEMORY.wait ANNOUNCED=$MEMORY.announced CALLED=$MEMORY.called
flags() {
  if [[ $1 == *'"wait":true'* ]]; then : >"$WAITS"; else rm -f "$WAITS"; fi
  if [[ $1 == *'"notice":true'* ]]; then : >"$ANNOUNCED"; else rm -f "$ANNOUNCED"; fi
  if [[ $1 == *'"roll_called":true'* ]]; then : >"$CALLED"; else rm -f "$CALLED"; fi
}
# order: reads the run order; without an answer the last one stays, and nothing ever starts as generation 0.
order() {
  local run generation; run=$(attribute tpu-watchdog-run) || return 1
  generation=$(generation_in "$run"); [[ -n $generation ]] || return 1
  GENERATION=$generation ORDERED_SLICES=$(sed -n 's/.*"slices":\([0-9]*\).*/\1/p' <<<"$run")
  flags "$run"
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
# bound_syslog: images forward the journal to files in /var/log that nothing bounds within a day, and much output of a job would fill the
# disk. Lines of the level debug stay in the journal from now on.
bound_syslog() {
  local conf=${TPU_WATCHDOG_RUN:-/run}/systemd/journald.conf.d/tpu-watchdog.conf
  [[ ! -e $conf ]] || return 0
  mkdir -p "${conf%/*}" && printf '[Journal]\nMaxLevelSyslog=info\n' >"$conf" && systemctl restart systemd-journald.service 2>/dev/null
}
