#include "base/sha256.h"

#include <string.h>

static const uint32_t constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be,
    0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa,
    0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85,
    0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3,
    0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f,
    0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t turn(uint32_t x, int n)
{
    return x >> n | x << (32 - n);
}

static void add_block(Sha256 *sha, const uint8_t *block)
{
    uint32_t w[64], s[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 | (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + (turn(a, 7) ^ turn(a, 18) ^ a >> 3) + w[i - 7] + (turn(b, 17) ^ turn(b, 19) ^ b >> 10);
    }
    memcpy(s, sha->state, sizeof s);
    for (int i = 0; i < 64; i++) {
        uint32_t choice = (s[4] & s[5]) ^ (~s[4] & s[6]), majority = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
        uint32_t first = s[7] + (turn(s[4], 6) ^ turn(s[4], 11) ^ turn(s[4], 25)) + choice + constants[i] + w[i];
        uint32_t second = (turn(s[0], 2) ^ turn(s[0], 13) ^ turn(s[0], 22)) + majority;
        memmove(s + 1, s, 7 * sizeof *s);
        s[4] += first;
        s[0] = first + second;
    }
    for (int i = 0; i < 8; i++) sha->state[i] += s[i];
}

void sha256_init(Sha256 *sha)
{
    *sha = (Sha256){.state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19}};
}

void sha256_add(Sha256 *sha, const void *data, size_t size)
{
    const uint8_t *at = data;
    while (size) {
        size_t used = sha->bytes % SHA256_BLOCK, n = SHA256_BLOCK - used < size ? SHA256_BLOCK - used : size;
        memcpy(sha->block + used, at, n);
        sha->bytes += n;
        at += n, size -= n;
        if (used + n == SHA256_BLOCK) add_block(sha, sha->block);
    }
}

void sha256_end(Sha256 *sha, uint8_t out[SHA256_BYTES])
{
    uint64_t bits = 8 * sha->bytes;
    uint8_t  length[8], one = 0x80, zero = 0;
    for (int i = 0; i < 8; i++) length[i] = (uint8_t)(bits >> (56 - 8 * i));
    sha256_add(sha, &one, 1);
    while (sha->bytes % SHA256_BLOCK != SHA256_BLOCK - 8) sha256_add(sha, &zero, 1);
    sha256_add(sha, length, 8);
    for (int i = 0; i < SHA256_BYTES; i++) out[i] = (uint8_t)(sha->state[i / 4] >> (24 - 8 * (i % 4)));
}

void hmac_sha256(const void *key, size_t key_size, const void *data, size_t size, uint8_t out[SHA256_BYTES])
{
    uint8_t inner[SHA256_BLOCK] = {0}, outer[SHA256_BLOCK];
    Sha256  sha;
    sha256_init(&sha);
    if (key_size > SHA256_BLOCK) {
        sha256_add(&sha, key, key_size);
        sha256_end(&sha, inner);
    } else if (key_size) {
        memcpy(inner, key, key_size);
    }
    for (int i = 0; i < SHA256_BLOCK; i++) {
        outer[i] = inner[i] ^ 0x5c;
        inner[i] ^= 0x36;
    }
    sha256_init(&sha);
    sha256_add(&sha, inner, sizeof inner);
    sha256_add(&sha, data, size);
    sha256_end(&sha, out);
    sha256_init(&sha);
    sha256_add(&sha, outer, sizeof outer);
    sha256_add(&sha, out, SHA256_BYTES);
    sha256_end(&sha, out);
}

bool sha256_equal(const uint8_t a[SHA256_BYTES], const uint8_t b[SHA256_BYTES])
{
    uint8_t differ = 0;
    for (int i = 0; i < SHA256_BYTES; i++) differ |= a[i] ^ b[i];
    return differ == 0;
}
