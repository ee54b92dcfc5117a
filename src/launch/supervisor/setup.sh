
# The time before a run: the user's startup scripts, the account of the host.
# host_token: of the host's own account.
host_token() { curl -sf --max-time 10 -H 'Metadata-Flavor: Google' "$MD/instance/service-accounts/default/token" | sed -n 's/.*"access_token": *"\([^"]*\)".*/\1/p'; }
# as_host CURL-OPTIONS…: a call with that token, which is among no arguments.
as_host() { curl -sf --max-time 20 -H @<(printf 'Authorization: Bearer %s\n' "$(host_token)") "$@"; }
# The user's startup scripts, in the order in which they run: that of startup-script-url, then that of startup-script.
USER_SCRIPTS=()
# fetch ATTRIBUTE FILE: 0 when the value is there whole, 1 when there is none; any other answer is asked for again.
fetch() {
  local answer
  while :; do
    if answer=$(curl -s --max-time 10 -H 'Metadata-Flavor: Google' -o "$2" -w '%{http_code}' "$MD/instance/attributes/$1"); then
      case $answer in
        200) return 0 ;;
        404) rm -f "$2"; return 1 ;;
      esac
    fi
    sleep "$PAUSE"
  done
}
# escaped NAME: of an object, as a part of its URL: each byte that means something else there.
escaped() {
  local LC_ALL=C i byte out=''
  for ((i = 0; i < ${#1}; i++)); do
    byte=${1:i:1}
    if [[ $byte != [A-Za-z0-9._~/:=@+,-] ]]; then printf -v byte %d "'$byte"; printf -v byte '%%%02X' $((byte & 255)); fi
    out+=$byte
  done
  echo "$out"
}
# download URL FILE: from a bucket with the host's account, as Google's agent does; what that does not give, and all else, as anybody.
download() {
  local object='' url=$1
  case $url in
    gs://*) object=$(escaped "${url#gs://}") ;;
    http*://storage.googleapis.com/* | http*://storage.cloud.google.com/* | http*://commondatastorage.googleapis.com/*) object=${url#*://*/} ;;
    http*://*.storage.googleapis.com/*) object=${url#*://}; object=${object%%.storage.googleapis.com/*}/${object#*/} ;;
  esac
  if [[ -n $object ]]; then
    url=$STORAGE/$object
    as_host --max-time 300 -o "$2" "$url" && return
  fi
  curl -sfL --max-time 300 -o "$2" "$url"
}
# fetch_user_scripts: 0 when all are there whole, 1 when the user has none.
fetch_user_scripts() {
  local file url
  USER_SCRIPTS=()
  file=$STATE/user-script-of-url
  if fetch tpu-watchdog-user-script-url "$MEMORY.url" && url=$(<"$MEMORY.url") && [[ -n $url ]]; then
    until download "$url" "$file"; do
      # The part behind ? may be a key.
      echo "setup_failed: the startup script ${url%%\?*} can't be fetched, neither with this host's account nor without$(full_disk)" >"$PHASE"; sleep "$PAUSE"
    done
    echo setup >"$PHASE"
    USER_SCRIPTS+=("$file")
  else
    rm -f "$file"
  fi
  file=$STATE/user-script
  if fetch tpu-watchdog-user-script "$file"; then USER_SCRIPTS+=("$file"); fi
  ((${#USER_SCRIPTS[@]})) && chmod 755 "${USER_SCRIPTS[@]}"
}
# A startup script may leave services behind, as it may without us.
user_scripts() {
  local script
  for script in "${USER_SCRIPTS[@]}"; do
    run_unit setup -p KillMode=process -- /bin/bash "$WRAPPER" main "$script" || return
  done
}
# A host is set up once a boot: a newer order and a supervisor that was killed find it so. A script that reads the order runs for each.
SET_UP=$MEMORY.set-up
set_up_for() { grep -qsE 'CHECKPOINT_(PATH|STEP)|TPU_WATCHDOG_GENERATION' "$STATE"/user-script* && echo "$BOOT $GENERATION" || echo "$BOOT"; }
is_set_up() { [[ -e $SET_UP && $(<"$SET_UP") == "$(set_up_for)" ]]; }
# A startup script that has failed for so long is tried again after so long.
SETUP_LONG=${TPU_WATCHDOG_SETUP_LONG:-1800} SETUP_PAUSE=${TPU_WATCHDOG_SETUP_PAUSE:-900}
set_up() {
  local code pause tries=0 since; since=$(uptime)
  until user_scripts; do
    code=$?
    going_down && rest stopping
    tell_lines "$code"
    pause=$(pause_of "$tries"); tries=$((tries + 1))
    (($(uptime) - since < SETUP_LONG)) || pause=$SETUP_PAUSE
    echo "setup_failed code=$code tries=$tries: the startup script is tried again in $pause s" | tee "$PHASE"
    sleep "$pause"
  done
  set_up_for >"$SET_UP"
}
# find_user: the startup script, OS Login or the guest agent makes it.
find_user() {
  RUN_AS=${RUN_AS:-$(id -un)}
  until RUN_HOME=$(getent passwd "$RUN_AS" | cut -d: -f6) && [[ -n $RUN_HOME ]]; do
    echo "setup_failed: the user $RUN_AS does not exist yet" >"$PHASE"; sleep "$PAUSE"
  done
  find_folder
  # Not runuser: a session of PAM could lower the limits again.
  [[ $RUN_AS == "$(id -un)" ]] || AS=(setpriv --reuid="$RUN_AS" --regid="$(id -g "$RUN_AS")" --init-groups --)
}
