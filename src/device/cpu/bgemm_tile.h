/* A tile of bgemm.c, which defines VECTOR (of LANES lanes), PANEL (a tile has PANEL x 2 vectors), ROWS (rows at a time), NAME, TARGET (its
 * instruction set) and STEPS (steps of a block, alternating between the chains). On vectors it defines ALL (broadcasts a lane of a), LOAD,
 * STORE, ADD and ADD_PRODUCT, which adds in the sum's own register. */

/* Adds a block of the depth to the sums; `first`: stores it as the sums. ROWS is so small that both chains stay in registers. */
TARGET static inline __attribute__((always_inline)) void NAME(block)(const bool first, const float *a, const float *b, float *sums)
{
    VECTOR chain[2][ROWS][2];
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; i++) chain[0][i][0] = chain[0][i][1] = chain[1][i][0] = chain[1][i][1] = ALL(0);
    for (int step = 0; step < STEPS; step += UNROLLED) {
#pragma GCC unroll 4
        for (int s = 0; s < UNROLLED; s++) {
            VECTOR b0 = LOAD(b + s * 2 * LANES), b1 = LOAD(b + s * 2 * LANES + LANES);
#pragma GCC unroll 16
            for (int i = 0; i < ROWS; i++) {
                VECTOR x = ALL(a[s * PANEL + i]);
                ADD_PRODUCT(chain[s % 2][i][0], x, b0);
                ADD_PRODUCT(chain[s % 2][i][1], x, b1);
            }
        }
        a += UNROLLED * PANEL;
        b += UNROLLED * 2 * LANES;
        OPAQUE(a);
        OPAQUE(b);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 2 * ROWS; i++) {
        float *sum = sums + i * LANES;
        STORE(sum, ADD(first ? ALL(0) : LOAD(sum), ADD(chain[0][i / 2][i % 2], chain[1][i / 2][i % 2])));
    }
}

TARGET static void NAME(tile)(int64_t depth, const void *a, const void *b, float *sums)
{
    const float *x = a, *y = b;
    if (!depth) memset(sums, 0, sizeof(float) * PANEL * 2 * LANES);
    for (int64_t l = 0; l < depth; l += BGEMM_BLOCK, x += STEPS * PANEL, y += STEPS * 2 * LANES)
        for (int i = 0; i < PANEL; i += ROWS) {
            float *sum = sums + i * 2 * LANES;
            if (l)
                NAME(block)(false, x + i, y, sum);
            else
                NAME(block)(true, x + i, y, sum);
        }
}

#undef NAME
#undef TARGET
#undef VECTOR
#undef LANES
#undef PANEL
#undef ROWS
#undef STEPS
#undef ALL
#undef LOAD
#undef STORE
#undef ADD
#undef ADD_PRODUCT
