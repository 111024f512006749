#!/bin/bash
# Several ranks, killed 100 times at random moments.
KILLS=${KILLS:-100} exec bash "$(dirname "$0")/../train/ranks.t"
