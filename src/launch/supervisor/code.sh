# The job's code: before each run, into its folder, as its user; pinned by SOURCE's part behind #.
# in_folder PROGRAM…: as the job's user, in its folder, which is made.
in_folder() {
  # shellcheck disable=SC2016 # It is the other shell that expands them.
  "${AS[@]}" env HOME="$RUN_HOME" bash -c 'mkdir -p "$0" && cd "$0" && exec "$@"' "$FOLDER" "$@"
}
# fetch_code: fails with the reason in UNFETCHED.
fetch_code() {
  local place=${SOURCE%%#*} pin='' file=$STATE/code
  [[ -n $SOURCE ]] || return 0
  [[ $SOURCE != *#* ]] || pin=${SOURCE##*#}
  if [[ $place == gs://* ]]; then
    UNFETCHED="this host's account can't read $SOURCE"
    as_host --max-time 900 -o "$file" "$STORAGE/${place#gs://}${pin:+?generation=$pin}" || { rm -f "$file"; return 1; }
    chown "$RUN_AS" "$file"
    UNFETCHED=$(in_folder tar -xf "$file" 2>&1) || { rm -f "$file"; return 1; }
    rm -f "$file"
  elif [[ $pin =~ ^[0-9a-f]{40}$ && -e $FOLDER/.git ]] && rm -f "$FOLDER"/.git/*.lock && in_folder git checkout --quiet --force --detach "$pin" >/dev/null 2>&1; then
    # It is here since an earlier run, whole, and needs no network.
    return 0
  else
    UNFETCHED=$({ in_folder git init --quiet && rm -f "$FOLDER"/.git/*.lock && in_folder timeout 900 git fetch --quiet --depth 1 "$place" "$pin" && in_folder git checkout --quiet --force --detach FETCH_HEAD; } 2>&1)
  fi
}
