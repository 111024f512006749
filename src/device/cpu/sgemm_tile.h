/* One kernel of sgemm.c, for the vectors it defines: VECTOR of LANES floats, tiles of ROWS x 2 vectors.
 * NAME, TARGET (its instruction set), ROW_CASES, and on vectors: ALL, FMA, LOAD, STORE, LOAD_PART, STORE_PART; PARTS(cols)
 * declares what the last two need as part0, part1. */

/* rows and the three flags are constants where it is inlined: accumulators stay in registers. Whole: all columns are there.
 * Narrow: only the first vector's. */
TARGET static inline __attribute__((always_inline)) void NAME(tile)(const int rows, const bool along_rows, const bool whole,
                                                                    const bool narrow, int cols, int64_t k, float alpha, const float *a,
                                                                    int64_t a_stride, const float *b, int64_t b_stride, float *c,
                                                                    int64_t c_stride, bool add, const char *ahead, int64_t step)
{
    VECTOR sum[ROWS][2];
    PARTS(cols);
    /* of rows that lie apart, every third has a pointer: the others are reached from it */
    const float *row[ROWS / 3];
    for (int i = 0; i < ROWS / 3; i++) row[i] = 3 * i < rows ? a + 3 * i * a_stride : a;
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) sum[i][0] = sum[i][1] = ALL(0);
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < (narrow ? LANES : 2 * LANES); j += LINE) __builtin_prefetch(c + i * c_stride + j, 1);
    for (int64_t l = 0; l < k; l++) {
        VECTOR b0 = whole ? LOAD(b) : LOAD_PART(b, part0), b1 = narrow ? b0 : whole ? LOAD(b + LANES) : LOAD_PART(b + LANES, part1);
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
            VECTOR x = along_rows ? ALL(a[i]) : ALL(row[i / 3][i % 3 * a_stride]);
            sum[i][0] = FMA(x, b0, sum[i][0]);
            if (!narrow) sum[i][1] = FMA(x, b1, sum[i][1]);
        }
        __builtin_prefetch(ahead, 0, 2);
        ahead += step;
        b += b_stride;
        a += a_stride;
#pragma GCC unroll 16
        for (int i = 0; i < ROWS / 3; i++) row[i]++;
    }
    VECTOR scale = ALL(alpha);
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
        float *to = c + i * c_stride;
        for (int j = 0; j < (narrow ? 1 : 2); j++, to += LANES) {
            VECTOR old = !add ? ALL(0) : whole ? LOAD(to) : LOAD_PART(to, j ? part1 : part0);
            VECTOR all = FMA(sum[i][j], scale, old);
            if (whole)
                STORE(to, all);
            else
                STORE_PART(to, j ? part1 : part0, all);
        }
    }
}

#define ROW_CASE(rows) \
    case rows: \
        if (cols == 2 * LANES) \
            NAME(tile)(rows, ALONG_ROWS, true, false, cols, k, alpha, a, a_stride, b, b_stride, c, c_stride, add, ahead, step); \
        else if (cols > LANES) \
            NAME(tile)(rows, ALONG_ROWS, false, false, cols, k, alpha, a, a_stride, b, b_stride, c, c_stride, add, ahead, step); \
        else \
            NAME(tile)(rows, ALONG_ROWS, false, true, cols, k, alpha, a, a_stride, b, b_stride, c, c_stride, add, ahead, step); \
        break;

TARGET static void NAME(along_rows)(int rows, int cols, int64_t k, float alpha, const float *a, int64_t a_stride, const float *b,
                                    int64_t b_stride, float *c, int64_t c_stride, bool add, const char *ahead, int64_t step)
{
#define ALONG_ROWS true
    switch (rows) {
        ROW_CASES
    }
#undef ALONG_ROWS
}

TARGET static void NAME(along_depth)(int rows, int cols, int64_t k, float alpha, const float *a, int64_t a_stride, const float *b,
                                     int64_t b_stride, float *c, int64_t c_stride, bool add, const char *ahead, int64_t step)
{
#define ALONG_ROWS false
    switch (rows) {
        ROW_CASES
    }
#undef ALONG_ROWS
}

#undef ROW_CASE
#undef NAME
#undef TARGET
#undef VECTOR
#undef LANES
#undef ROWS
#undef ALL
#undef FMA
#undef LOAD
#undef STORE
#undef PARTS
#undef LOAD_PART
#undef STORE_PART
#undef ROW_CASES
