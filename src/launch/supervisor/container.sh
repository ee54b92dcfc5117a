# A run in a container. Its processes are no children of docker's client, so that it is ended by its label, before each run and after.
CONTAINER=tpu-watchdog-job
# Chips are devices; tests run where they may not be given away.
CONTAINER_RIGHTS=${TPU_WATCHDOG_CONTAINER_RIGHTS:---privileged --ulimit memlock=-1:-1 --ulimit nofile=1048576:1048576}
# Another container of that name belongs to the user.
end_container() {
  [[ -n $IMAGE ]] || return 0
  docker ps --all --quiet --filter label=tpu-watchdog 2>/dev/null | xargs -r docker rm --force >/dev/null 2>&1 || true
}
# pull_image: as the host's account where the registry is Google's. The image that is there is taken where the registry gives no answer, or
# none is named; a registry that refuses may have another one by now. Fails with the reason in UNPULLED.
NO_ANSWER='dial tcp|i/o timeout|imeout exceeded|TLS handshake timeout|deadline exceeded|connection re(fused|set)|unexpected EOF|: EOF|unexpected HTTP status: 5|: 50[0234] '
pull_image() {
  local registry=${IMAGE%%/*} code before after; before=$(docker image inspect --format '{{.Id}}' "$IMAGE" 2>/dev/null)
  command -v docker >/dev/null || { UNPULLED='docker is not installed on this host'; return 1; }
  if [[ $registry == gcr.io || $registry == *.gcr.io || $registry == *-docker.pkg.dev ]]; then
    # In memory: docker keeps the token there.
    export DOCKER_CONFIG=$MEMORY.docker
    (umask 077; mkdir -p "$DOCKER_CONFIG")
    host_token | docker login --username oauth2accesstoken --password-stdin "https://$registry" >/dev/null 2>&1
  fi
  UNPULLED=$(timeout 1800 docker pull --quiet "$IMAGE" 2>&1 >/dev/null); code=$?
  if [[ $code == 0 ]]; then
    after=$(docker image inspect --format '{{.Id}}' "$IMAGE" 2>/dev/null)
    # The former image of this tag would stay on the disk; one with another name is the user's.
    [[ -z $before || $before == "$after" || $(docker image inspect --format '{{len .RepoTags}}' "$before" 2>/dev/null) != 0 ]] ||
      docker image rm "$before" >/dev/null 2>&1
    return 0
  fi
  [[ $code != 124 ]] || UNPULLED='no answer within 30 minutes'
  [[ -n $before ]] || return 1
  [[ $code == 124 || $registry == "$IMAGE" || $registry != *[.:]* || $UNPULLED =~ $NO_ANSWER ]] || return 1
  echo "$IMAGE can't be pulled, so the image of this name on this host is run: $UNPULLED"
}
# tell_left: what of the command still runs when it ends with 0, told before the container ends with it. A process that was brought in from
# outside has no parent here.
tell_left() {
  cat <<'LEFT'
trap 'left_running $?' EXIT
left_running() {
  [[ $1 == 0 ]] || return
  local pid key value of name left _
  for _ in {1..50}; do
    left=''
    for pid in /proc/[0-9]*; do
      [[ $pid != /proc/1 && $pid != "/proc/$$" ]] || continue
      of=0 name=''
      { while read -r key value; do [[ $key != PPid: ]] || of=$value; done <"$pid/status"; read -r name <"$pid/comm"; } 2>/dev/null
      [[ $of == 0 || -z $name ]] || left+=" $name"
    done
    [[ -n $left ]] || return
    sleep 0.2
  done
  echo "${left:1:100}" >"${TPU_WATCHDOG_DONE%/*}/left"
}
LEFT
}
# write_container: the main process of the unit, which waits for the container, and passes SIGTERM on to all that runs in it.
write_container() {
  local variable options=() env_file=''
  # Docker makes what is missing, and root owns it: without the file the command fails, as it does on the host.
  [[ ! -r $ENV_FILE ]] || env_file=$ENV_FILE
  in_folder true
  for variable in CHECKPOINT_BASE CHECKPOINT_PATH CHECKPOINT_STEP "${!TPU_WATCHDOG_@}" PYTHONUNBUFFERED; do options+=(--env "$variable"); done
  for variable in "$MEMORY.job:ro" "$SECRET_FILE:ro" ${env_file:+"$env_file:ro"} "$PROGRESS" "$WORK" ${RUN_IN:+"$FOLDER"}; do
    options+=(--volume "${variable%:ro}:$variable")
  done
  # What is mounted on the host is seen as well.
  [[ $CHECKPOINT_BASE != /* ]] || options+=(--volume "$CHECKPOINT_BASE:$CHECKPOINT_BASE:rslave")
  printf '%s\n' "IMAGE=$(printf %q "$IMAGE") CONTAINER=$CONTAINER" \
    "run=(docker run --detach --name $CONTAINER --label tpu-watchdog=$SLOT --init --stop-timeout $STOP_GRACE $CONTAINER_RIGHTS --log-driver json-file --log-opt max-size=64m --log-opt max-file=2 --net host --ipc host --user $(id -u "$RUN_AS"):$(id -g "$RUN_AS")$(printf ' %q' "${options[@]}") --entrypoint /bin/bash)" \
    "run+=($(printf %q "$IMAGE") -o pipefail $(printf %q "$MEMORY.job"))" >"$MEMORY.container"
  cat >>"$MEMORY.container" <<'CONTAINER'
export PYTHONUNBUFFERED=1
# As in the shell around a program on the host.
[[ ! -e $TPU_WATCHDOG_CODE ]] || { echo 143 >"$TPU_WATCHDOG_CODE"; exit 143; }
trap 'docker exec "$CONTAINER" /bin/bash -c "kill -TERM -1" >/dev/null 2>&1' TERM
: >"$TPU_WATCHDOG_CODE"
"${run[@]}" >/dev/null || { echo "$IMAGE could not be started"; echo 125 >"$TPU_WATCHDOG_CODE"; exit 125; }
docker logs --follow "$CONTAINER" & logs=$!
code=''
until [[ $code =~ ^[0-9]+$ ]]; do
  docker wait "$CONTAINER" >"$TPU_WATCHDOG_CODE.container" 2>/dev/null & waiting=$!
  # A signal interrupts the wait, not the container.
  while kill -0 "$waiting" 2>/dev/null; do wait "$waiting"; done
  code=$(<"$TPU_WATCHDOG_CODE.container")
  # It was removed by hand; a daemon that does not answer says nothing.
  [[ -n $code || -n $(docker ps --all --quiet --filter "name=^$CONTAINER$" 2>&1) ]] || code=143
  [[ -n $code ]] || sleep 1
done
while kill -0 "$logs" 2>/dev/null; do wait "$logs"; done
docker rm --force "$CONTAINER" >/dev/null 2>&1
echo "$code" >"$TPU_WATCHDOG_CODE"; exit "$code"
CONTAINER
}
