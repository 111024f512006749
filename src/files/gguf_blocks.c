/* Blocks of 32 values, and the table of all types. */
#include "files/gguf_blocks.h"

#include "base/dtype.h"

#include <math.h>

enum { HALF = 16, BLOCK = 2 * HALF };

typedef struct TypeInfo {
    const char *name;
    GgufType    type;
    int         block, bytes;
} TypeInfo;

static const TypeInfo types[] = {
#define GGUF_TYPE(name, number, block, bytes) {#name, GGUF_##name, block, bytes},
#include "files/gguf.def"
#undef GGUF_TYPE
};

static const TypeInfo *find_type(uint32_t number)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if ((uint32_t)types[i].type == number) return &types[i];
    return NULL;
}

const char *gguf_type_name(uint32_t number)
{
    const TypeInfo *info = find_type(number);
    return info ? info->name : NULL;
}

int gguf_block(GgufType type)
{
    return find_type(type)->block;
}

int64_t gguf_bytes(GgufType type, int64_t numel)
{
    const TypeInfo *info = find_type(type);
    CHECK(numel % info->block == 0);
    return numel / info->block * info->bytes;
}

/* 1 / d, or 0 if 1 / d isn't finite: then every code is 0. */
static float inverse_of(float d)
{
    return fabsf(d) > 3e-39f ? 1 / d : 0;
}

/* ---- Q8_0 ---- */

static void encode_q8_0(const float *values, uint8_t *block)
{
    float most = 0;
    for (int i = 0; i < BLOCK; i++) most = fmaxf(most, fabsf(values[i]));
    float d = most / 127, inverse = inverse_of(d);
    gguf_put_half(block, d);
    for (int i = 0; i < BLOCK; i++) block[2 + i] = (uint8_t)(int8_t)roundf(values[i] * inverse);
}

static void decode_q8_0(const uint8_t *block, float *values)
{
    float d = gguf_get_half(block);
    for (int i = 0; i < BLOCK; i++) values[i] = d * (float)(int8_t)block[2 + i];
}

/* ---- 4 and 5 bits: the low four bits of values i and i + 16 share byte i, the fifth bits are a word before them ---- */

static void put_codes(const uint8_t *codes, int bits, uint8_t *at)
{
    uint32_t fifth = 0;
    for (int i = 0; i < BLOCK; i++) fifth |= (uint32_t)(codes[i] >> 4 & 1) << i;
    if (bits == 5) memcpy(at, &fifth, 4);
    at += bits == 5 ? 4 : 0;
    for (int i = 0; i < HALF; i++) at[i] = (uint8_t)((codes[i] & 15) | (codes[i + HALF] & 15) << 4);
}

static void get_codes(const uint8_t *at, int bits, uint8_t *codes)
{
    uint32_t fifth = 0;
    if (bits == 5) memcpy(&fifth, at, 4);
    at += bits == 5 ? 4 : 0;
    for (int i = 0; i < HALF; i++) {
        codes[i] = at[i] & 15;
        codes[i + HALF] = at[i] >> 4;
    }
    for (int i = 0; i < BLOCK; i++) codes[i] |= (uint8_t)((fifth >> i & 1) << 4);
}

static uint8_t code_of(float place, int most)
{
    int code = (int)place;
    return (uint8_t)(code < most ? code : most);
}

/* Q4_0, Q5_0: the value of largest magnitude gets the lowest code. */
static void encode_even(int bits, const float *values, uint8_t *block)
{
    float   most = 0, middle = (float)(1 << (bits - 1));
    uint8_t codes[BLOCK];
    for (int i = 0; i < BLOCK; i++)
        if (fabsf(values[i]) > fabsf(most)) most = values[i];
    float d = most / -middle, inverse = inverse_of(d);
    for (int i = 0; i < BLOCK; i++) codes[i] = code_of(values[i] * inverse + (middle + 0.5f), (1 << bits) - 1);
    gguf_put_half(block, d);
    put_codes(codes, bits, block + 2);
}

static void decode_even(int bits, const uint8_t *block, float *values)
{
    uint8_t codes[BLOCK];
    float   d = gguf_get_half(block);
    get_codes(block + 2, bits, codes);
    for (int i = 0; i < BLOCK; i++) values[i] = d * (float)(codes[i] - (1 << (bits - 1)));
}

/* Q4_1, Q5_1: code 0 stands for the smallest value. */
static void encode_from_least(int bits, const float *values, uint8_t *block)
{
    float   least = values[0], most = values[0];
    uint8_t codes[BLOCK];
    for (int i = 1; i < BLOCK; i++) {
        least = fminf(least, values[i]);
        most = fmaxf(most, values[i]);
    }
    float d = (most - least) / (float)((1 << bits) - 1), inverse = inverse_of(d);
    for (int i = 0; i < BLOCK; i++) codes[i] = code_of((values[i] - least) * inverse + 0.5f, (1 << bits) - 1);
    gguf_put_half(block, d);
    gguf_put_half(block + 2, least);
    put_codes(codes, bits, block + 4);
}

static void decode_from_least(int bits, const uint8_t *block, float *values)
{
    uint8_t codes[BLOCK];
    float   d = gguf_get_half(block), least = gguf_get_half(block + 2);
    get_codes(block + 4, bits, codes);
    for (int i = 0; i < BLOCK; i++) values[i] = d * (float)codes[i] + least;
}

/* ---- all types ---- */

static void encode_block(GgufType type, const float *values, uint8_t *block)
{
    switch (type) {
    case GGUF_F32:
        memcpy(block, values, 4);
        break;
    case GGUF_F16:
        dtype_encode(DT_F16, values, 1, block);
        break;
    case GGUF_BF16:
        dtype_encode(DT_BF16, values, 1, block);
        break;
    case GGUF_Q8_0:
        encode_q8_0(values, block);
        break;
    case GGUF_Q4_0:
        encode_even(4, values, block);
        break;
    case GGUF_Q5_0:
        encode_even(5, values, block);
        break;
    case GGUF_Q4_1:
        encode_from_least(4, values, block);
        break;
    case GGUF_Q5_1:
        encode_from_least(5, values, block);
        break;
    case GGUF_Q4_K:
        gguf_encode_q45_k(4, values, block);
        break;
    case GGUF_Q5_K:
        gguf_encode_q45_k(5, values, block);
        break;
    case GGUF_Q6_K:
        gguf_encode_q6_k(values, block);
        break;
    }
}

static void decode_block(GgufType type, const uint8_t *block, float *values)
{
    switch (type) {
    case GGUF_F32:
        memcpy(values, block, 4);
        break;
    case GGUF_F16:
        *values = gguf_get_half(block);
        break;
    case GGUF_BF16: {
        uint16_t bits;
        memcpy(&bits, block, 2);
        *values = bf16_to_f32(bits);
        break;
    }
    case GGUF_Q8_0:
        decode_q8_0(block, values);
        break;
    case GGUF_Q4_0:
        decode_even(4, block, values);
        break;
    case GGUF_Q5_0:
        decode_even(5, block, values);
        break;
    case GGUF_Q4_1:
        decode_from_least(4, block, values);
        break;
    case GGUF_Q5_1:
        decode_from_least(5, block, values);
        break;
    case GGUF_Q4_K:
        gguf_decode_q45_k(4, block, values);
        break;
    case GGUF_Q5_K:
        gguf_decode_q45_k(5, block, values);
        break;
    case GGUF_Q6_K:
        gguf_decode_q6_k(block, values);
        break;
    }
}

void gguf_encode(GgufType type, const float *values, int64_t numel, void *out)
{
    const TypeInfo *info = find_type(type);
    uint8_t        *block = out;
    CHECK(numel % info->block == 0);
    if (type == GGUF_F32) {
        memcpy(out, values, (size_t)numel * 4);
        return;
    }
    for (int64_t i = 0; i < numel; i += info->block, block += info->bytes) encode_block(type, values + i, block);
}

void gguf_decode(GgufType type, const void *blocks, int64_t numel, float *values)
{
    const TypeInfo *info = find_type(type);
    const uint8_t  *block = blocks;
    CHECK(numel % info->block == 0);
    if (type == GGUF_F32) {
        memcpy(values, blocks, (size_t)numel * 4);
        return;
    }
    for (int64_t i = 0; i < numel; i += info->block, block += info->bytes) decode_block(type, block, values + i);
}
