/* Decompression of one block of known size, as parquet pages need it. */
#pragma once

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

/* Compression codecs, numbered as in Parquet. */
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

/* Fills dst[0..dst_len) exactly. ERR_INVALID: the data is damaged, or gives more or fewer than dst_len bytes; the caller puts the file's
 * name before the message. ERR_UNSUPPORTED: LZO, or an unknown codec. */
NODISCARD Status codec_decompress(Codec codec, const uint8_t *src, size_t src_len, uint8_t *dst, size_t dst_len);
