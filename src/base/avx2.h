/* Intrinsics of AVX2, FMA and F16C, which every supported CPU has. gcc's <immintrin.h> also declares the intrinsics of AVX-512 and later,
 * which costs a quarter of a second per source file. So only files with AVX-512 code include <immintrin.h>. */
#pragma once

#if defined(__clang__) || defined(_IMMINTRIN_H_INCLUDED)
#include <immintrin.h>
#else
#define _IMMINTRIN_H_INCLUDED /* gcc's header of each instruction set refuses to be included without this macro */
#include <smmintrin.h>
#include <avxintrin.h>
#include <avx2intrin.h>
#include <f16cintrin.h>
#include <fmaintrin.h>
#undef _IMMINTRIN_H_INCLUDED
#endif
