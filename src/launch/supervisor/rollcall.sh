# The roll-call: the hosts of a slice start a run together, or none of them does. Worker 0 listens; each host that is ready calls it
# until it says "go", which it does once every index has called within the last seconds.
ROLL=$MEMORY.roll
PORT=${TPU_WATCHDOG_PORT:-8377}
# Seconds between two calls of a host; a call counts as present for FRESH, a "go" can be joined for LATE.
CALL=${TPU_WATCHDOG_CALL:-5} FRESH=${TPU_WATCHDOG_FRESH:-20} LATE=${TPU_WATCHDOG_LATE:-120}
# An order that the watchdog wrote after it had heard from every host starts after so long where the hosts can't reach each other.
UNREACHED=${TPU_WATCHDOG_UNREACHED:-180}
# The first host is taken for the only one when the list of hosts is missing for so long.
UNLISTED=${TPU_WATCHDOG_UNLISTED:-120}
# tried: how many runs of this generation were started here, over reboots of the same disk.
tried() { local n=''; { read -r n <"$MEMORY.try.$GENERATION" || read -r n <"$STATE/try.$GENERATION"; } 2>/dev/null; echo "${n:-0}"; }
count_try() { echo "$1" >"$MEMORY.try.$GENERATION"; keep "$STATE/try.$GENERATION" "$1"; }
# megascale KEY: what the metadata of a multislice says, in lines such as MEGASCALE_NUM_SLICES: '2', from which JAX reads it too.
megascale() { sed -n "s/^MEGASCALE_$1: *['\"]\{0,1\}\([^'\"[:space:]]*\).*/\1/p" "$MEMORY.tpu-env" | head -n 1; }
# find_slice: which of how many slices this host is in, and the address of the first one's worker 0. The first order of a multislice says how
# many there are: one slice alone must not start because its tpu-env comes late.
find_slice() {
  SLICES=1 SLICE=0 LEADER=''
  fetch tpu-env "$MEMORY.tpu-env" || { ((${ORDERED_SLICES:-1} == 1)); return; }
  SLICES=$(megascale NUM_SLICES) SLICE=$(megascale SLICE_ID) LEADER=$(megascale COORDINATOR_ADDRESS)
  LEADER=${LEADER%:*}
  { [[ $SLICES =~ ^[1-9][0-9]{0,3}$ ]] && ((SLICES > 1)); } || { SLICES=1 SLICE=0; ((${ORDERED_SLICES:-1} == 1)); return; }
  ((${ORDERED_SLICES:-$SLICES} == SLICES)) || return
  [[ $SLICE =~ ^(0|[1-9][0-9]{0,3})$ && -n $LEADER ]] && ((SLICE < SLICES))
}
# find_hosts: how many there are, and worker 0's address: each is `name:uid:address`, or a bare name. The hosts of all slices take one
# roll-call, and have one number each.
find_hosts() {
  local hosts=''
  ! fetch worker-network-endpoints "$MEMORY.hosts" || hosts=$(<"$MEMORY.hosts")
  WORKERS=$(tr ',' '\n' <<<"$hosts" | grep -c . || true)
  HEAD=${hosts%%,*}; HEAD=${HEAD##*:}
  OWNER=$(attribute tpu-watchdog-owner); [[ -n $OWNER ]] || return
  if ((SLICES > 1)); then
    ((HOST < WORKERS)) || return
    WORKER=$((SLICE * WORKERS + HOST)) WORKERS=$((SLICES * WORKERS))
    ((SLICE == 0)) || HEAD=$LEADER
  fi
  # So many calls that worker 0 is not busy with them.
  ((WORKERS <= 64)) || CALL=20 FRESH=60
  # Without the list it is not known how many there are, but no host is alone that is not the first, and it may come later than the index;
  # a short one is not whole yet.
  if ((WORKERS == 0)); then ((WORKER == 0 && $(uptime) - BEGAN >= UNLISTED)); else ((WORKER < WORKERS)); fi
}
# listen: worker 0's part, by units that are gone with the boot. systemd starts the registrar for each call.
listen() {
  local units=${TPU_WATCHDOG_RUN:-/run}/systemd/system name=tpu-watchdog-roll-call at=$PORT
  [[ ! $HEAD =~ ^[0-9.]+$ ]] || at=$HEAD:$PORT
  mkdir -p "$units" "$ROLL"
  write_registrar
  ! systemctl is-active --quiet $name.socket || return 0
  printf '%s\n' '[Unit]' 'CollectMode=inactive-or-failed' '[Socket]' "ListenStream=$at" 'Accept=yes' 'MaxConnections=1024' 'TriggerLimitIntervalSec=0' >"$units/$name.socket"
  printf '%s\n' '[Unit]' 'CollectMode=inactive-or-failed' '[Service]' "ExecStart=/bin/bash $MEMORY.registrar" 'StandardInput=socket' 'StandardOutput=socket' \
    'StandardError=null' 'LogLevelMax=notice' 'TimeoutStartSec=10' >"$units/$name@.service"
  systemctl daemon-reload; systemctl start $name.socket
}
# write_registrar: answers one call. Who calls names owner and slot, since addresses pass from one TPU to another.
write_registrar() {
  { printf '%s=%q\n' ROLL "$ROLL" OWNER "$OWNER" SLOT "$SLOT" WORKERS "$WORKERS" FRESH "$FRESH" LATE "$LATE" WAITS "$WAITS"; cat <<'REGISTRAR'; } >"$MEMORY.registrar.new"
read -r -t 5 word owner slot generation worker try boot || exit
[[ $word == @(roll-call|leave) && $owner == "$OWNER" && $slot == "$SLOT" ]] || { echo "this is worker 0 of another TPU"; exit; }
[[ $generation =~ ^[0-9]{1,9}$ && $worker =~ ^[0-9]{1,5}$ && $try =~ ^[0-9]{1,9}$ ]] && ((worker < WORKERS)) || { echo "this call is not understood"; exit; }
mkdir -p "$ROLL/$generation"; cd "$ROLL/$generation" || exit
exec 9>lock; flock 9
now=$(cut -d. -f1 /proc/uptime)
# seen FILE: what it says, into at, number, who; fails where it is older than $2 seconds.
seen() { at=''; { read -r at number who <"$1"; } 2>/dev/null; [[ -n $at ]] && ((now - at < $2)); }
((worker == 0)) || : >others
if [[ $word == leave ]]; then
  if seen "$worker" "$FRESH" && [[ $who == "$boot" ]]; then rm -f "$worker"; fi
  echo "left"; exit
fi
# A host whose answer was lost joins the run that the others have begun.
if seen go "$LATE" && ((try < number)); then echo "go $number"; exit; fi
if [[ -e $WAITS ]]; then echo "the run order of worker 0 says wait"; exit; fi
if seen "$worker" "$FRESH" && [[ $who != "$boot" ]]; then echo "two hosts call themselves worker $worker"; exit; fi
echo "$now $try $boot" >"$worker"
highest=0 missing=''
for ((w = 0; w < WORKERS; w++)); do
  if seen "$w" "$FRESH"; then ((number <= highest)) || highest=$number; else missing+=" $w"; fi
done
[[ -z $missing ]] || { echo "not heard from:$missing" | cut -c -200; exit; }
rm -f [0-9]*
echo "$now $((highest + 1))" >go; echo "go $((highest + 1))"
REGISTRAR
  mv "$MEMORY.registrar.new" "$MEMORY.registrar"
}
# call WORD: one call; what worker 0 says into ANSWERED, nothing where it can't be reached.
call() {
  # shellcheck disable=SC2016 # It is the other shell that expands them.
  ANSWERED=$(timeout 5 bash -c 'exec 3<>"/dev/tcp/$0/$1" && echo "$2" >&3 && IFS= read -r line <&3 && echo "$line"' \
    "$HEAD" "$PORT" "$1 $OWNER $SLOT $GENERATION $WORKER $(tried) $BOOT" 2>/dev/null)
}
# unreached: no host has heard another one since SILENT_SINCE.
unreached() { if ((WORKER == 0)); then [[ ! -e $ROLL/$GENERATION/others ]]; else [[ -z $ANSWERED ]]; fi; }
# roll_call: returns when the run starts on every host.
roll_call() {
  local silent_since; silent_since=$(uptime)
  while :; do
    if [[ -e $WAITS ]]; then call leave; held_back; silent_since=$(uptime); fi
    call roll-call
    if [[ $ANSWERED =~ ^go\ ([0-9]+)$ ]]; then count_try "${BASH_REMATCH[1]}"; return; fi
    unreached || silent_since=$(uptime)
    # The watchdog has taken the roll-call of this order, of which nothing has run here. Slices that can't reach each other can't train.
    if [[ $SLICES == 1 && -e $CALLED && $(tried) == 0 ]] && (($(uptime) - silent_since >= UNREACHED + STOP_GRACE)); then
      echo "starts without a roll-call: the hosts can't reach each other on port $PORT"
      # One that is only late joins it.
      if ((WORKER == 0)); then mkdir -p "$ROLL/$GENERATION" && echo "$(uptime) 1" >"$ROLL/$GENERATION/go"; fi
      count_try 1; return
    fi
    [[ -n $ANSWERED || $WORKER != 0 ]] || listen
    echo "roll_call: ${ANSWERED:-worker 0 ($HEAD) does not answer on port $PORT}" >"$PHASE"
    sleep "$CALL"
  done
}
# begin: the next run of this generation. A startup script without a command sets each host up by itself: a host that is done no longer calls.
begin() {
  # Image, code and secrets may take long to fetch: the order may have changed.
  if ((WORKERS > 1)) && [[ -n $COMMAND ]]; then roll_call; else held_back; count_try $(($(tried) + 1)); fi
  TPU_WATCHDOG_TRY=$(tried); export TPU_WATCHDOG_TRY
  # The exit of the run before is stale from now on.
  boot_beacon
}
