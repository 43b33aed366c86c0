#!/usr/bin/env bash
# Prints how many compilations this machine can run at a time: one per core, and 1.5 GB of free memory for each.
set -euo pipefail
cores=$(nproc)
by_memory=$(awk '/^MemAvailable:/ { print int($2 / 1500000) }' /proc/meminfo)
jobs=$((by_memory < cores ? by_memory : cores))
echo $((jobs > 0 ? jobs : 1))
