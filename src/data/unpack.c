#include "data/unpack.h"

#include "base/str.h"

#include <string.h>

/* The most memory for a window or dictionary, 128 MiB: as much as `zstd --long` and more than `xz -9` ask for. */
enum { ZSTD_WINDOW_LOG = 27, XZ_MOST_BYTES = (128 << 20) + (1 << 20), MOST_STEP_BYTES = 1 << 30 };

static bool is_bzip2(Str first)
{
    if (first.len < CODING_BYTES || !str_starts(first, str_of("BZh")) || first.data[3] < '1' || first.data[3] > '9') return false;
    return memcmp(first.data + 4, "\x31\x41\x59\x26\x53\x59", 6) == 0 || memcmp(first.data + 4, "\x17\x72\x45\x38\x50\x90", 6) == 0;
}

Coding coding_of(Str first)
{
    if (str_starts(first, str_of("\x1f\x8b"))) return CODING_GZIP;
    if (str_starts(first, str_of("\x28\xb5\x2f\xfd"))) return CODING_ZSTD;
    if (str_starts(first, (Str){"\xfd\x37\x7a\x58\x5a\x00", 6})) return CODING_XZ;
    return is_bzip2(first) ? CODING_BZIP2 : CODING_PLAIN;
}

const char *coding_name(Coding coding)
{
    static const char *const names[] = {"plain", "gzip", "zstd", "xz", "bzip2"};
    return names[coding];
}

void unpacker_init(Unpacker *unpacker, Coding coding)
{
    *unpacker = (Unpacker){.coding = coding};
    if (coding == CODING_GZIP && inflateInit2(&unpacker->gzip, 15 + 16) != Z_OK) fatal_out_of_memory(0);
    if (coding != CODING_ZSTD) return;
    unpacker->zstd = ZSTD_createDStream();
    if (!unpacker->zstd) fatal_out_of_memory(0);
    CHECK(!ZSTD_isError(ZSTD_DCtx_setParameter(unpacker->zstd, ZSTD_d_windowLogMax, ZSTD_WINDOW_LOG)));
}

void unpacker_deinit(Unpacker *unpacker)
{
    if (unpacker->coding == CODING_GZIP) inflateEnd(&unpacker->gzip);
    ZSTD_freeDStream(unpacker->zstd);
    lzma_end(&unpacker->xz);
    BZ2_bzDecompressEnd(&unpacker->bzip2);
    *unpacker = (Unpacker){0};
}

static const char *gzip_step(Unpacker *unpacker, const unsigned char **in, size_t len, char *out, size_t room, size_t *given)
{
    z_stream *gzip = &unpacker->gzip;
    if (!unpacker->in_member) inflateReset(gzip);
    gzip->next_in = (unsigned char *)*in;
    gzip->avail_in = (unsigned)len;
    gzip->next_out = (unsigned char *)out;
    gzip->avail_out = (unsigned)room;
    int code = inflate(gzip, Z_NO_FLUSH);
    *in = gzip->next_in;
    *given = room - gzip->avail_out;
    unpacker->in_member = code != Z_STREAM_END;
    return code == Z_OK || code == Z_BUF_ERROR || code == Z_STREAM_END ? NULL : gzip->msg ? gzip->msg : "bad stream";
}

static const char *zstd_step(Unpacker *unpacker, const unsigned char **in, size_t len, char *out, size_t room, size_t *given)
{
    ZSTD_inBuffer  input = {*in, len, 0};
    ZSTD_outBuffer output = {out, room, 0};
    size_t         code = ZSTD_decompressStream(unpacker->zstd, &output, &input);
    *in += input.pos;
    *given = output.pos;
    if (ZSTD_isError(code)) return ZSTD_getErrorName(code);
    unpacker->in_member = code != 0;
    return NULL;
}

static const char *xz_error(lzma_ret code)
{
    switch (code) {
    case LZMA_MEMLIMIT_ERROR:
        return "it needs more than 128 MiB of memory to unpack";
    case LZMA_FORMAT_ERROR:
        return "no xz stream";
    case LZMA_OPTIONS_ERROR:
        return "unknown options";
    default:
        return "bad stream";
    }
}

static const char *xz_step(Unpacker *unpacker, const unsigned char **in, size_t len, char *out, size_t room, size_t *given)
{
    lzma_stream *xz = &unpacker->xz;
    if (!unpacker->in_member) {
        lzma_ret code = lzma_stream_decoder(xz, XZ_MOST_BYTES, 0);
        if (code == LZMA_MEM_ERROR) fatal_out_of_memory(0);
        CHECK(code == LZMA_OK);
    }
    xz->next_in = *in;
    xz->avail_in = len;
    xz->next_out = (unsigned char *)out;
    xz->avail_out = room;
    lzma_ret code = lzma_code(xz, LZMA_RUN);
    if (code == LZMA_MEM_ERROR) fatal_out_of_memory(0);
    *in = xz->next_in;
    *given = room - xz->avail_out;
    unpacker->in_member = code != LZMA_STREAM_END;
    return code == LZMA_OK || code == LZMA_BUF_ERROR || code == LZMA_STREAM_END ? NULL : xz_error(code);
}

static const char *bzip2_step(Unpacker *unpacker, const unsigned char **in, size_t len, char *out, size_t room, size_t *given)
{
    bz_stream *bzip2 = &unpacker->bzip2;
    if (!unpacker->in_member) {
        BZ2_bzDecompressEnd(bzip2);
        *bzip2 = (bz_stream){0};
        int code = BZ2_bzDecompressInit(bzip2, 0, 0);
        if (code == BZ_MEM_ERROR) fatal_out_of_memory(0);
        CHECK(code == BZ_OK);
    }
    bzip2->next_in = (char *)*in;
    bzip2->avail_in = (unsigned)len;
    bzip2->next_out = out;
    bzip2->avail_out = (unsigned)room;
    int code = BZ2_bzDecompress(bzip2);
    if (code == BZ_MEM_ERROR) fatal_out_of_memory(0);
    *in = (const unsigned char *)bzip2->next_in;
    *given = room - bzip2->avail_out;
    unpacker->in_member = code != BZ_STREAM_END;
    return code == BZ_OK || code == BZ_STREAM_END ? NULL : code == BZ_DATA_ERROR_MAGIC ? "no bzip2 stream" : "bad stream";
}

const char *unpacker_step(Unpacker *unpacker, const unsigned char **in, const unsigned char *in_end, char *out, size_t room, size_t *given)
{
    typedef const char *(*Step)(Unpacker *, const unsigned char **, size_t, char *, size_t, size_t *);
    static const Step steps[] = {[CODING_GZIP] = gzip_step, [CODING_ZSTD] = zstd_step, [CODING_XZ] = xz_step, [CODING_BZIP2] = bzip2_step};
    *given = 0;
    while (!unpacker->in_member && *in < in_end && **in == 0) ++*in;
    if (!unpacker->in_member && *in == in_end) return NULL;
    size_t len = (size_t)(in_end - *in);
    return steps[unpacker->coding](unpacker, in, len < MOST_STEP_BYTES ? len : MOST_STEP_BYTES, out,
                                   room < MOST_STEP_BYTES ? room : MOST_STEP_BYTES, given);
}
