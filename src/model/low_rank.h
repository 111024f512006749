/* A low-rank part of a matrix: the part of its largest singular values, or the first columns of its QR. Results don't depend on the number
 * of threads. */
#pragma once

#include "base/pool.h"
#include "base/status.h"

/* w (m, n) ~ b (m, r) a (r, n), r <= m, n. pool may be NULL. */

/* From the r largest singular values s: a = sqrt(s) v^T, b = u sqrt(s); in each row of a the element of largest magnitude is positive.
 * *out_residual: the largest |w^T w v - s^2 v| over the largest s^2. It is 1e-8 or less, unless hardly any singular value is larger than
 * the rest. */
void low_rank_svd(ThreadPool *pool, const float *w, int64_t m, int64_t n, int64_t r, float *a, float *b, double *out_residual);

/* w = Q R by Householder's reflections: a = the first r rows of R, b = the first r columns of Q, with LAPACK's signs. */
void low_rank_qr(ThreadPool *pool, const float *w, int64_t m, int64_t n, int64_t r, float *a, float *b);
