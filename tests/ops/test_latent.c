/* Decoding with latent attention: rows of group_linear have the bits that they have alone, on any number of threads. attention_latent has
 * the bits of attention_cached whose values are the first elements of the keys. */
#include "ops/attention/attention_latent.h"
#include "ops/products/group_linear.h"

#include "op_case.h"

static OpCase products(const GroupLinearAttrs *attrs, DType dtype, int64_t rows, int64_t groups, int64_t cols, int64_t w_rows,
                       int64_t w_cols)
{
    OpCase     c;
    TensorType in[NODE_MAX_IN] = {type_make(dtype, 3, rows, groups, cols), type_make(dtype, 2, groups * w_rows, w_cols)};
    int        range[NODE_MAX_IN] = {0};
    EXPECT_OK(op_case_make(&c, &op_group_linear, attrs, in));
    c.node->flags |= NODE_ROWS_ALONE;
    op_case_fill(&c, 3, range);
    return c;
}

static void rows_of_groups_have_the_bits_they_have_alone(void)
{
    static const struct {
        GroupLinearAttrs attrs;
        int64_t          cols, w_rows, w_cols;
    } cases[] = {
        {{.size = 128, .turned = true}, 128, 256, 512},
        {{.begin = 128, .size = 128}, 512, 256, 512},
        {{.turned = true}, 700, 700, 24},
        {{0}, 700, 24, 700},
        {{.begin = 1, .size = 5}, 7, 9, 7},
    };
    static const DType   dtypes[] = {DT_F32, DT_BF16, DT_F16};
    static const int64_t all_rows[] = {2, 9, 70};
    for (size_t i = 0; i < sizeof cases / sizeof *cases * 9; i++) {
        size_t  k = i / 9;
        DType   dtype = dtypes[i / 3 % 3];
        int64_t rows = all_rows[i % 3];
        OpCase  all = products(&cases[k].attrs, dtype, rows, 4, cases[k].cols, cases[k].w_rows, cases[k].w_cols);
        OpCase  one = products(&cases[k].attrs, dtype, 1, 4, cases[k].cols, cases[k].w_rows, cases[k].w_cols);
        EXPECT_OK(op_case_run(&all, &op_group_linear.cpu[0], 3, "all"));
        memcpy(one.in[1].data, all.in[1].data, one.in[1].bytes);
        for (int64_t row = 0; row < rows; row += rows - 1) {
            memcpy(one.in[0].data, all.in[0].data + row * (int64_t)one.in[0].bytes, one.in[0].bytes);
            EXPECT_OK(op_case_run(&one, &op_group_linear.cpu[0], 1, "one"));
            EXPECT(!memcmp(one.out[0].data, all.out[0].data + row * (int64_t)one.out[0].bytes, one.out[0].bytes));
        }
        op_case_free(&all), op_case_free(&one);
    }
}

static void groups_that_do_not_fit_are_refused(void)
{
    OpCase           c;
    GroupLinearAttrs attrs = {.begin = 4, .size = 3};
    TensorType in[NODE_MAX_IN] = {type_make(DT_F32, 3, (int64_t)2, (int64_t)3, (int64_t)5), type_make(DT_F32, 2, (int64_t)18, (int64_t)5)};
    EXPECT_FAILS(op_case_make(&c, &op_group_linear, &attrs, in), ERR_INVALID, "3 rows from 4 on of each group's 6");
    op_case_free(&c);
    attrs = (GroupLinearAttrs){.size = 3, .turned = true};
    EXPECT_FAILS(op_case_make(&c, &op_group_linear, &attrs, in), ERR_INVALID, "expected 3 numbers of each group");
    op_case_free(&c);
    in[1].dim[0] = 17;
    EXPECT_FAILS(op_case_make(&c, &op_group_linear, &attrs, in), ERR_INVALID, "expected a multiple of its 3 groups");
    op_case_free(&c);
}

enum { ROWS = 3, PAGES = 20, PAGE = 16, ROW_PAGES = 6, HEADS = 5, DIM = 24, VALUE = 18 };

static void put_places(OpCase *c, int starts, int pages, int64_t len)
{
    for (int b = 0; b < ROWS; b++) {
        ((int32_t *)c->in[starts].data)[b] = (int32_t)(b * 30 + (b == ROWS - 1 ? ROW_PAGES * PAGE - 60 - len : 0));
        for (int i = 0; i < ROW_PAGES; i++) ((int32_t *)c->in[pages].data)[b * ROW_PAGES + i] = PAGES - 1 - i * ROWS - b;
    }
}

/* Copies the first VALUE of every DIM elements. */
static void put_beginnings(DType dtype, void *to, const void *from, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        memcpy((char *)to + dtype_bytes(dtype, i * VALUE), (const char *)from + dtype_bytes(dtype, i * DIM),
               (size_t)dtype_bytes(dtype, VALUE));
}

static void compare_caches(DType dtype, DType cache, int64_t len)
{
    LatentAttrs    latent = {.num_heads = HEADS, .head_dim = DIM, .value_dim = VALUE, .scale = 0.3};
    AttentionAttrs whole = {.num_heads = HEADS, .num_kv_heads = 1, .head_dim = DIM, .scale = 0.3};
    TensorType     q = type_make(dtype, 4, (int64_t)ROWS, len, (int64_t)HEADS, (int64_t)DIM), k = q, v, kc, vc;
    TensorType     starts = type_make(DT_I32, 1, (int64_t)ROWS), pages = type_make(DT_I32, 2, (int64_t)ROWS, (int64_t)ROW_PAGES);
    OpCase         one, two;
    int            range[NODE_MAX_IN] = {[LATENT_STARTS] = 1, [LATENT_PAGES] = 1};
    k.dim[2] = 1, v = k, v.dim[3] = VALUE;
    kc = vc = type_make(cache, 4, (int64_t)PAGES, (int64_t)PAGE, (int64_t)1, (int64_t)DIM), vc.dim[3] = VALUE;
    EXPECT_OK(op_case_make(&one, &op_attention_latent, &latent, (TensorType[NODE_MAX_IN]){q, k, kc, starts, pages}));
    EXPECT_OK(op_case_make(&two, &op_attention_cached, &whole, (TensorType[NODE_MAX_IN]){q, k, v, kc, vc, starts, pages}));
    op_case_fill(&one, 5, range);
    put_places(&one, LATENT_STARTS, LATENT_PAGES, len), put_places(&two, 5, 6, len);
    memcpy(two.in[0].data, one.in[LATENT_Q].data, one.in[LATENT_Q].bytes);
    memcpy(two.in[1].data, one.in[LATENT_K].data, one.in[LATENT_K].bytes);
    memcpy(two.in[3].data, one.in[LATENT_KC].data, one.in[LATENT_KC].bytes);
    put_beginnings(dtype, two.in[2].data, one.in[LATENT_K].data, ROWS * len);
    put_beginnings(cache, two.in[4].data, one.in[LATENT_KC].data, PAGES * PAGE);
    EXPECT_OK(op_case_run(&one, &op_attention_latent.cpu[0], 1, "latent"));
    EXPECT_OK(op_case_run(&two, &op_attention_cached.cpu[0], 1, "whole"));
    EXPECT(one.out[0].bytes == two.out[0].bytes && !memcmp(one.out[0].data, two.out[0].data, one.out[0].bytes));
    EXPECT(!memcmp(one.out[1].data, two.out[1].data, one.out[1].bytes));
    op_case_free(&one), op_case_free(&two);
}

static void one_cache_has_the_bits_of_two(void)
{
    static const DType dtypes[] = {DT_F32, DT_BF16, DT_F16};
    for (int i = 0; i < 3; i++)
        for (int64_t len = 1; len < 60; len += 19) {
            compare_caches(dtypes[i], dtypes[i], len);
            compare_caches(dtypes[i], DT_E4M3, len);
        }
}

TEST_MAIN(TEST(rows_of_groups_have_the_bits_they_have_alone), TEST(groups_that_do_not_fit_are_refused), TEST(one_cache_has_the_bits_of_two))
