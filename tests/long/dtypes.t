#!/bin/bash
# Codes of a hundred million random floats.
TEST_LONG=1 exec "$(dirname "$SUROGATE")/tests/test_dtype" random_floats
