/* Which vector instructions of the CPU are used. Results are bitwise equal with each choice. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>

/* Whether to run code compiled for AVX-512: true if the processor supports it and SUROGATE_AVX512=0 isn't set. */
bool cpu_avx512(void);

/* cpu_has_bf16's value as a variable, for inner loops: whether the processor has instructions that round to bf16 (AVX512_BF16). False until
 * cpu_avx512 was called once. */
extern atomic_bool cpu_bf16;

/* cpu_has_bf16: whether AVX512_BF16 can be used. cpu_amx: whether this process may use AMX's bf16 products. Both return false if
 * cpu_avx512() returns false. */
bool cpu_has_bf16(void);
bool cpu_amx(void);

/* Whether 12 rows whose addresses differ by multiples of 4 KiB can be read in parallel at full speed. Such rows compete for one set of the
 * L1 cache. True for AMD processors with at least 12 ways per set (measured on Zen 5). False for Intel processors: their L1 has 12 ways
 * too, but such reads take up to 1.5 times as long. Also false if cpu_avx512() returns false. */
bool cpu_reads_aliased(void);

/* For tests: true turns AVX-512 off (cpu_avx512 returns false), false turns it on again. */
void cpu_avx512_forbid(bool forbidden);
