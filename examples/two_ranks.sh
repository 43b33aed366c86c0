#!/bin/sh
# two_ranks.sh PROGRAM: PROGRAM as rank 0 and rank 1 of a job of two, with the variables that torchrun sets.
export WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 TORCHELASTIC_RESTART_COUNT=0
export TORCHELASTIC_RUN_ID="two-ranks-$$"
RANK=1 LOCAL_RANK=1 "$1" &
other=$!
RANK=0 LOCAL_RANK=0 "$1"
first=$?
wait "$other"
second=$?
[ "$first" -eq 0 ] && [ "$second" -eq 0 ]
