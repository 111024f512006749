#!/bin/bash
# Faults of one rank of three, 200 trials.
TRIALS=${TRIALS:-200} exec bash "$(dirname "$0")/../train/process_faults.t"
