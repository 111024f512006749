#!/bin/bash
# A file of samples, killed 500 times.
KILLS=${KILLS:-500} exec bash "$(dirname "$0")/../cli/generate_file.t"
