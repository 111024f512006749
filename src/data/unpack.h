/* Unpacking a stream of bytes piece by piece: gzip, zstd, xz, bzip2. Members (zstd: frames) may follow each other, and zero
 * bytes between or after them are skipped: some programs pad files with zeros. */
#pragma once

#include "base/status.h"
#include "base/strbuf.h"

#include <bzlib.h>
#include <lzma.h>
#include <zlib.h>
#include <zstd.h>

typedef enum Coding { CODING_PLAIN, CODING_GZIP, CODING_ZSTD, CODING_XZ, CODING_BZIP2 } Coding;

/* coding_of needs at most this many first bytes of a file. */
enum { CODING_BYTES = 10 };

/* The coding by a file's first bytes; CODING_PLAIN: the bytes show no other coding. */
Coding coding_of(Str first);

typedef struct Unpacker {
    Coding        coding;
    bool          in_member; /* inside a member: the input must not end here */
    z_stream      gzip;
    ZSTD_DStream *zstd;
    lzma_stream   xz;
    bz_stream     bzip2;
} Unpacker;

void unpacker_init(Unpacker *unpacker, Coding coding); /* coding: not CODING_PLAIN */
void unpacker_deinit(Unpacker *unpacker);              /* zero-initialised is fine */

/* Unpacks from [*in, in_end) into out[0..room) and moves *in after the bytes it took. *given: bytes written. Returns NULL, or why the data
 * can't be unpacked. */
const char *unpacker_step(Unpacker *unpacker, const unsigned char **in, const unsigned char *in_end, char *out, size_t room, size_t *given);
/* "gzip", for people. */
const char *coding_name(Coding coding);
