/* nvfp4_quantise and nvfp4_dequantise, compared bit for bit with the formulas in NumPy and with torchao (tests/oracle/make_nvfp4.py); and
 * the effects of the attributes. */
#include "base/json.h"
#include "base/philox.h"
#include "files/safetensors.h"
#include "ops/lowbit/nvfp4.h"
#include "ops/op_case.h"

static const char fixture_path[] = "tests/fixtures/nvfp4.safetensors";

/* The inputs of a row's random draws, beside x. */
typedef struct Draws {
    int64_t        step[STEP_COUNT];
    const int32_t *doc_id, *positions;
} Draws;

static float drawn(uint32_t i)
{
    i = (i ^ i >> 16) * 0x85EBCA6Bu;
    i = (i ^ i >> 13) * 0xC2B2AE35u;
    i ^= i >> 16;
    return ldexpf((float)(i >> 8) / 8388608.0f - 1, (int)(i % 5) - 2);
}

static void draw_all(float *x, int count, uint32_t first)
{
    for (int i = 0; i < count; i++) x[i] = drawn(first + (uint32_t)i);
}

/* Quantises x (rows,cols); draws: NULL, or the inputs for stochastic rounding. */
static OpCase quantise(const void *x, DType dtype, int64_t rows, int64_t cols, const Nvfp4Attrs *attrs, const Draws *draws)
{
    OpCase     c;
    TensorType types[NODE_MAX_IN] = {type_make(dtype, 2, rows, cols)};
    if (draws) {
        types[1] = type_make(DT_I64, 1, (int64_t)STEP_COUNT);
        types[2] = types[3] = type_make(DT_I32, 1, rows);
    }
    EXPECT_OK(op_case_make(&c, &op_nvfp4_quantise, attrs, types));
    memcpy(c.in[0].data, x, c.in[0].bytes);
    if (draws) memcpy(c.in[1].data, draws->step, c.in[1].bytes);
    if (draws) memcpy(c.in[2].data, draws->doc_id, c.in[2].bytes);
    if (draws) memcpy(c.in[3].data, draws->positions, c.in[3].bytes);
    EXPECT_OK(op_case_run(&c, &op_nvfp4_quantise.cpu[0], 1, "quantise"));
    return c;
}

/* Decodes the codes of q, transposed or not. */
static OpCase dequantise(const OpCase *q, bool transposed)
{
    OpCase                c;
    const DequantiseAttrs attrs = {.transposed = transposed, .tiled = q->all_out[1]->type.ndim == 3};
    TensorType            types[NODE_MAX_IN] = {q->all_out[0]->type, q->all_out[1]->type, q->all_out[2]->type};
    EXPECT_OK(op_case_make(&c, &op_nvfp4_dequantise, &attrs, types));
    for (int k = 0; k < 3; k++) memcpy(c.in[k].data, q->out[k].data, c.in[k].bytes);
    EXPECT_OK(op_case_run(&c, &op_nvfp4_dequantise.cpu[0], 1, "dequantise"));
    return c;
}

static const float *floats(const OpCase *c, int k)
{
    return (const float *)(const void *)c->out[k].data;
}

/* Whether outputs 0 to 2 have the same bits. */
static bool same_codes(const OpCase *a, const OpCase *b)
{
    bool same = true;
    for (int k = 0; k < 3; k++)
        same = same && a->out[k].bytes == b->out[k].bytes && !memcmp(a->out[k].data, b->out[k].data, a->out[k].bytes);
    return same;
}

/* ---- the oracle ---- */

static void expect_bytes(const StFile *file, const char *name, const char *part, const OpData *got)
{
    char path[64];
    snprintf(path, sizeof path, "%s.%s", name, part);
    const StTensor *want = st_find(file, path);
    if (!want || want->bytes != got->bytes || memcmp(want->data, got->data, got->bytes) != 0)
        test_fail(__FILE__, __LINE__, "%s differs from the oracle's", path);
}

static void check_case(const StFile *file, const char *name, const JsonValue *json)
{
    char path[64];
    snprintf(path, sizeof path, "%s.x", name);
    const StTensor *x = st_find(file, path);
    Nvfp4Attrs      attrs = {0};
    json_get_bool(json, "transposed", &attrs.transposed);
    json_get_bool(json, "two_d", &attrs.two_d);
    json_get_bool(json, "four_six", &attrs.four_six);
    json_get_bool(json, "hadamard", &attrs.hadamard);
    OpCase q = quantise(x->data, x->dtype == ST_BF16 ? DT_BF16 : DT_F32, x->dim[0], x->dim[1], &attrs, NULL), d = dequantise(&q, false);
    expect_bytes(file, name, "codes", &q.out[0]);
    expect_bytes(file, name, "scale", &q.out[1]);
    expect_bytes(file, name, "global", &q.out[2]);
    expect_bytes(file, name, "w", &d.out[0]);
    op_case_free(&q);
    op_case_free(&d);
}

static void codes_scales_and_values_are_the_oracle_s(void)
{
    Arena     arena = {0};
    StFile   *file = NULL;
    JsonValue cases = {0};
    EXPECT_OK(st_open(fixture_path, &file));
    if (!file) return;
    const char *text = st_metadata(file, "cases");
    EXPECT_OK(json_parse(&arena, fixture_path, text, strlen(text), &cases));
    EXPECT(cases.count > 15);
    for (uint32_t i = 0; i < cases.count; i++) check_case(file, cases.members[i].key.data, &cases.members[i].value);
    st_close(file);
    arena_deinit(&arena);
}

/* ---- blocks ---- */

static void transpose(const float *x, int rows, int cols, float *out)
{
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < cols; j++) out[j * rows + i] = x[i * cols + j];
}

static void a_weight_and_its_transpose_have_the_same_bits(void)
{
    enum { ROWS = 48, COLS = 80 };
    for (int four_six = 0; four_six < 2; four_six++) {
        const Nvfp4Attrs attrs = {.two_d = true, .four_six = four_six};
        float            w[ROWS * COLS], t[ROWS * COLS];
        draw_all(w, ROWS * COLS, 1000);
        transpose(w, ROWS, COLS, t);
        OpCase q = quantise(w, DT_F32, ROWS, COLS, &attrs, NULL), qt = quantise(t, DT_F32, COLS, ROWS, &attrs, NULL);
        OpCase d = dequantise(&q, false), back = dequantise(&qt, true);
        EXPECT(memcmp(d.out[0].data, back.out[0].data, d.out[0].bytes) == 0);
        op_case_free(&q);
        op_case_free(&qt);
        op_case_free(&d);
        op_case_free(&back);
    }
}

/* Codes of the transpose equal the codes of the transposed matrix, with each setting of the other attributes. */
static void codes_of_the_transpose_are_those_of_the_transposed(void)
{
    enum { ROWS = 32, COLS = 48 };
    float x[ROWS * COLS], t[ROWS * COLS];
    draw_all(x, ROWS * COLS, 5000);
    transpose(x, ROWS, COLS, t);
    for (int bits = 0; bits < 8; bits++) {
        const Nvfp4Attrs plain = {.two_d = bits & 1, .four_six = bits & 2, .hadamard = bits & 4};
        Nvfp4Attrs       turned = plain;
        turned.transposed = true;
        OpCase a = quantise(t, DT_F32, COLS, ROWS, &plain, NULL), b = quantise(x, DT_F32, ROWS, COLS, &turned, NULL);
        if (!same_codes(&a, &b)) test_fail(__FILE__, __LINE__, "attributes %d: codes of the transpose differ", bits);
        op_case_free(&a);
        op_case_free(&b);
    }
}

/* The squared error of a block with this scale, by the formulas. */
static double block_error(const float *x, uint32_t most, float top, float global)
{
    float  scale = nvfp4_scale(nvfp4_scale_code(most, top, global)), inverse = nvfp4_inverse(global, scale);
    double error = 0;
    for (int i = 0; i < NVFP4_BLOCK; i++) {
        double d = (double)nvfp4_value(nvfp4_code(x[i], inverse), scale, global) - (double)x[i];
        error += d * d;
    }
    return error;
}

static void the_chosen_scale_never_has_the_larger_error(void)
{
    enum { BLOCKS = 4000 };
    static float     x[BLOCKS * NVFP4_BLOCK];
    const Nvfp4Attrs attrs = {.four_six = true};
    int              fours = 0;
    draw_all(x, BLOCKS * NVFP4_BLOCK, 9000);
    OpCase q = quantise(x, DT_F32, 1, BLOCKS * NVFP4_BLOCK, &attrs, NULL), d = dequantise(&q, false);
    float  global = floats(&q, 2)[0];
    for (int b = 0; b < BLOCKS; b++) {
        const float *block = x + b * NVFP4_BLOCK, *w = floats(&d, 0) + b * NVFP4_BLOCK;
        uint32_t     most = 0;
        double       error = 0;
        for (int i = 0; i < NVFP4_BLOCK; i++) {
            most = small_magnitude(block[i]) > most ? small_magnitude(block[i]) : most;
            error += ((double)w[i] - (double)block[i]) * ((double)w[i] - (double)block[i]);
        }
        double six = block_error(block, most, 6, global), four = block_error(block, most, 4, global);
        EXPECT(error <= fmin(six, four) * (1 + 1e-6));
        fours += four < six;
    }
    EXPECT(fours > BLOCKS / 10 && fours < BLOCKS * 9 / 10);
    op_case_free(&q);
    op_case_free(&d);
}

/* ---- the transform ---- */

static void transform(float *v)
{
    float first[8], second[8];
    for (int i = 0; i < 8; i++) first[i] = nvfp4_signed(v[i], i), second[i] = nvfp4_signed(v[i + 8], i + 8);
    nvfp4_hadamard8(first);
    nvfp4_hadamard8(second);
    for (int i = 0; i < NVFP4_BLOCK; i++) v[i] = nvfp4_hadamard_join(first[i % 8], second[i % 8], i >= 8);
}

/* The transform is applied before quantising, and the op quantises exactly the transformed values that are computed here. */
static void the_transform_cancels_in_products(void)
{
    enum { COLS = 4096 };
    const Nvfp4Attrs plain = {0}, hadamard = {.hadamard = true};
    float            x[2 * COLS], t[2 * COLS];
    draw_all(x, 2 * COLS, 77);
    memcpy(t, x, sizeof t);
    for (int i = 0; i < 2 * COLS; i += NVFP4_BLOCK) transform(t + i);
    double before = 0, after = 0, size = 0;
    for (int i = 0; i < COLS; i++) {
        before += (double)x[i] * (double)x[COLS + i];
        after += (double)t[i] * (double)t[COLS + i];
        size += fabs((double)x[i] * (double)x[COLS + i]);
    }
    EXPECT_NEAR(after, before, 1e-7 * size);
    EXPECT(memcmp(x, t, sizeof x) != 0);
    OpCase a = quantise(t, DT_F32, 2, COLS, &plain, NULL), b = quantise(x, DT_F32, 2, COLS, &hadamard, NULL);
    EXPECT(same_codes(&a, &b));
    op_case_free(&a);
    op_case_free(&b);
}

/* ---- stochastic rounding ---- */

enum { ROWS = 32, COLS = 64 };

static void expect_rows_moved(const OpCase *a, const OpCase *b, const int *from)
{
    for (int i = 0; i < ROWS; i++)
        if (memcmp(a->out[0].data + from[i] * COLS / 2, b->out[0].data + i * COLS / 2, COLS / 2) != 0)
            test_fail(__FILE__, __LINE__, "row %d, of the same document and position, is rounded otherwise", i);
}

/* A row's draws follow from its document and position, wherever the row is stored. The transposed codes use the same element's draws. */
static void draws_follow_document_and_position(void)
{
    float            x[ROWS * COLS], moved[ROWS * COLS];
    int32_t          doc_id[ROWS], positions[ROWS], moved_id[ROWS], moved_positions[ROWS];
    int              from[ROWS];
    const Nvfp4Attrs attrs = {.stochastic = true, .site = 5}, square = {.stochastic = true, .two_d = true, .site = 5};
    Nvfp4Attrs       turned = square;
    turned.transposed = true;
    draw_all(x, ROWS * COLS, 300);
    for (int i = 0; i < ROWS; i++) {
        from[i] = (i * 5 + 3) % ROWS;
        doc_id[i] = i / 9;
        positions[i] = i % 9;
    }
    for (int i = 0; i < ROWS; i++) {
        memcpy(moved + i * COLS, x + from[i] * COLS, COLS * sizeof *x);
        moved_id[i] = doc_id[from[i]];
        moved_positions[i] = positions[from[i]];
    }
    const Draws here = {{1, 2}, doc_id, positions}, there = {{1, 2}, moved_id, moved_positions}, later = {{1, 3}, doc_id, positions};
    OpCase      a = quantise(x, DT_F32, ROWS, COLS, &attrs, &here), b = quantise(moved, DT_F32, ROWS, COLS, &attrs, &there);
    OpCase      other = quantise(x, DT_F32, ROWS, COLS, &attrs, &later);
    expect_rows_moved(&a, &b, from);
    EXPECT(memcmp(a.out[0].data, other.out[0].data, a.out[0].bytes) != 0);
    OpCase s = quantise(x, DT_F32, ROWS, COLS, &square, &here), t = quantise(x, DT_F32, ROWS, COLS, &turned, &here);
    OpCase ds = dequantise(&s, false), dt = dequantise(&t, true);
    EXPECT(memcmp(ds.out[0].data, dt.out[0].data, ds.out[0].bytes) == 0);
    OpCase *all[] = {&a, &b, &other, &s, &t, &ds, &dt};
    for (int i = 0; i < 7; i++) op_case_free(all[i]);
}

/* ---- scales in tiles ---- */

/* cuBLAS 13, "1D block scaling factors layout": byte index of the scale of block `inner` in row `outer`; rows have `all` blocks. */
static int64_t tiled_byte(int64_t outer, int64_t inner, int64_t all)
{
    int64_t tiles_in_a_row = (all + 3) / 4, tile = outer / 128 * tiles_in_a_row + inner / 4;
    int64_t within = outer % 128 % 32 * 16 + outer % 128 / 32 * 4 + inner % 4;
    return 512 * tile + within;
}

/* For `rows` rows of codes: every scale is where the layout says, and all other bytes are 0. */
static void expect_tiles(const OpCase *plain, const OpCase *tiled, int64_t rows, int64_t blocks)
{
    const OpData *scales = &tiled->out[1];
    int64_t       bytes = (rows + 127) / 128 * 128 * ((blocks + 3) / 4 * 4);
    uint8_t      *want = calloc(1, (size_t)bytes);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t block = 0; block < blocks; block++) want[tiled_byte(row, block, blocks)] = plain->out[1].data[row * blocks + block];
    EXPECT((int64_t)scales->bytes == bytes);
    EXPECT((int64_t)scales->bytes == bytes && memcmp(scales->data, want, (size_t)bytes) == 0);
    free(want);
}

/* With random shapes: the codes are equal, the scales are in tiles, and decoding gives the same values. */
static void tiles_hold_the_same_scales(void)
{
    for (uint32_t i = 0; i < 60; i++) {
        int64_t    rows = 16 * (1 + philox4x32(i, 0, 0, 0, 7).v[0] % 21), cols = 16 * (1 + philox4x32(i, 1, 0, 0, 7).v[0] % 21);
        Nvfp4Attrs attrs = {.transposed = i & 1, .two_d = i & 2, .four_six = i & 4, .hadamard = i & 8}, in_tiles = attrs;
        float     *x = malloc((size_t)(rows * cols) * sizeof *x);
        in_tiles.tiled = true;
        draw_all(x, (int)(rows * cols), 100 * i);
        OpCase a = quantise(x, DT_F32, rows, cols, &attrs, NULL), b = quantise(x, DT_F32, rows, cols, &in_tiles, NULL);
        EXPECT(memcmp(a.out[0].data, b.out[0].data, a.out[0].bytes) == 0 && memcmp(a.out[2].data, b.out[2].data, 4) == 0);
        expect_tiles(&a, &b, attrs.transposed ? cols : rows, (attrs.transposed ? rows : cols) / NVFP4_BLOCK);
        for (int transposed = 0; transposed < 2; transposed++) {
            OpCase from_rows = dequantise(&a, transposed), from_tiles = dequantise(&b, transposed);
            if (memcmp(from_rows.out[0].data, from_tiles.out[0].data, from_rows.out[0].bytes) != 0)
                test_fail(__FILE__, __LINE__, "%lld x %lld: other numbers from tiles", (long long)rows, (long long)cols);
            op_case_free(&from_rows);
            op_case_free(&from_tiles);
        }
        op_case_free(&a);
        op_case_free(&b);
        free(x);
    }
}

/* ---- products ---- */

/* Computes alpha a b^T + bias from the codes of a (n,k) and b (m,k), added to acc. */
static OpCase multiply(const OpCase *a, const OpCase *b, const float *bias, const float *acc, double alpha)
{
    OpCase                  c;
    const ScaledLinearAttrs attrs = {.alpha = alpha};
    int64_t                 n = a->all_out[0]->type.dim[0], m = b->all_out[0]->type.dim[0];
    TensorType              types[NODE_MAX_IN] = {0};
    for (int k = 0; k < 3; k++) types[2 * k] = a->all_out[k]->type, types[2 * k + 1] = b->all_out[k]->type;
    if (bias) types[6] = type_make(DT_F32, 1, m);
    if (acc) types[7] = type_make(DT_F32, 2, n, m);
    EXPECT_OK(op_case_make(&c, &op_fp4_linear, &attrs, types));
    for (int k = 0; k < 3; k++) memcpy(c.in[2 * k].data, a->out[k].data, a->out[k].bytes);
    for (int k = 0; k < 3; k++) memcpy(c.in[2 * k + 1].data, b->out[k].data, b->out[k].bytes);
    if (bias) memcpy(c.in[6].data, bias, c.in[6].bytes);
    if (acc) memcpy(c.in[7].data, acc, c.in[7].bytes);
    EXPECT_OK(op_case_run(&c, &op_fp4_linear.cpu[0], 1, "multiply"));
    return c;
}

/* As cuBLASLt would compute it: products of codes in tiles equal fp64 products of the decoded values. */
static void products_by_codes_are_those_of_the_numbers(void)
{
    enum { N = 145, M = 272, K = 208 };
    static float     a[N * K], b[M * K], acc[N * M], bias[M];
    const Nvfp4Attrs tiled = {.four_six = true, .tiled = true}, weight = {.two_d = true, .tiled = true};
    draw_all(a, N * K, 11);
    draw_all(b, M * K, 12345);
    draw_all(acc, N * M, 777);
    draw_all(bias, M, 888);
    OpCase qa = quantise(a, DT_F32, N, K, &tiled, NULL), qb = quantise(b, DT_F32, M, K, &weight, NULL);
    OpCase da = dequantise(&qa, false), db = dequantise(&qb, false);
    for (int with = 0; with < 2; with++) {
        OpCase c = multiply(&qa, &qb, with ? bias : NULL, with ? acc : NULL, with ? 0.25 : 1);
        for (int i = 0; i < N; i++)
            for (int j = 0; j < M; j++) {
                double sum = 0, size = 0;
                for (int k = 0; k < K; k++) {
                    double term = (double)floats(&da, 0)[i * K + k] * (double)floats(&db, 0)[j * K + k];
                    sum += term;
                    size += fabs(term);
                }
                if (with) sum = 0.25 * sum + (double)bias[j] + (double)acc[i * M + j];
                EXPECT_NEAR(floats(&c, 0)[i * M + j], sum, 1e-6 * (size + 10 * with));
            }
        op_case_free(&c);
    }
    OpCase *all[] = {&qa, &qb, &da, &db};
    for (int i = 0; i < 4; i++) op_case_free(all[i]);
}

/* ---- bad input ---- */

/* If one element of a tensor isn't finite, no element of it comes back finite. */
static void what_is_not_finite_stays_visible(void)
{
    static const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    for (int k = 0; k < 4; k++)
        for (int bits = 0; bits < 8; bits++) {
            const Nvfp4Attrs attrs = {.two_d = bits & 1, .four_six = bits & 2, .hadamard = bits & 4};
            float            x[16 * 48];
            draw_all(x, 16 * 48, 40);
            memset(x + 96, 0, 96 * sizeof *x);
            x[700] = bad[k];
            OpCase q = quantise(x, DT_F32, 16, 48, &attrs, NULL), d = dequantise(&q, false);
            for (int i = 0; i < 16 * 48; i++) EXPECT(!isfinite(floats(&d, 0)[i]));
            op_case_free(&q);
            op_case_free(&d);
        }
}

static void expect_refused(TensorType x, const Nvfp4Attrs *attrs, const char *part)
{
    OpCase     c;
    TensorType types[NODE_MAX_IN] = {x};
    EXPECT_FAILS(op_case_make(&c, &op_nvfp4_quantise, attrs, types), ERR_INVALID, part);
    op_case_free(&c);
}

static void what_has_no_whole_blocks_is_refused(void)
{
    const Nvfp4Attrs plain = {0}, square = {.two_d = true}, turned = {.transposed = true}, drawn_without = {.stochastic = true};
    TensorType       x = type_make(DT_F32, 2, INT64_C(33), INT64_C(40)), y = type_make(DT_F32, 2, INT64_C(33), INT64_C(48));
    TensorType bad_scale[NODE_MAX_IN] = {type_make(DT_E2M1, 2, INT64_C(3), INT64_C(48)), type_make(DT_E4M3, 2, INT64_C(3), INT64_C(2)),
                                         type_make(DT_F32, 1, INT64_C(1))};
    OpCase     c;
    expect_refused(x, &plain, "x has 40 columns; expected a multiple of 16");
    expect_refused(y, &square, "x has 33 rows; expected a multiple of 16 for codes of square blocks");
    expect_refused(y, &turned, "x has 33 rows; expected a multiple of 16 for codes of its transpose");
    TensorType plain_scale[NODE_MAX_IN] = {type_make(DT_E2M1, 2, INT64_C(3), INT64_C(48)),
                                           type_make(DT_E2M1, 2, INT64_C(3), INT64_C(48)),
                                           type_make(DT_E4M3, 2, INT64_C(3), INT64_C(3)),
                                           type_make(DT_E4M3, 2, INT64_C(3), INT64_C(3)),
                                           type_make(DT_F32, 1, INT64_C(1)),
                                           type_make(DT_F32, 1, INT64_C(1))};
    EXPECT_FAILS(op_case_make(&c, &op_fp4_linear, NULL, plain_scale), ERR_INVALID, "a_scale is e4m3[3,3], expected dims (1, 1, 512)");
    op_case_free(&c);
    expect_refused(y, &drawn_without, "attribute stochastic is true; expected step, doc_id and positions with it");
    EXPECT_FAILS(op_case_make(&c, &op_nvfp4_dequantise, NULL, bad_scale), ERR_INVALID, "scale is e4m3[3,2], expected dims (3, 3)");
    op_case_free(&c);
}

TEST_MAIN(TEST(codes_scales_and_values_are_the_oracle_s), TEST(a_weight_and_its_transpose_have_the_same_bits),
          TEST(codes_of_the_transpose_are_those_of_the_transposed), TEST(the_chosen_scale_never_has_the_larger_error),
          TEST(the_transform_cancels_in_products), TEST(draws_follow_document_and_position), TEST(what_is_not_finite_stays_visible),
          TEST(tiles_hold_the_same_scales), TEST(products_by_codes_are_those_of_the_numbers), TEST(what_has_no_whole_blocks_is_refused))
