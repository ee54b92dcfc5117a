#!/usr/bin/env bash
# Sets the watchdog up as a Cloud Run job on a schedule: service account, custom role, bucket, config, job, schedule.
# May be run again at any time: what is there is brought up to date, nothing is deleted.
#
#   setup.sh --project P --region R --bucket B --image I --config F [options]
#
#   --project P             where the TPUs are, and the job
#   --region R              of the job, the bucket and the schedule, as in us-central1
#   --bucket B              for the state: one of its own, created when it is not there
#   --image I               the container image, already pushed
#   --config F              its `state` must be gs://B/tpu-watchdog
#   --nodes-account EMAIL   the service account of the TPU nodes (default: the project's Compute Engine account)
#   --checkpoints BUCKET    a bucket with checkpoints; may be given several times
#   --schedule CRON         default "*/5 * * * *"
#   --paused                leaves the schedule paused, as for moving a state into the bucket first
#   --dry-run               prints every command that would change something, and runs none
set -euo pipefail

fail() { echo "setup.sh: $*" >&2; exit 1; }
here=$(cd "$(dirname "$0")" && pwd)
project="" region="" bucket="" image="" config="" nodes_account="" checkpoints=() schedule="*/5 * * * *" dry_run="" paused=""
while (($#)); do
  case $1 in
    --dry-run) dry_run=1; shift; continue ;;
    --paused) paused=1; shift; continue ;;
    -h | --help) sed -n '2,19s/^# \{0,1\}//p' "$0"; exit 0 ;;
    --project | --region | --bucket | --image | --config | --nodes-account | --checkpoints | --schedule) ;;
    *) fail "unknown argument $1; see --help" ;;
  esac
  (($# > 1)) || fail "$1 needs a value; see --help"
  case $1 in
    --project) project=$2 ;;
    --region) region=$2 ;;
    --bucket) bucket=${2#gs://} ;;
    --image) image=$2 ;;
    --config) config=$2 ;;
    --nodes-account) nodes_account=$2 ;;
    --checkpoints) checkpoints+=("${2#gs://}") ;;
    --schedule) schedule=$2 ;;
  esac
  shift 2
done
for name in project region bucket image config; do
  [[ -n ${!name} ]] || fail "--$name is missing; see --help"
done
[[ -r $config ]] || fail "$config can't be read"
grep -Eq "^ *state *= *\"gs://$bucket/tpu-watchdog\"" "$config" ||
  fail "$config must say: state = \"gs://$bucket/tpu-watchdog\" (a task has no disk, and the bucket's rules are made for that path)"
! grep -Eq "^ *startup_script *=" "$config" ||
  fail "$config names a startup_script: a file that a task does not have. Leave the line out (a recreated TPU gets the script that it has" \
    "now), or put the file into a bucket and set startup-script-url in [tpu.create] metadata"
! grep -Eq "^ *create *= *['\"]" "$config" ||
  fail "$config names a file in create that a task does not have. Leave the line out, and submit the first job yourself: the watchdog submits" \
    "it again from its own specification"

account=tpu-watchdog@$project.iam.gserviceaccount.com
member=serviceAccount:$account

# run COMMAND…: runs it, or prints it.
run() {
  if [[ -n $dry_run ]]; then
    printf '%q ' "$@"
    echo
  else
    "$@" >/dev/null
  fi
}
# there COMMAND…: whether something exists already. A dry run asks nothing and shows everything.
there() { [[ -z $dry_run ]] && "$@" --quiet >/dev/null 2>&1; }
# bind COMMAND…: a new account is not known everywhere at once, so that its first bindings may have to wait.
bind() {
  for _ in {1..12}; do
    run "$@" && return 0
    sleep 5
  done
  fail "this did not work within a minute: $*"
}
step() { echo "# $*"; }

step "APIs"
run gcloud services enable cloudresourcemanager.googleapis.com cloudscheduler.googleapis.com iam.googleapis.com run.googleapis.com \
  secretmanager.googleapis.com storage.googleapis.com tpu.googleapis.com --project "$project"

step "the job's own service account, and what it may do"
there gcloud iam service-accounts describe "$account" --project "$project" ||
  run gcloud iam service-accounts create tpu-watchdog --project "$project" --display-name "TPU watchdog"
if there gcloud iam roles describe tpuWatchdog --project "$project"; then
  # A role that was deleted lately is still there, and must be called back before it can be used.
  [[ $(gcloud iam roles describe tpuWatchdog --project "$project" --format "value(deleted)") != True ]] ||
    run gcloud iam roles undelete tpuWatchdog --project "$project"
  run gcloud iam roles update tpuWatchdog --project "$project" --file "$here/../iam/role.yaml" --quiet
else
  run gcloud iam roles create tpuWatchdog --project "$project" --file "$here/../iam/role.yaml" --quiet
fi
bind gcloud projects add-iam-policy-binding "$project" --member "$member" \
  --role "projects/$project/roles/tpuWatchdog" --condition None
if [[ -z $nodes_account ]]; then
  number=PROJECT_NUMBER
  [[ -n $dry_run ]] || number=$(gcloud projects describe "$project" --format 'value(projectNumber)')
  nodes_account=$number-compute@developer.gserviceaccount.com
fi
bind gcloud iam service-accounts add-iam-policy-binding "$nodes_account" --project "$project" --member "$member" \
  --role roles/iam.serviceAccountUser

# grants SERVICE ROLE TABLE: what the tables of training jobs in the config need.
grants() {
  grep -Eq "^ *\[\[$3\]\]" "$config" || return 0
  run gcloud services enable "$1" --project "$project"
  bind gcloud projects add-iam-policy-binding "$project" --member "$member" --role "$2" --condition None
}
grants aiplatform.googleapis.com roles/aiplatform.user vertex_job
grants ml.googleapis.com roles/ml.developer ai_platform_job

step "the bucket of the state; events are kept for 90 days"
if there gcloud storage buckets describe "gs://$bucket"; then
  # The lifecycle file replaces all rules of a bucket, and this one may have its own.
  echo "# gs://$bucket is there already; its rules are left alone ($here/lifecycle.json has the one for events)"
else
  run gcloud storage buckets create "gs://$bucket" --project "$project" --location "$region" \
    --uniform-bucket-level-access --public-access-prevention
  run gcloud storage buckets update "gs://$bucket" --lifecycle-file "$here/lifecycle.json"
fi
bind gcloud storage buckets add-iam-policy-binding "gs://$bucket" --member "$member" --role roles/storage.objectUser
for name in ${checkpoints[@]+"${checkpoints[@]}"}; do
  bind gcloud storage buckets add-iam-policy-binding "gs://$name" --member "$member" --role roles/storage.objectViewer
done

step "the config, as a secret that only the job reads"
if there gcloud secrets describe tpu-watchdog-config --project "$project"; then
  run gcloud secrets versions add tpu-watchdog-config --project "$project" --data-file "$config"
else
  run gcloud secrets create tpu-watchdog-config --project "$project" --data-file "$config"
fi
bind gcloud secrets add-iam-policy-binding tpu-watchdog-config --project "$project" --member "$member" \
  --role roles/secretmanager.secretAccessor

step "the job"
job=$(mktemp)
trap 'rm -f "$job"' EXIT
sed -e "s|PROJECT|$project|g" -e "s|IMAGE|$image|g" "$here/job.yaml" >"$job"
run gcloud run jobs replace "$job" --project "$project" --region "$region"
bind gcloud run jobs add-iam-policy-binding tpu-watchdog --project "$project" --region "$region" --member "$member" \
  --role roles/run.invoker

step "the schedule"
verb=create
if there gcloud scheduler jobs describe tpu-watchdog --project "$project" --location "$region"; then verb=update; fi
run gcloud scheduler jobs "$verb" http tpu-watchdog --project "$project" --location "$region" --schedule "$schedule" \
  --uri "https://run.googleapis.com/v2/projects/$project/locations/$region/jobs/tpu-watchdog:run" --http-method POST \
  --oauth-service-account-email "$account" --time-zone Etc/UTC
if [[ -n $paused ]]; then
  run gcloud scheduler jobs pause tpu-watchdog --project "$project" --location "$region"
fi

step "done"
[[ -n $dry_run ]] || echo "Try it: gcloud run jobs execute tpu-watchdog --project $project --region $region --wait"
