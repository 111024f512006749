/* The values of GGUF tensors: floats to blocks of a type and back. A block holds the codes q of its values, and one or two scales.
 *
 *   Q8_0, Q4_0, Q5_0   d q                         q around 0
 *   Q4_1, Q5_1         d q + m                     q from 0
 *   Q4_K, Q5_K         d s q - e t                 s, t: a 6-bit scale and a 6-bit minimum for each 32 of 256 values
 *   Q6_K               d s q                       s: an 8-bit scale for each 16 of 256 values
 *
 * d, m and e are fp16. */
#pragma once

#include "base/dtype.h"

#include <stdint.h>

typedef enum GgufType {
#define GGUF_TYPE(name, number, block, bytes) GGUF_##name = number,
#include "files/gguf.def"
#undef GGUF_TYPE
} GgufType;

enum { GGUF_MOST_BLOCK = 256 }; /* values per block, at most */

/* The name of the type with this number in the file; NULL: not one of these types. */
const char *gguf_type_name(uint32_t number);
int         gguf_block(GgufType type);                /* values per block */
int64_t     gguf_bytes(GgufType type, int64_t numel); /* bytes of `numel` values, which fill whole blocks */

/* `values` must fill whole blocks. They are finite and, for types other than F32 and BF16, at most 65504 in magnitude. */
void gguf_encode(GgufType type, const float *values, int64_t numel, void *out);
/* Decodes exactly. Blocks may hold any bytes. */
void gguf_decode(GgufType type, const void *blocks, int64_t numel, float *values);

/* Encode and decode one block of 256 values, for the types whose scales are found by a search. */
void gguf_encode_q45_k(int bits, const float *values, uint8_t *block); /* bits: 4 or 5 */
void gguf_encode_q6_k(const float *values, uint8_t *block);
void gguf_decode_q45_k(int bits, const uint8_t *block, float *values);
void gguf_decode_q6_k(const uint8_t *block, float *values);

/* Stores a scale in a block, as fp16. */
static inline void gguf_put_half(uint8_t *at, float value)
{
    uint16_t bits;
    dtype_encode(DT_F16, &value, 1, &bits);
    memcpy(at, &bits, 2);
}

static inline float gguf_get_half(const uint8_t *at)
{
    uint16_t bits;
    float    value;
    memcpy(&bits, at, 2);
    dtype_decode(DT_F16, &bits, 1, &value);
    return value;
}
