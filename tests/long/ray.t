#!/bin/bash
# Runs on Ray that lose 20 nodes.
KILLS=${KILLS:-20} RAY_TIMEOUT=${RAY_TIMEOUT:-3600} exec bash "$(dirname "$0")/../python/ray.t"
