/* Which kernel a node gets by the dtypes of its operands; the text of samples. */
#include "ir/sample.h"
#include "test.h"

enum { IN_X, IN_W, IN_SCALE, IN_LABELS };
enum { OUT_Y, OUT_SUM };

static Status any_infer(Node *node)
{
    node->out[OUT_Y]->type = node->in[IN_X]->type;
    node->out[OUT_SUM]->type = type_make(DT_F32, 1, INT64_C(1));
    return OK;
}

static const OpDef        op_any = {.name = "any", .num_in = 4, .num_out = 2, .min_in = 1, .infer = any_infer};
static const OpDef *const ops[] = {&op_any};

/* A node whose inputs have these dtypes (DT_COUNT: absent); y has x's dtype, the sum is f32. */
static Node *node_of(Arena *arena, DType x, DType w, DType scale, DType labels)
{
    Graph      *graph = graph_create(arena, "case", ops, 1);
    const DType dtypes[] = {x, w, scale, labels};
    Value      *in[4] = {0};
    Node       *node;
    for (int k = 0; k < 4; k++) {
        TensorType type = type_make(dtypes[k], 1, INT64_C(8));
        if (dtypes[k] != DT_COUNT) in[k] = graph_add_value(graph, VALUE_INPUT, "in", &type);
    }
    EXPECT_OK(graph_add_node(graph, &op_any, NULL, "y", in, 4, ~0u, &node));
    return node;
}

static void a_named_operand_has_its_own_types(void)
{
    static const OperandTypes plain[KERNEL_MAX_EXCEPT] = {0};
    static const OperandTypes named[KERNEL_MAX_EXCEPT] = {{.out = 1u << OUT_SUM, .dtypes = DT_SET_F32},
                                                          {.in = 1u << IN_SCALE, .dtypes = DT_SET_F32},
                                                          {.in = 1u << IN_LABELS, .dtypes = DT_SET(DT_I32)}};
    Arena                     arena = {0};
    Node                     *node = node_of(&arena, DT_BF16, DT_BF16, DT_F32, DT_I32);
    EXPECT(!op_types_fit(node, DT_SET_BF16, plain)); /* scale and sum are f32 */
    EXPECT(op_types_fit(node, DT_SET_FLOAT, plain));
    EXPECT(op_types_fit(node, DT_SET_BF16, named));
    EXPECT(!op_types_fit(node, DT_SET_F32, named));
    EXPECT(!op_types_fit(node_of(&arena, DT_BF16, DT_BF16, DT_BF16, DT_I32), DT_SET_BF16, named));
    EXPECT(!op_types_fit(node_of(&arena, DT_BF16, DT_BF16, DT_F32, DT_I64), DT_SET_BF16, named));
    EXPECT(op_types_fit(node_of(&arena, DT_BF16, DT_COUNT, DT_COUNT, DT_COUNT), DT_SET_BF16, named)); /* absent inputs fit */
    arena_deinit(&arena);
}

static void nothing_said_fits_nothing(void)
{
    static const OperandTypes plain[KERNEL_MAX_EXCEPT] = {0};
    Arena                     arena = {0};
    EXPECT(!op_types_fit(node_of(&arena, DT_F32, DT_F32, DT_F32, DT_I32), 0, plain));
    /* bytes may hold any value, so they aren't an index: a kernel must list that it takes them */
    EXPECT(!op_types_fit(node_of(&arena, DT_F32, DT_U8, DT_F32, DT_I32), DT_SET_FLOAT, plain));
    EXPECT(op_types_fit(node_of(&arena, DT_F32, DT_F32, DT_F32, DT_I64), DT_SET_FLOAT, plain));
    arena_deinit(&arena);
}

typedef struct SomeAttrs {
    int64_t  len, dtype;
    double   scale;
    bool     dense, rare;
    AttrList steps;
} SomeAttrs;
static const AttrDef some_attrs[] = {ATTR_INT(SomeAttrs, len, 4),
                                     ATTR_DTYPE(SomeAttrs, dtype),
                                     ATTR_FLOAT(SomeAttrs, scale, 0.5),
                                     ATTR_BOOL(SomeAttrs, dense, true),
                                     ATTR_RARE(SomeAttrs, rare),
                                     ATTR_LIST(SomeAttrs, steps),
                                     {0}};
static const OpDef   op_some = {.name = "some", .num_in = 3, .num_out = 1, .attrs_size = sizeof(SomeAttrs), .attrs = some_attrs};

static void a_line_is_a_sample(void)
{
    Arena     arena = {0};
    OpSamples samples;
    EXPECT_OK(op_samples_parse(&arena, &op_some,
                               "[2,5], _, i32[3] below=7\n"
                               "bf16[4]  {len=9, dtype=f16, scale=-1e-3,"
                               "  dense=false, rare=true, steps=[1, -2.5]} rows_alone tolerance=1e-2\n"
                               "{}\n"
                               "[2,9] masked=6",
                               &samples));
    EXPECT_INT(samples.count, 4);
    const OpSample  *s = samples.items;
    const SomeAttrs *plain = s[0].attrs, *said = s[1].attrs;
    TensorType       x = type_make(DT_F32, 2, INT64_C(2), INT64_C(5)), ids = type_make(DT_I32, 1, INT64_C(3));
    EXPECT(type_equal(&s[0].in[0], &x) && type_equal(&s[0].in[2], &ids) && !s[0].in[1].ndim);
    EXPECT(s[0].int_range[2] == 7 && !s[0].int_range[0] && !s[0].rows_alone && s[0].tolerance == 0);
    EXPECT(plain->len == 4 && !plain->dtype && plain->scale == 0.5 && plain->dense && !plain->rare && !plain->steps.count);
    EXPECT(s[1].in[0].dtype == DT_BF16 && s[1].rows_alone && s[1].tolerance == 1e-2);
    EXPECT(said->len == 9 && said->dtype == DTYPE_TO_ATTR(DT_F16) && said->scale == -1e-3 && !said->dense && said->rare);
    EXPECT(said->steps.count == 2 && said->steps.values[1] == -2.5);
    EXPECT(!s[2].in[0].ndim && s[3].masked[0] == 6);
    EXPECT_OK(op_samples_parse(&arena, &op_some, NULL, &samples));
    EXPECT_INT(samples.count, 0);
    arena_deinit(&arena);
}

static void a_bad_sample_is_told_with_op_and_place(void)
{
    static const char *const bad[][2] = {
        {"[2]\n[2] {width=3}", "some's samples:2:6: some has no attribute width"},
        {"[1], _, [2], [3]", "some's samples:1:14: some takes at most 3 inputs"},
        {"[1] fast", "expected a dtype, found fast"},
        {"[1,]\n[2", "expected an integer"},
        {"f99[1]", "expected a dtype, found f99"},
        {"[1] tolerance", "expected tolerance=NUMBER"},
        {"i32[1] below 7", "expected below=NUMBER"},
        {"[4] masked=x", "expected an integer, found x"},
        {"[4] {len=2", "expected attribute=value"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        Arena     arena = {0};
        OpSamples samples;
        EXPECT_FAILS(op_samples_parse(&arena, &op_some, bad[i][0], &samples), ERR_INVALID, bad[i][1]);
        arena_deinit(&arena);
    }
}

TEST_MAIN(TEST(a_named_operand_has_its_own_types), TEST(nothing_said_fits_nothing), TEST(a_line_is_a_sample),
          TEST(a_bad_sample_is_told_with_op_and_place))
