/* Intrinsics of AVX2, FMA and F16C, which every CPU we run on has. gcc's <immintrin.h> has those of AVX-512 and of later CPUs too, and
 * takes it a quarter of a second in each file: a file with code for AVX-512 includes that one. */
#pragma once

#if defined(__clang__) || defined(_IMMINTRIN_H_INCLUDED)
#include <immintrin.h>
#else
#define _IMMINTRIN_H_INCLUDED /* gcc's headers of one instruction set each ask for it */
#include <smmintrin.h>
#include <avxintrin.h>
#include <avx2intrin.h>
#include <f16cintrin.h>
#include <fmaintrin.h>
#undef _IMMINTRIN_H_INCLUDED
#endif
