/* The one hash of bytes: XXH3, 64 bits. */
#pragma once

#include <stddef.h>
#include <stdint.h>

uint64_t hash_bytes(const void *data, size_t size, uint64_t seed);
