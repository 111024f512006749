/* Shared by DoRA's kernels. */
#pragma once

#define DORA_LEAST_NORM 1e-30f /* the smallest norm that dora_norm returns */
