#!/bin/bash
# Runs are killed around new best evaluations, 300 times.
KILLS=${KILLS:-300} exec bash "$(dirname "$0")/../train/best.t"
