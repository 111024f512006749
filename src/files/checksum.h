/* The checksums that a hub of models gives its files, by libcrypto, which is opened at run time beside libcurl. */
#pragma once

#include "base/status.h"

typedef enum ChecksumKind {
    CHECKSUM_SHA256,   /* of the bytes: large files (LFS) */
    CHECKSUM_GIT_BLOB, /* SHA-1 of "blob SIZE\0" and the bytes: a file in git */
} ChecksumKind;

enum { CHECKSUM_TEXT = 65 };

/* Lower-case hex and NUL. ERR_UNSUPPORTED when libcrypto isn't installed. */
NODISCARD Status checksum_file(const char *path, ChecksumKind kind, char out_hex[CHECKSUM_TEXT]);
