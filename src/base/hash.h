/* The one hash of bytes: XXH3, 64 bits. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

uint64_t hash_bytes(const void *data, size_t size, uint64_t seed);

/* A hash as files have it: 16 hexadecimal digits, and nothing else. */
bool hash_parse(const char *text, uint64_t *out);
