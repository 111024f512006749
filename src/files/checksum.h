/* The checksums by which a model hub identifies files. libcrypto computes them; like libcurl, it is opened at run time. */
#pragma once

#include "base/status.h"

typedef enum ChecksumKind {
    CHECKSUM_SHA256,   /* SHA-256 of the bytes: large files (LFS) */
    CHECKSUM_GIT_BLOB, /* SHA-1 of "blob SIZE\0" and the bytes: files in git */
} ChecksumKind;

enum { CHECKSUM_TEXT = 65 };

/* out_hex: lower-case hex and a NUL. ERR_UNSUPPORTED when libcrypto isn't installed. */
NODISCARD Status checksum_file(const char *path, ChecksumKind kind, char out_hex[CHECKSUM_TEXT]);
