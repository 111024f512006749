/* SHA-256 (FIPS 180-4) and HMAC-SHA-256 (RFC 2104): used by two processes to prove that they know the same secret. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SHA256_BYTES = 32, SHA256_BLOCK = 64 };

typedef struct Sha256 {
    uint32_t state[8];
    uint64_t bytes; /* number of bytes added so far */
    uint8_t  block[SHA256_BLOCK];
} Sha256;

void sha256_init(Sha256 *sha);
void sha256_add(Sha256 *sha, const void *data, size_t size);
void sha256_end(Sha256 *sha, uint8_t out[SHA256_BYTES]);

void hmac_sha256(const void *key, size_t key_size, const void *data, size_t size, uint8_t out[SHA256_BYTES]);

/* Compares in constant time. */
bool sha256_equal(const uint8_t a[SHA256_BYTES], const uint8_t b[SHA256_BYTES]);
