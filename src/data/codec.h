/* Decompression of one block of known size, as parquet pages need it. */
#pragma once

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

/* Parquet's numbers. */
typedef enum Codec {
    CODEC_NONE,
    CODEC_SNAPPY,
    CODEC_GZIP,
    CODEC_LZO,
    CODEC_BROTLI,
    CODEC_LZ4_HADOOP,
    CODEC_ZSTD,
    CODEC_LZ4,
    CODEC_COUNT
} Codec;

/* dst[0..dst_len) is filled exactly: more, less or damaged data is ERR_INVALID without a place (the caller prefixes it);
 * LZO and unknown numbers are ERR_UNSUPPORTED. */
NODISCARD Status codec_decompress(Codec codec, const uint8_t *src, size_t src_len, uint8_t *dst, size_t dst_len);
