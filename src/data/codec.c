/* Snappy is implemented here (its format is a page long: github.com/google/snappy, format_description.txt). Libraries decompress the
 * rest. */
#include "data/codec.h"

#include <brotli/decode.h>
#include <lz4.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>

static bool read_varint32(const uint8_t **at, const uint8_t *end, uint32_t *out)
{
    uint32_t value = 0;
    for (int shift = 0; shift < 35; shift += 7) {
        if (*at == end) return false;
        uint8_t byte = *(*at)++;
        value |= (uint32_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            *out = value;
            return true;
        }
    }
    return false;
}

/* Reads an integer of `bytes` (1..4) little-endian bytes; false: the input is too short. */
static bool read_bytes(const uint8_t **at, const uint8_t *end, int bytes, uint32_t *out)
{
    if (end - *at < bytes) return false;
    *out = 0;
    for (int i = 0; i < bytes; i++) *out |= (uint32_t) * (*at)++ << (8 * i);
    return true;
}

/* Reads a tag. *offset 0: copy the `length` input bytes that follow; else copy `length` bytes from `offset` before the output's end. */
static bool snappy_tag(const uint8_t **at, const uint8_t *end, uint32_t *length, uint32_t *offset)
{
    uint8_t tag = *(*at)++;
    *offset = 0;
    switch (tag & 3) {
    case 0:
        *length = tag >> 2;
        if (*length >= 60 && !read_bytes(at, end, (int)*length - 59, length)) return false;
        return ++*length != 0;
    case 1:
        *length = 4 + (tag >> 2 & 7);
        if (!read_bytes(at, end, 1, offset)) return false;
        *offset |= (uint32_t)(tag >> 5) << 8;
        return *offset != 0;
    case 2:
        *length = 1u + (tag >> 2);
        return read_bytes(at, end, 2, offset) && *offset != 0;
    default:
        *length = 1u + (tag >> 2);
        return read_bytes(at, end, 4, offset) && *offset != 0;
    }
}

static bool snappy_decompress(const uint8_t *src, size_t src_len, uint8_t *dst, size_t dst_len)
{
    const uint8_t *at = src, *end = src + src_len;
    uint32_t       total, length, offset;
    size_t         done = 0;
    if (!read_varint32(&at, end, &total) || total != dst_len) return false;
    while (at < end) {
        if (!snappy_tag(&at, end, &length, &offset) || length > dst_len - done) return false;
        if (offset == 0) {
            if (length > (size_t)(end - at)) return false;
            memcpy(dst + done, at, length);
            at += length;
        } else {
            if (offset > done) return false;
            if (offset >= length)
                memcpy(dst + done, dst + done - offset, length);
            else
                for (uint32_t i = 0; i < length; i++) dst[done + i] = dst[done + i - offset]; /* ranges overlap: the bytes repeat */
        }
        done += length;
    }
    return done == dst_len;
}

/* The data may be several gzip members, one after the other. */
static bool gzip_decompress(const uint8_t *src, size_t src_len, uint8_t *dst, size_t dst_len)
{
    z_stream stream = {.next_in = (uint8_t *)src, .avail_in = (uInt)src_len, .next_out = dst, .avail_out = (uInt)dst_len};
    uint8_t  spare; /* an empty output still needs a call that sees the member's end */
    if (dst_len == 0) {
        stream.next_out = &spare;
        stream.avail_out = 1;
    }
    if (src_len > UINT32_MAX || dst_len > UINT32_MAX || inflateInit2(&stream, 15 + 32) != Z_OK) return false;
    int code = Z_OK;
    while (code == Z_OK) {
        code = inflate(&stream, Z_NO_FLUSH);
        if (code == Z_STREAM_END && stream.avail_in > 0) code = inflateReset(&stream);
    }
    inflateEnd(&stream);
    return code == Z_STREAM_END && stream.avail_out == (dst_len == 0);
}

static uint32_t read_be32(const uint8_t *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static bool lz4_block(const uint8_t *src, size_t src_len, uint8_t *dst, size_t dst_len)
{
    if (src_len > INT32_MAX || dst_len > INT32_MAX) return false;
    return LZ4_decompress_safe((const char *)src, (char *)dst, (int)src_len, (int)dst_len) == (int)dst_len;
}

/* Hadoop's framing: repeated groups of uncompressed size, compressed size (both 4 bytes, big-endian) and block. Some writers left the sizes
 * out: then the input is one block. */
static bool lz4_hadoop(const uint8_t *src, size_t src_len, uint8_t *dst, size_t dst_len)
{
    size_t at = 0, done = 0;
    while (src_len - at >= 8) {
        size_t whole = read_be32(src + at), packed = read_be32(src + at + 4);
        if (whole > dst_len - done || packed > src_len - at - 8) break;
        if (!lz4_block(src + at + 8, packed, dst + done, whole)) break;
        at += 8 + packed;
        done += whole;
    }
    return (at == src_len && done == dst_len) || lz4_block(src, src_len, dst, dst_len);
}

static bool brotli_decompress(const uint8_t *src, size_t src_len, uint8_t *dst, size_t dst_len)
{
    size_t given = dst_len;
    return BrotliDecoderDecompress(src_len, src, &given, dst) == BROTLI_DECODER_RESULT_SUCCESS && given == dst_len;
}

static bool zstd_decompress(const uint8_t *src, size_t src_len, uint8_t *dst, size_t dst_len)
{
    size_t given = ZSTD_decompress(dst, dst_len, src, src_len);
    return !ZSTD_isError(given) && given == dst_len;
}

Status codec_decompress(Codec codec, const uint8_t *src, size_t src_len, uint8_t *dst, size_t dst_len)
{
    typedef bool (*Decompress)(const uint8_t *, size_t, uint8_t *, size_t);
    static const struct {
        const char *name;
        Decompress  decompress;
    } codecs[CODEC_COUNT] = {
        [CODEC_NONE] = {"none", NULL},
        [CODEC_SNAPPY] = {"snappy", snappy_decompress},
        [CODEC_GZIP] = {"gzip", gzip_decompress},
        [CODEC_LZO] = {"LZO", NULL},
        [CODEC_BROTLI] = {"brotli", brotli_decompress},
        [CODEC_LZ4_HADOOP] = {"LZ4 (Hadoop)", lz4_hadoop},
        [CODEC_ZSTD] = {"zstd", zstd_decompress},
        [CODEC_LZ4] = {"LZ4", lz4_block},
    };
    FAIL_IF((unsigned)codec >= CODEC_COUNT, ERR_UNSUPPORTED, "compression %d is unknown", (int)codec);
    if (src_len == 0 && dst_len == 0) return OK; /* some writers store an empty block as no bytes */
    if (codec == CODEC_NONE) {
        FAIL_IF(src_len != dst_len, ERR_INVALID, "an uncompressed block of %zu bytes, want %zu", src_len, dst_len);
        memcpy(dst, src, dst_len);
        return OK;
    }
    FAIL_IF(!codecs[codec].decompress, ERR_UNSUPPORTED, "compression %s is not supported; rewrite the file with zstd, snappy or gzip",
            codecs[codec].name);
    FAIL_IF(!codecs[codec].decompress(src, src_len, dst, dst_len), ERR_INVALID, "damaged %s data", codecs[codec].name);
    return OK;
}
