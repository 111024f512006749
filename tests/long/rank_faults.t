#!/bin/bash
# Injected errors with several ranks, 200 trials.
TRIALS=${TRIALS:-200} exec bash "$(dirname "$0")/../train/rank_faults.t"
