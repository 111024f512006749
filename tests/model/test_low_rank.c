/* Low-rank approximations, checked by their definition: orthogonal factors, singular values that leave the smallest rest, and QR's zeros
 * and signs. */
#include "model/low_rank.h"

#include "test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* w = sum_k s_k u_k v_k^T with s_k = decay^k and random orthonormal u and v, of which the first `count` are returned. */
static void make_matrix(int64_t m, int64_t n, double decay, int64_t count, float *w, double *u, double *v)
{
    int64_t  k = m < n ? m : n;
    double  *us = malloc((size_t)(k * m) * sizeof *us), *vs = malloc((size_t)(k * n) * sizeof *vs);
    double  *sides[] = {us, vs};
    int64_t  lengths[] = {m, n};
    uint64_t state = 9;
    for (int side = 0; side < 2; side++)
        for (int64_t i = 0; i < k; i++) {
            double *x = sides[side] + i * lengths[side], norm = 0;
            for (int64_t c = 0; c < lengths[side]; c++)
                x[c] = (double)((state = state * 6364136223846793005u + 1442695040888963407u) >> 33) * 0x1p-30 - 1;
            for (int pass = 0; pass < 2; pass++)
                for (int64_t j = 0; j < i; j++) {
                    const double *y = sides[side] + j * lengths[side];
                    double        part = 0;
                    for (int64_t c = 0; c < lengths[side]; c++) part += x[c] * y[c];
                    for (int64_t c = 0; c < lengths[side]; c++) x[c] -= part * y[c];
                }
            for (int64_t c = 0; c < lengths[side]; c++) norm += x[c] * x[c];
            for (int64_t c = 0; c < lengths[side]; c++) x[c] /= sqrt(norm);
        }
    for (int64_t i = 0; i < m; i++)
        for (int64_t c = 0; c < n; c++) {
            double sum = 0;
            for (int64_t j = 0; j < k; j++) sum += pow(decay, (double)j) * us[j * m + i] * vs[j * n + c];
            w[i * n + c] = (float)sum;
        }
    memcpy(u, us, (size_t)(count * m) * sizeof *u);
    memcpy(v, vs, (size_t)(count * n) * sizeof *v);
    free(us);
    free(vs);
}

static void expect_svd(int64_t m, int64_t n, int64_t r, double decay, ThreadPool *pool)
{
    float  *w = malloc((size_t)(m * n) * sizeof *w), *a = malloc((size_t)(r * n) * sizeof *a), *b = malloc((size_t)(m * r) * sizeof *b);
    double *u = malloc((size_t)(r * m) * sizeof *u), *v = malloc((size_t)(r * n) * sizeof *v), residual, worst = 0;
    make_matrix(m, n, decay, r, w, u, v);
    low_rank_svd(pool, w, m, n, r, a, b, &residual);
    for (int64_t i = 0; i < m; i++)
        for (int64_t c = 0; c < n; c++) {
            double got = 0, want = 0;
            for (int64_t k = 0; k < r; k++) {
                got += (double)b[i * r + k] * (double)a[k * n + c];
                want += pow(decay, (double)k) * u[k * m + i] * v[k * n + c];
            }
            worst = fmax(worst, fabs(got - want));
        }
    if (!(worst < 2e-6) || !(residual < 1e-7))
        test_fail(__FILE__, __LINE__, "(%lld, %lld) of rank %lld: off by %g, residual %g", (long long)m, (long long)n, (long long)r, worst,
                  residual);
    for (int64_t k = 0; k < r; k++) { /* both factors contain sqrt(s) */
        double of_a = 0, of_b = 0;
        for (int64_t c = 0; c < n; c++) of_a += (double)a[k * n + c] * (double)a[k * n + c];
        for (int64_t i = 0; i < m; i++) of_b += (double)b[i * r + k] * (double)b[i * r + k];
        EXPECT_NEAR(of_a, pow(decay, (double)k), 1e-5);
        EXPECT_NEAR(of_b, pow(decay, (double)k), 1e-5);
    }
    free(w);
    free(a);
    free(b);
    free(u);
    free(v);
}

static void singular_vectors_are_the_largest(void)
{
    expect_svd(24, 16, 4, 0.8, NULL);
    expect_svd(16, 24, 16, 0.9, NULL);
    expect_svd(1, 5, 1, 0.5, NULL);
    expect_svd(300, 220, 8, 0.9, NULL);
    expect_svd(220, 300, 4, 0.97, NULL);
}

static void threads_change_nothing(void)
{
    enum { M = 260, N = 210, R = 6 };
    static float w[M * N], a[2][R * N], b[2][M * R];
    ThreadPool  *pool;
    double       residual[2];
    EXPECT_OK(pool_create(3, &pool));
    for (int i = 0; i < M * N; i++) w[i] = (float)sin(0.37 * i * i);
    for (int i = 0; i < 2; i++) low_rank_svd(i ? pool : NULL, w, M, N, R, a[i], b[i], &residual[i]);
    EXPECT(memcmp(a[0], a[1], sizeof a[0]) == 0 && memcmp(b[0], b[1], sizeof b[0]) == 0 && residual[0] == residual[1]);
    EXPECT(residual[0] < 1e-7);
    for (int i = 0; i < 2; i++) low_rank_qr(i ? pool : NULL, w, M, N, R, a[i], b[i]);
    EXPECT(memcmp(a[0], a[1], sizeof a[0]) == 0 && memcmp(b[0], b[1], sizeof b[0]) == 0);
    pool_destroy(pool);
}

/* Matrices of rank 1 and zero matrices have few vectors. */
static void poor_matrices_have_few_vectors(void)
{
    enum { M = 12, N = 9, R = 3 };
    float  w[M * N] = {0}, a[R * N], b[M * R];
    double residual;
    low_rank_svd(NULL, w, M, N, R, a, b, &residual);
    for (int i = 0; i < M * R; i++) EXPECT(b[i] == 0);
    for (int i = 0; i < M * N; i++) w[i] = (float)((i / N + 1) * (i % N - 2));
    low_rank_svd(NULL, w, M, N, R, a, b, &residual);
    for (int i = 0; i < M; i++)
        for (int c = 0; c < N; c++) {
            double got = 0;
            for (int k = 0; k < R; k++) got += (double)b[i * R + k] * (double)a[k * N + c];
            EXPECT_NEAR(got, w[i * N + c], 1e-4);
        }
}

static void qr_is_lapacks(void)
{
    enum { M = 7, N = 5, R = 3 };
    float w[M * N], a[R * N], b[M * R];
    for (int i = 0; i < M * N; i++) w[i] = (float)sin(1 + 2.3 * i);
    low_rank_qr(NULL, w, M, N, R, a, b);
    for (int k = 0; k < R; k++) {
        for (int j = 0; j < R; j++) {
            double product = 0;
            for (int i = 0; i < M; i++) product += (double)b[i * R + k] * (double)b[i * R + j];
            EXPECT_NEAR(product, k == j, 1e-6);
        }
        for (int c = 0; c < k; c++) EXPECT(a[k * N + c] == 0);
    }
    EXPECT(a[0] < 0 && w[0] > 0); /* the sign is opposite to the first element's */
    for (int i = 0; i < M; i++)   /* the first columns are complete */
        for (int c = 0; c < R; c++) {
            double got = 0;
            for (int k = 0; k < R; k++) got += (double)b[i * R + k] * (double)a[k * N + c];
            EXPECT_NEAR(got, w[i * N + c], 1e-6);
        }
}

TEST_MAIN(TEST(singular_vectors_are_the_largest), TEST(threads_change_nothing), TEST(poor_matrices_have_few_vectors), TEST(qr_is_lapacks))
