/* How random draws of ops are keyed and counted, for CPU and CUDA alike. A draw is named by its purpose, never by when or where it is made,
 * so that micro-batches, packing, threads and recomputation don't change it. */
#pragma once

#include "base/philox.h"

enum { RANDOM_DROPOUT = 1, RANDOM_ADAMW = 2, RANDOM_NVFP4 = 3, RANDOM_SAMPLE = 4 };

PHILOX_FN uint64_t random_mix(uint64_t x) /* splitmix64's finisher: a bijection */
{
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

/* The Philox key of one use (RANDOM_...) at one place (site of a dropout, key of a segment) in one optimizer step. */
PHILOX_FN uint64_t random_key(int64_t seed, int64_t step, int use, int64_t place)
{
    uint64_t key = random_mix((uint64_t)seed + 0x9E3779B97F4A7C15u);
    key = random_mix(key ^ ((uint64_t)step + 0x9E3779B97F4A7C15u));
    key = random_mix(key ^ ((uint64_t)use << 56));
    return random_mix(key ^ (uint64_t)place);
}

/* The draws below, as words; on the CPU random_row.h makes many words of the first two draws at a time.
 *
 * Dropout: element c of the row at (doc_id, position) is word c % 4 of this draw at quad = c / 4; it is kept where philox_uniform(word) >=
 * p. */
PHILOX_FN Philox4 random_dropout_quad(uint64_t key, int32_t doc_id, int32_t position, uint32_t quad)
{
    return philox4x32(quad, (uint32_t)position, (uint32_t)doc_id, 0, key);
}

/* Stochastic rounding in a parameter's segment: element i uses word i % 4 of this draw at quad = i / 4: the low 16 bits
 * for the weight, the high 16 for its second moment. */
PHILOX_FN Philox4 random_segment_quad(uint64_t key, uint64_t quad)
{
    return philox4x32((uint32_t)quad, (uint32_t)(quad >> 32), 0, 0, key);
}

/* Stochastic rounding to 4 bits: element c of the row at (doc_id, position) uses 16 bits of this draw at octet = c / 8. */
PHILOX_FN Philox4 random_octet(uint64_t key, int32_t doc_id, int32_t position, uint32_t octet)
{
    return philox4x32(octet, (uint32_t)position, (uint32_t)doc_id, 0, key);
}

/* The 16 bits of element k of the octet. */
PHILOX_FN uint32_t random_of_octet(const Philox4 *draw, int k)
{
    return draw->v[k / 2] >> (k % 2 * 16) & 0xFFFFu;
}
