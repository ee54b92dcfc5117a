#!/usr/bin/env bash
# Runs on every host of the TPU at each boot, before the job's command: what a fresh machine needs.
set -euo pipefail
pip install --quiet 'jax[tpu]' -f https://storage.googleapis.com/jax-releases/libtpu_releases.html
