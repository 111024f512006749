/* Which kernel a node gets by the dtypes of its operands. */
#include "ir/op.h"
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

/* A node of inputs of these dtypes (DT_COUNT: absent); y is of x's dtype, the sum f32. */
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
    EXPECT(op_types_fit(node_of(&arena, DT_BF16, DT_COUNT, DT_COUNT, DT_COUNT), DT_SET_BF16, named)); /* absent ones fit */
    arena_deinit(&arena);
}

static void nothing_said_fits_nothing(void)
{
    static const OperandTypes plain[KERNEL_MAX_EXCEPT] = {0};
    Arena                     arena = {0};
    EXPECT(!op_types_fit(node_of(&arena, DT_F32, DT_F32, DT_F32, DT_I32), 0, plain));
    /* bytes that hold anything are no index: a kernel must say that it takes them */
    EXPECT(!op_types_fit(node_of(&arena, DT_F32, DT_U8, DT_F32, DT_I32), DT_SET_FLOAT, plain));
    EXPECT(op_types_fit(node_of(&arena, DT_F32, DT_F32, DT_F32, DT_I64), DT_SET_FLOAT, plain));
    arena_deinit(&arena);
}

TEST_MAIN(TEST(a_named_operand_has_its_own_types), TEST(nothing_said_fits_nothing))
