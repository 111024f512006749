/* The hash function used for all bytes: XXH3, 64 bits. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

uint64_t hash_bytes(const void *data, size_t size, uint64_t seed);

/* Parses a hash as written in files: exactly 16 hexadecimal digits. */
bool hash_parse(const char *text, uint64_t *out);
