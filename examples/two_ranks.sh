#!/bin/sh
# two_ranks.sh PROGRAM: PROGRAM as rank 0 and rank 1 of a job of two, with the variables that torchrun sets. Both must end
# with status 0, or both with status 3 and the reason, which is that there is no GPU.
export WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 TORCHELASTIC_RESTART_COUNT=0
export TORCHELASTIC_RUN_ID="two-ranks-$$"
output=$(mktemp -d) || exit 1
trap 'rm -r "$output"' EXIT
RANK=1 LOCAL_RANK=1 "$1" > "$output/1" 2>&1 &
other=$!
RANK=0 LOCAL_RANK=0 "$1" > "$output/0" 2>&1
first=$?
wait "$other"
second=$?
cat "$output/0" "$output/1"
[ "$first" -eq "$second" ] || exit 1
case $first in
  0) grep -q 'rank 0 of 2: right' "$output/0" && grep -q 'rank 1 of 2: right' "$output/1" ;;
  3) [ ! -e /dev/nvidiactl ] && grep -q 'rank 0 of 2 .* needs an NVIDIA GPU' "$output/0" &&
    grep -q 'rank 1 of 2 .* needs an NVIDIA GPU' "$output/1" ;;
  *) false ;;
esac
