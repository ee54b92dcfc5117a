
# The program of a run: its user, folder and environment, its secrets, and the text without them.
# find_folder: RUN_IN into FOLDER; ~ and $HOME are the home of the user that runs it.
find_folder() {
  # shellcheck disable=SC2016,SC2088 # Literally, as the config has them.
  case $RUN_IN in
    '' | '~' | '$HOME') FOLDER=$RUN_HOME ;;
    '~/'*) FOLDER=$RUN_HOME/${RUN_IN:2} ;;
    '$HOME/'*) FOLDER=$RUN_HOME/${RUN_IN:6} ;;
    *) FOLDER=$RUN_IN ;;
  esac
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
  local place; place="cd $(printf %q "$FOLDER") || exit 1"
  # It waits for its program, which the signal reaches as well.
  [[ $1 != "$MEMORY.job" ]] || place="trap 'exit 143' TERM"$'\n'$place
  rm -f "$1"
  if [[ $1 == "$MEMORY.job" && -n $IMAGE ]]; then
    # The image's own folder where none is named; the host's limits and ignored signals do not reach a container, and all of it is killed
    # when this shell ends.
    place="ulimit -l unlimited 2>/dev/null; ulimit -n 1048576 2>/dev/null; trap 'exit 143' TERM; $(ignore_notice)"$'\n'"$(tell_left)"$'\n'"${RUN_IN:+$place}"
  fi
  (umask 077; printf '%s\n' ". $SECRET_FILE" "${ENV_FILE:+set -a; . $(printf %q "$ENV_FILE") || exit 1; set +a}" "$place" "$JOB_ENV" "$2" >"$1") || return 1
  chown "$RUN_AS" "$1"
  SHELL_OF=(env HOME="$RUN_HOME" USER="$RUN_AS" LOGNAME="$RUN_AS" PYTHONUNBUFFERED=1 bash -l -o pipefail "$1")
  SHELL_OF=("${AS[@]}" "${SHELL_OF[@]}")
}
prepare_job() {
  until fetch_secrets; do
    echo "setup_failed: the secret of $UNREAD can't be read with this host's account" >"$PHASE"; sleep "$PAUSE"
  done
  until fetch_code; do
    echo "setup_failed: the code can't be fetched: $(tail -n 1 <<<"$UNFETCHED" | cut -c -200)$(full_disk)" >"$PHASE"; sleep "$PAUSE"
  done
  if [[ -n $IMAGE ]]; then
    until pull_image; do
      echo "setup_failed: the image $IMAGE can't be pulled: $(tail -n 1 <<<"$UNPULLED" | cut -c -200)$(full_disk)" >"$PHASE"; sleep "$PAUSE"
    done
  fi
  # A container has its own, and docker makes what is missing.
  until [[ -n $IMAGE ]] || "${AS[@]}" test -d "$FOLDER"; do
    echo "setup_failed: the folder $FOLDER (dir) does not exist on this host, or $RUN_AS can't read it: a startup script or code makes it" >"$PHASE"; sleep "$PAUSE"
  done
  until shell_of "$MEMORY.job" "$COMMAND"; do
    echo "setup_failed: $MEMORY.job can't be written" >"$PHASE"; sleep "$PAUSE"
  done
}
