#!/bin/bash
# Injected errors, 500 trials.
TRIALS=${TRIALS:-500} exec bash "$(dirname "$0")/../train/faults.t"
