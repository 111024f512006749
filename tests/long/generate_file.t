#!/bin/bash
# A file of samples, 500 kills.
KILLS=${KILLS:-500} exec bash "$(dirname "$0")/../cli/generate_file.t"
