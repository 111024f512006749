#!/bin/bash
# Runs on Ray, of which 20 nodes are lost.
KILLS=${KILLS:-20} RAY_TIMEOUT=${RAY_TIMEOUT:-3600} exec bash "$(dirname "$0")/../python/ray.t"
