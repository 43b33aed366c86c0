#!/usr/bin/env bash
# From a fresh machine to checked kernels: installs what is missing, builds the commfuse command, compiles the kernels of
# an example deployment into a cache, and runs each of them on all its ranks - on the GPU, else in the simulator.
set -euo pipefail
cd "$(dirname "$0")/.."

deployment=${1:-examples/deployments/llama-3.1-70b-tp8.json}
export COMMFUSE_CACHE_DIR=${COMMFUSE_CACHE_DIR:-$PWD/build/quickstart-cache}

step() { printf '\n== %s\n' "$*"; }

step "Installing what is missing"
scripts/install_deps.sh

step "Building the commfuse command"
cmake --preset release --log-level=WARNING -DCOMMFUSE_BENCHMARKS=OFF >/dev/null
cmake --build --preset release --target commfuse_cli --parallel "${JOBS:-$(scripts/build_jobs.sh)}"
commfuse=build/release/bin/commfuse

step "Compiling the kernels of $deployment"
arch=()
[ -e /dev/nvidiactl ] || arch=(--arch sm_90a)
"$commfuse" precompile "$deployment" "${arch[@]}"

step "Running every kernel on all its ranks"
"$commfuse" selftest "$deployment"
