/* The sequence of floats that conversions are tested with; tests/oracle/make_dtypes.py has the same. */
#pragma once

#include <stdint.h>
#include <string.h>

/* Float i of the sequence: for even i any bits; for odd i magnitudes from 2^-31 to 2^32. */
static float random_float(uint32_t i)
{
    uint32_t w = (i ^ i >> 16) * 0x85EBCA6Bu;
    float    value;
    w = (w ^ w >> 13) * 0xC2B2AE35u;
    w ^= w >> 16;
    if (i & 1) w = (w & 0x807FFFFFu) | (96 + (w >> 23 & 63)) << 23;
    memcpy(&value, &w, 4);
    return value;
}
