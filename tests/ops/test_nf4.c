/* nf4_quantise and nf4_dequantise, compared bit for bit with bitsandbytes (tests/oracle/make_nf4.py). */
#include "files/safetensors.h"
#include "ops/lowbit/nf4.h"
#include "ops/op_case.h"

static const char fixture_path[] = "tests/fixtures/nf4.safetensors";

static const DequantiseAttrs to_f32 = {0}, to_bf16 = {.dtype = DTYPE_TO_ATTR(DT_BF16)};

static const StTensor *tensor(const StFile *file, const char *name, const char *part)
{
    char path[64];
    snprintf(path, sizeof path, "%s.%s", name, part);
    const StTensor *found = st_find(file, path);
    if (!found) test_fail(__FILE__, __LINE__, "%s isn't in the fixture", path);
    return found;
}

/* Runs the op on these inputs; NULL: an absent input. */
static OpCase run_op(const OpDef *op, const void *attrs, const TensorType *types, const void *const *data)
{
    OpCase c;
    EXPECT_OK(op_case_make(&c, op, attrs, types));
    for (int i = 0; i < op->num_in; i++)
        if (data[i]) memcpy(c.in[i].data, data[i], c.in[i].bytes);
    EXPECT_OK(op_case_run(&c, &op->cpu[0], 1, op->name));
    return c;
}

static void expect_bytes(const char *name, const char *part, const void *got, const StTensor *want, size_t bytes)
{
    size_t at = 0;
    EXPECT_INT(want->bytes, bytes);
    while (at < bytes && at < want->bytes && ((const uint8_t *)got)[at] == ((const uint8_t *)want->data)[at]) at++;
    if (at < bytes) test_fail(__FILE__, __LINE__, "%s: %s differs from byte %zu of %zu on", name, part, at, bytes);
}

static void check_quantise(const StFile *file, const char *name)
{
    static const char *const parts[] = {"codes", "absmax", "nested", "offset"};
    const StTensor          *x = tensor(file, name, "x");
    TensorType               type = type_make(x->dtype == ST_BF16 ? DT_BF16 : DT_F32, 2, x->dim[0], x->dim[1]);
    OpCase                   c = run_op(&op_nf4_quantise, NULL, &type, (const void *const[]){x->data});
    for (int k = 0; k < 4; k++) expect_bytes(name, parts[k], c.out[k].data, tensor(file, name, parts[k]), c.out[k].bytes);
    op_case_free(&c);
    c = run_op(&op_nf4_quantise, &(Nf4QuantiseAttrs){.once = true}, &type, (const void *const[]){x->data});
    expect_bytes(name, "codes", c.out[0].data, tensor(file, name, "codes"), c.out[0].bytes);
    expect_bytes(name, "scales", c.out[1].data, tensor(file, name, "scales"), c.out[1].bytes);
    op_case_free(&c);
}

/* Dequantises bitsandbytes' codes to fp32 and bf16, with quantised scales and with fp32 scales. */
static void check_dequantise(const StFile *file, const char *name)
{
    const StTensor   *x = tensor(file, name, "x"), *absmax = tensor(file, name, "absmax"), *nested = tensor(file, name, "nested");
    const StTensor   *w = tensor(file, name, "w"), *plain = tensor(file, name, "plain");
    TensorType        types[NODE_MAX_IN] = {type_make(DT_NF4, 2, x->dim[0], x->dim[1]), type_make(DT_U8, 1, absmax->numel),
                                            type_make(DT_F32, 1, nested->numel), type_make(DT_F32, 1, INT64_C(1))};
    const void *const data[] = {tensor(file, name, "codes")->data, absmax->data, nested->data, tensor(file, name, "offset")->data};
    const void *const plain_data[] = {data[0], tensor(file, name, "scales")->data, NULL, NULL};
    OpCase            c = run_op(&op_nf4_dequantise, &to_f32, types, data);
    expect_bytes(name, "w", c.out[0].data, w, c.out[0].bytes);
    op_case_free(&c);
    c = run_op(&op_nf4_dequantise, &to_bf16, types, data);
    int64_t off = 0;
    for (int64_t i = 0; i < w->numel; i++) off += ((uint16_t *)(void *)c.out[0].data)[i] != bf16_from_f32(((const float *)w->data)[i]);
    EXPECT_INT(off, 0);
    op_case_free(&c);
    types[1].dtype = DT_F32;
    types[2] = types[3] = (TensorType){0};
    c = run_op(&op_nf4_dequantise, &to_bf16, types, plain_data);
    expect_bytes(name, "plain", c.out[0].data, plain, c.out[0].bytes);
    op_case_free(&c);
}

static void each_case(void (*check)(const StFile *file, const char *name))
{
    StFile *file = NULL;
    char    names[256], *rest = names;
    int     count = 0;
    EXPECT_OK(st_open(fixture_path, &file));
    if (!file) return;
    snprintf(names, sizeof names, "%s", st_metadata(file, "cases"));
    for (char *name; (name = strtok_r(rest, " ", &rest)); count++) check(file, name);
    EXPECT(count > 10);
    st_close(file);
}

static void codes_and_scales_are_those_of_bitsandbytes(void)
{
    each_case(check_quantise);
}

static void weights_are_those_of_bitsandbytes(void)
{
    each_case(check_dequantise);
}

/* Members of a matrix that were quantised separately give the values that they give alone, even if their last block is short. */
static void members_are_weights_of_their_own(void)
{
    enum { K = 50, ROWS = 70 };
    static const DequantiseAttrs members = {.rows = {33, 5, 32}};
    TensorType                   types[NODE_MAX_IN] = {0};
    float                        x[ROWS * K], apart[ROWS * K];
    uint8_t                     *parts[4] = {0};
    size_t                       bytes[4] = {0};
    int64_t                      row = 0;
    for (int i = 0; i < ROWS * K; i++) x[i] = sinf((float)i) * (float)(i / K + 1);
    for (int m = 0; m < 3; row += members.rows[m++]) {
        TensorType type = type_make(DT_F32, 2, members.rows[m], INT64_C(50)), its[NODE_MAX_IN] = {0};
        OpCase     q = run_op(&op_nf4_quantise, NULL, &type, (const void *const[]){x + row * K});
        for (int i = 0; i < 4; i++) {
            size_t more = (size_t)type_bytes(&q.all_out[i]->type);
            its[i] = q.all_out[i]->type;
            types[i].dim[0] += its[i].dim[0];
            parts[i] = realloc(parts[i], bytes[i] + more);
            memcpy(parts[i] + bytes[i], q.out[i].data, more);
            bytes[i] += more;
        }
        OpCase d =
            run_op(&op_nf4_dequantise, &to_f32, its, (const void *const[]){q.out[0].data, q.out[1].data, q.out[2].data, q.out[3].data});
        memcpy(apart + row * K, d.out[0].data, (size_t)(members.rows[m] * K) * sizeof *x);
        for (int i = 0; i < 4; i++) {
            int64_t rows = types[i].dim[0];
            types[i] = its[i];
            types[i].dim[0] = rows;
        }
        op_case_free(&q);
        op_case_free(&d);
    }
    OpCase all = run_op(&op_nf4_dequantise, &members, types, (const void *const[]){parts[0], parts[1], parts[2], parts[3]});
    EXPECT(memcmp(all.out[0].data, apart, sizeof apart) == 0);
    op_case_free(&all);
    for (int i = 0; i < 4; i++) free(parts[i]);
}

/* If one element of a tensor isn't finite, no element of it comes back finite. */
static void what_is_not_finite_stays_visible(void)
{
    static const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    for (int k = 0; k < 4; k++) {
        float      x[3 * 50] = {1, 2, 3};
        TensorType type = type_make(DT_F32, 2, INT64_C(3), INT64_C(50));
        x[70] = bad[k];
        OpCase     q = run_op(&op_nf4_quantise, NULL, &type, (const void *const[]){x});
        TensorType types[NODE_MAX_IN];
        for (int i = 0; i < 4; i++) types[i] = q.all_out[i]->type;
        OpCase d =
            run_op(&op_nf4_dequantise, &to_f32, types, (const void *const[]){q.out[0].data, q.out[1].data, q.out[2].data, q.out[3].data});
        for (int i = 0; i < 150; i++) EXPECT(!isfinite(((const float *)(void *)d.out[0].data)[i]));
        op_case_free(&q);
        op_case_free(&d);
    }
}

static void expect_refused(const TensorType *types, const DequantiseAttrs *attrs, const char *part)
{
    OpCase c;
    EXPECT_FAILS(op_case_make(&c, &op_nf4_dequantise, attrs, types), ERR_INVALID, part);
    op_case_free(&c);
}

static void wrong_scales_are_refused(void)
{
    static const DequantiseAttrs to_f16 = {.dtype = DTYPE_TO_ATTR(DT_F16)};
    const TensorType             good[NODE_MAX_IN] = {type_make(DT_NF4, 2, INT64_C(3), INT64_C(50)), type_make(DT_U8, 1, INT64_C(3)),
                                                      type_make(DT_F32, 1, INT64_C(1)), type_make(DT_F32, 1, INT64_C(1))};
    TensorType                   types[NODE_MAX_IN];
    expect_refused(good, &to_f16, "dtype is f16");
    expect_refused(good, &(DequantiseAttrs){.rows = {1, 1}}, "the members have 2 rows; expected 3");
    expect_refused(good, &(DequantiseAttrs){.rows = {1, 0, 2}}, "rows2 is 2; expected members of 3 rows in all");
    expect_refused(good, &(DequantiseAttrs){.rows = {1, 3}}, "rows1 is 3; expected members of 3 rows in all");
    for (int k = 0; k < 4; k++) {
        static const char *const parts[] = {"absmax is f32[3]", "absmax is u8[4]", "absmax is u8", "absmax is u8"};
        memcpy(types, good, sizeof types);
        if (k == 0) types[1].dtype = DT_F32;
        if (k == 1) types[1].dim[0]++;
        if (k >= 2) types[k] = (TensorType){0};
        expect_refused(types, &to_f32, k ? parts[k] : "absmax is f32; expected u8 with nested and offset, or f32 without them");
    }
}

TEST_MAIN(TEST(codes_and_scales_are_those_of_bitsandbytes), TEST(weights_are_those_of_bitsandbytes), TEST(members_are_weights_of_their_own),
          TEST(what_is_not_finite_stays_visible), TEST(wrong_scales_are_refused))
