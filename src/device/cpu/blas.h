/* OpenBLAS, called single-threaded from any of our threads: the only place that knows of it. Matrices are row-major
 * f32. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Ends OpenBLAS's own threads and chooses its kernels for this CPU, once a process; blas_sgemm does it too where nobody
 * did. Thread-safe against itself, but it sets an environment variable for a moment: call it before starting threads
 * that read the environment. */
void blas_init(void);

/* At most so many threads may be in blas_sgemm at once: each holds one of OpenBLAS's 128 packing buffers, and where those run out its
 * way of adding more crashes. */
enum { BLAS_MAX_THREADS = 128 };

/* The kernels in use: "SkylakeX" (AVX-512) or "Haswell" (AVX2). */
const char *blas_core_name(void);

/* c (m,n) = alpha op(a) op(b) + beta c, op(a) (m,k), op(b) (k,n); trans_a: a is stored (k,m). lda, ldb, ldc: elements
 * from a stored row to the next. beta 0 does not read c. Runs on the calling thread alone; the result's bits depend on
 * shapes and values only. Thread-safe. */
void blas_sgemm(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
                const float *b, int64_t ldb, float beta, float *c, int64_t ldc);
