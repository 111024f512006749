#!/bin/bash
# Codes of a hundred million random floats, from the conversion functions and from the kernels that convert.
. tests/shell.sh
export TEST_LONG=1
check "test_dtype" "$(dirname "$SUROGATE")/tests/test_dtype" random_floats
check "test_codes" "$(dirname "$SUROGATE")/tests/test_codes"
finish
