#!/bin/bash
# Several ranks, 100 kills at random moments.
KILLS=${KILLS:-100} exec bash "$(dirname "$0")/../train/ranks.t"
