/* One kernel of sgemm.c, which defines the vectors: VECTOR of LANES floats, tiles of ROWS x 2 vectors. It defines NAME, TARGET (the
 * instruction set), ROW_CASES, and on vectors: ALL, FMA, LOAD, STORE, LOAD_PART, STORE_PART. PARTS(cols) declares part0 and part1 of type
 * PART, which LOAD_PART and STORE_PART take. ADD_PRODUCT(sum, x, y) adds in the sum's own register.
 *
 * Any other instruction of the innermost loop takes the place of a multiply-add: an addition, or a copy or spill of a sum. So the loop
 * takes several steps at a time, and OPAQUE and ADD_PRODUCT keep compilers from adding such instructions for addresses and sums. */

/* sum += a b over `count` steps along the depth. Unless along_rows, every third row of a has a pointer, and the next two rows are addressed
 * from it. */
TARGET static inline __attribute__((always_inline)) void NAME(steps)(const int count, const int rows, const bool along_rows,
                                                                     const bool whole, const bool narrow, PART part0, PART part1,
                                                                     VECTOR sum[ROWS][2], const float *const a[ROWS / 3], int64_t a_stride,
                                                                     const float *b, int64_t b_stride)
{
#pragma GCC unroll 4
    for (int l = 0; l < count; l++) {
        const float *from = b + l * b_stride, *rows_from = a[0] + l * a_stride;
        int64_t      apart = a_stride;
        if (along_rows)
            OPAQUE(rows_from);
        else
            OPAQUE_HERE(apart);
        VECTOR b0 = whole ? LOAD(from) : LOAD_PART(from, part0);
        VECTOR b1 = narrow ? b0 : whole ? LOAD(from + LANES) : LOAD_PART(from + LANES, part1);
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
            VECTOR x = along_rows ? ALL(rows_from[i]) : ALL(a[i / 3][i % 3 * apart + l]);
            if (narrow) { /* x is used once: the multiply-add may load it itself */
                sum[i][0] = FMA(x, b0, sum[i][0]);
                continue;
            }
            ADD_PRODUCT(sum[i][0], x, b0);
            ADD_PRODUCT(sum[i][1], x, b1);
        }
    }
}

/* Advances the pointers to a by `by` elements. */
static inline __attribute__((always_inline)) void NAME(advance)(const bool along_rows, const float *a[ROWS / 3], int64_t by)
{
    a[0] += by;
    OPAQUE(a[0]);
    if (along_rows) return;
#pragma GCC unroll 4
    for (int i = 1; i < ROWS / 3; i++) {
        a[i] += by;
        OPAQUE(a[i]);
    }
}

/* State of a tile while its sums are computed. Pointers are at the next step: in a, in b, and in the data to prefetch. */
#define SUMS NAME(Sums)
#define STREAM_LINES ((ROWS * SGEMM_STEPS + LINE - 1) / LINE)
typedef struct SUMS {
    VECTOR       sum[ROWS][2];
    const float *a[ROWS / 3], *b;
    const char  *ahead, *stream;
} SUMS;

/* Runs until b is at `end`, SGEMM_STEPS at a time. far: for each SGEMM_STEPS it prefetches a row of the next tile's c. */
TARGET static inline __attribute__((always_inline)) void NAME(sums)(const int rows, const bool along_rows, const bool whole,
                                                                    const bool narrow, const bool far, PART part0, PART part1, SUMS *s,
                                                                    const float *end, int64_t a_stride, int64_t b_stride, int64_t step,
                                                                    bool two_lines, const float *next_c, int64_t c_stride)
{
    bool more = two_lines || s->stream;
    while (s->b != end) {
        __builtin_prefetch(s->ahead, 0, 2);
        if (more) {
            if (two_lines) __builtin_prefetch(s->ahead + LINE_BYTES, 0, 2);
            for (int i = 0; s->stream && i < STREAM_LINES; i++) __builtin_prefetch(s->stream + i * LINE_BYTES, 0, 2);
            if (s->stream) s->stream += STREAM_LINES * LINE_BYTES;
        }
        s->ahead += step;
        for (int j = 0; far && j < 2 * LANES; j += LINE) __builtin_prefetch(next_c + j, 1, 2);
        if (far) next_c += c_stride;
        NAME(steps)(SGEMM_STEPS, rows, along_rows, whole, narrow, part0, part1, s->sum, s->a, a_stride, s->b, b_stride);
        s->b += SGEMM_STEPS * b_stride;
        NAME(advance)(along_rows, s->a, along_rows ? SGEMM_STEPS * a_stride : SGEMM_STEPS);
        OPAQUE(s->b);
    }
}

/* The steps that remain of the depth after whole turns of SGEMM_STEPS. */
TARGET static inline __attribute__((always_inline)) void NAME(last_steps)(const int rows, const bool along_rows, const bool whole,
                                                                          const bool narrow, PART part0, PART part1, SUMS *s, int64_t count,
                                                                          int64_t a_stride, int64_t b_stride)
{
    for (int64_t l = 0; l < count; l++) {
        NAME(steps)(1, rows, along_rows, whole, narrow, part0, part1, s->sum, s->a, a_stride, s->b, b_stride);
        s->b += b_stride;
        NAME(advance)(along_rows, s->a, along_rows ? a_stride : 1);
    }
}

/* Begins a tile: its sums are 0, its pointers at a and b. Unrolled, so that all of them stay in registers. */
TARGET static inline __attribute__((always_inline)) void NAME(begin)(const int rows, const bool along_rows, SUMS *s, const float *a,
                                                                     int64_t a_stride, const float *b)
{
    s->b = b;
#pragma GCC unroll 4
    for (int i = 0; i < ROWS / 3; i++) s->a[i] = !along_rows && 3 * i < rows ? a + 3 * i * a_stride : a;
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) s->sum[i][0] = s->sum[i][1] = ALL(0);
}

TARGET static inline __attribute__((always_inline)) void NAME(store)(const int rows, const bool whole, const bool narrow, PART part0,
                                                                     PART part1, SUMS *s, VECTOR alpha, bool add, float *c,
                                                                     int64_t c_stride)
{
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
        float *to = c + i * c_stride;
        for (int j = 0; j < (narrow ? 1 : 2); j++, to += LANES) {
            VECTOR old = !add ? ALL(0) : whole ? LOAD(to) : LOAD_PART(to, j ? part1 : part0);
            VECTOR all = FMA(s->sum[i][j], alpha, old);
            if (whole)
                STORE(to, all);
            else
                STORE_PART(to, j ? part1 : part0, all);
        }
    }
}

/* rows and the three flags are constants where this is inlined, so that accumulators stay in registers. whole: all columns exist. narrow:
 * only columns of the first vector exist. */
TARGET static inline __attribute__((always_inline)) void NAME(tile)(const int rows, const bool along_rows, const bool whole,
                                                                    const bool narrow, int cols, int64_t k, float alpha, const float *a,
                                                                    int64_t a_stride, const float *b, int64_t b_stride, float *c,
                                                                    int64_t c_stride, int how, const char *ahead, int64_t step,
                                                                    const char *stream, const float *next_c)
{
    SUMS s = {.ahead = ahead, .stream = stream};
    PARTS(cols);
    NAME(begin)(rows, along_rows, &s, a, a_stride, b);
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < (narrow ? LANES : 2 * LANES); j += LINE) __builtin_prefetch(c + i * c_stride + j, 1);
    int64_t      many = k / SGEMM_STEPS;
    bool         far = rows == ROWS && whole && next_c && many > rows, two = how & SGEMM_TWO_LINES;
    const float *end = b + many * SGEMM_STEPS * b_stride, *end_far = b + rows * SGEMM_STEPS * b_stride;
    if (far) NAME(sums)(rows, along_rows, whole, narrow, true, part0, part1, &s, end_far, a_stride, b_stride, step, two, next_c, c_stride);
    NAME(sums)(rows, along_rows, whole, narrow, false, part0, part1, &s, end, a_stride, b_stride, step, two, NULL, 0);
    NAME(last_steps)(rows, along_rows, whole, narrow, part0, part1, &s, k % SGEMM_STEPS, a_stride, b_stride);
    NAME(store)(rows, whole, narrow, part0, part1, &s, ALL(alpha), how & SGEMM_ADD, c, c_stride);
}

/* Computes whole tiles side by side. Nothing is prefetched: prefetches, and a call for each tile, would take a tenth of a shallow product's
 * time. */
TARGET static inline __attribute__((always_inline)) void NAME(band)(const bool along_rows, int64_t tiles, int64_t k, float alpha,
                                                                    const float *a, int64_t a_stride, const float *b, int64_t b_panel,
                                                                    int64_t b_stride, float *c, int64_t c_stride, int how)
{
    const int cols = 2 * LANES;
    PARTS(cols);
    for (int64_t j = 0; j < tiles; j++, b += b_panel, c += cols) {
        SUMS         s;
        const float *end = b + k / SGEMM_STEPS * SGEMM_STEPS * b_stride;
        NAME(begin)(ROWS, along_rows, &s, a, a_stride, b);
        while (s.b != end) {
            NAME(steps)(SGEMM_STEPS, ROWS, along_rows, true, false, part0, part1, s.sum, s.a, a_stride, s.b, b_stride);
            s.b += SGEMM_STEPS * b_stride;
            NAME(advance)(along_rows, s.a, along_rows ? SGEMM_STEPS * a_stride : SGEMM_STEPS);
            OPAQUE(s.b);
        }
        NAME(last_steps)(ROWS, along_rows, true, false, part0, part1, &s, k % SGEMM_STEPS, a_stride, b_stride);
        NAME(store)(ROWS, true, false, part0, part1, &s, ALL(alpha), how & SGEMM_ADD, c, c_stride);
    }
}

#define TILE(rows, whole, narrow, a_stride, b_stride) \
    NAME(tile)(rows, ALONG_ROWS, whole, narrow, cols, k, alpha, a, a_stride, b, b_stride, c, c_stride, how, ahead, step, stream, next_c)

/* Strides of packed operands are constants: the loop needs no additions to go from one step to the next. */
#define ROW_CASE(rows) \
    case rows: \
        if (rows == ROWS && cols == 2 * LANES && b_stride == 2 * LANES && (!ALONG_ROWS || a_stride == ROWS)) \
            TILE(rows, true, false, ALONG_ROWS ? ROWS : a_stride, 2 * LANES); \
        else if (cols == 2 * LANES) \
            TILE(rows, true, false, a_stride, b_stride); \
        else if (cols > LANES) \
            TILE(rows, false, false, a_stride, b_stride); \
        else \
            TILE(rows, false, true, a_stride, b_stride); \
        break;

TARGET static void NAME(along_rows)(int rows, int cols, int64_t k, float alpha, const float *a, int64_t a_stride, const float *b,
                                    int64_t b_stride, float *c, int64_t c_stride, int how, const char *ahead, int64_t step,
                                    const char *stream, const float *next_c)
{
#define ALONG_ROWS true
    switch (rows) {
        ROW_CASES
    }
#undef ALONG_ROWS
}

TARGET static void NAME(along_depth)(int rows, int cols, int64_t k, float alpha, const float *a, int64_t a_stride, const float *b,
                                     int64_t b_stride, float *c, int64_t c_stride, int how, const char *ahead, int64_t step,
                                     const char *stream, const float *next_c)
{
#define ALONG_ROWS false
    switch (rows) {
        ROW_CASES
    }
#undef ALONG_ROWS
}

#define BAND(along_rows, a_stride, b_stride) NAME(band)(along_rows, tiles, k, alpha, a, a_stride, b, b_panel, b_stride, c, c_stride, how)

TARGET static void NAME(band_along_rows)(int64_t tiles, int64_t k, float alpha, const float *a, int64_t a_stride, const float *b,
                                         int64_t b_panel, int64_t b_stride, float *c, int64_t c_stride, int how)
{
    if (a_stride == ROWS && b_stride == 2 * LANES)
        BAND(true, ROWS, 2 * LANES);
    else
        BAND(true, a_stride, b_stride);
}

TARGET static void NAME(band_along_depth)(int64_t tiles, int64_t k, float alpha, const float *a, int64_t a_stride, const float *b,
                                          int64_t b_panel, int64_t b_stride, float *c, int64_t c_stride, int how)
{
    if (b_stride == 2 * LANES)
        BAND(false, a_stride, 2 * LANES);
    else
        BAND(false, a_stride, b_stride);
}

#undef BAND
#undef ROW_CASE
#undef TILE
#undef SUMS
#undef STREAM_LINES
#undef NAME
#undef TARGET
#undef VECTOR
#undef LANES
#undef ROWS
#undef ALL
#undef FMA
#undef ADD_PRODUCT
#undef PART
#undef LOAD
#undef STORE
#undef PARTS
#undef LOAD_PART
#undef STORE_PART
#undef ROW_CASES
