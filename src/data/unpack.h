/* Unpacking a stream of bytes piece by piece: gzip, zstd, xz, bzip2. Members (zstd: frames) may follow each other, and zero
 * bytes between or behind them are skipped, as the programs that make such files pad them. */
#pragma once

#include "base/status.h"
#include "base/strbuf.h"

#include <bzlib.h>
#include <lzma.h>
#include <zlib.h>
#include <zstd.h>

typedef enum Coding { CODING_PLAIN, CODING_GZIP, CODING_ZSTD, CODING_XZ, CODING_BZIP2 } Coding;

/* As many first bytes tell every coding. */
enum { CODING_BYTES = 10 };

/* By a file's first bytes; CODING_PLAIN where they are of none. */
Coding coding_of(Str first);

typedef struct Unpacker {
    Coding        coding;
    bool          in_member; /* the input must not end here */
    z_stream      gzip;
    ZSTD_DStream *zstd;
    lzma_stream   xz;
    bz_stream     bzip2;
} Unpacker;

void unpacker_init(Unpacker *unpacker, Coding coding); /* not CODING_PLAIN */
void unpacker_deinit(Unpacker *unpacker);              /* zero-initialised is fine */

/* Unpacks from *in on into out[0..room) and moves *in behind what it took. NULL, or why the data can't be unpacked. */
const char *unpacker_step(Unpacker *unpacker, const unsigned char **in, const unsigned char *in_end, char *out, size_t room, size_t *given);
/* "gzip", for people. */
const char *coding_name(Coding coding);
