#!/usr/bin/env bash
# Installs what is missing, builds, and runs every test. A second run builds and installs only what changed.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/install_deps.sh
cmake --preset dev --log-level=WARNING
cmake --build --preset dev --parallel "${JOBS:-$(scripts/build_jobs.sh)}"

exclude=()
# What only a GPU can show is not shown here: say so before the results, test by test.
if [ ! -e /dev/nvidiactl ]; then
  ctest --preset dev --show-only -L '^gpu$' | sed -n 's/^ *Test *#[0-9]*: \(.*\)$/not run, needs a GPU: \1/p' >build/dev/not_run.txt
  cat build/dev/not_run.txt
  echo "$(wc -l <build/dev/not_run.txt) tests need a GPU, which this machine does not have"
  exclude=(-LE '^gpu$')
fi
# Nor what only root, or who may mount, can show; ctest lists these at its end.
[ "$(id -u)" = 0 ] || echo "not run, need root: the tests of two users of one cache (CacheUsers.*)"
unshare --mount true 2>/dev/null || unshare --map-root-user --mount true 2>/dev/null ||
  echo "not run, need mounts: the tests of full disks and read-only mounts (CacheFaults.AFullDisk*, AReadOnlyMount*)"
ctest --preset dev --parallel "${JOBS:-2}" "${exclude[@]}"
