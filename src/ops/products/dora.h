/* What DoRA's kernels share. */
#pragma once

#define DORA_LEAST_NORM 1e-30f /* the smallest norm that dora_norm returns */
