/* Which of the CPU's vectors are used. Results have the same bits with any. */
#pragma once

#include <stdbool.h>

/* Whether code that is compiled for AVX-512 runs: where the processor has it, and SUROGATE_AVX512=0 doesn't forbid it. */
bool cpu_avx512(void);

/* For tests: as if it were forbidden, until called with false. */
void cpu_avx512_forbid(bool forbidden);
