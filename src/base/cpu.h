/* Which of the CPU's vectors are used. Results have the same bits with any. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>

/* Whether code that is compiled for AVX-512 runs: where the processor has it, and SUROGATE_AVX512=0 doesn't forbid it. */
bool cpu_avx512(void);

/* Whether that processor rounds to bf16 by itself (AVX512_BF16), to be read in inner loops. False until cpu_avx512 is called first. */
extern atomic_bool cpu_bf16;

/* Whether it has instructions of AVX512_BF16, and whether this process may use AMX's of bf16. As cpu_avx512, and only with it. */
bool cpu_has_bf16(void);
bool cpu_amx(void);

/* Whether 12 rows that lie a multiple of 4 KiB apart are read side by side as fast as others. Their lines share one place of the first
 * cache. AMD's newer processors have ways for 12 there, and are as fast (measured on Zen 5). Intel's have them too, but take up to half as
 * long again. As cpu_avx512, and only with it. */
bool cpu_reads_aliased(void);

/* For tests: as if it were forbidden, until called with false. */
void cpu_avx512_forbid(bool forbidden);
