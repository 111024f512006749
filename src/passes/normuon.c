/* The orthogonalised momentum is the limit of x <- (a I + b A + c A A) x with A = x x^T, which moves every singular value of x toward 1: a
 * step takes four launches, three of them products. For a matrix with more rows than columns, A is x^T x and multiplies from the right, so
 * that A has the shorter side and nothing is transposed. */
#include "passes/normuon.h"

#include "ops/attrs.h"
#include "ops/ops.h"
#include "passes/pass.h"

enum { NORMUON_TURNS = 5 };

typedef struct Coefficients {
    double a, b, c;
} Coefficients;

static const Coefficients coefficients[NORMUON_STEPS_COUNT][NORMUON_TURNS] = {
    [NORMUON_POLAR_EXPRESS] = {{8.156554524902461, -22.48329292557795, 15.878769915207462},
                               {4.042929935166739, -2.808917465908714, 0.5000178451051316},
                               {3.8916678022926607, -2.772484153217685, 0.5060648178503393},
                               {3.285753657755655, -2.3681294933425376, 0.46449024233003106},
                               {2.3465413258596377, -1.7097828382687081, 0.42323551169305323}},
    [NORMUON_NEWTON_SCHULZ] = {{3.4445, -4.7750, 2.0315},
                               {3.4445, -4.7750, 2.0315},
                               {3.4445, -4.7750, 2.0315},
                               {3.4445, -4.7750, 2.0315},
                               {3.4445, -4.7750, 2.0315}},
};

NormuonOptions normuon_defaults(void)
{
    return (NormuonOptions){
        .compute_dtype = DT_BF16, .steps = NORMUON_POLAR_EXPRESS, .momentum = 0.95, .beta2 = 0.95, .eps = 1e-10, .nesterov = true};
}

/* Replaces *x by the result of one step. */
static Status turn(Graph *graph, const Coefficients *k, Value **x)
{
    const TensorType *type = &(*x)->type;
    bool              is_tall = type->dim[0] > type->dim[1];
    LinearAttrs       gram = {.alpha = 1, .rows = type->dim[1]}, square = {.alpha = k->c}, plain = {.alpha = 1};
    AddIdentityAttrs  line = {.a = k->a, .b = k->b};
    Value            *a, *p, *twice[] = {*x, *x, NULL};
    if (is_tall)
        TRY(pass_add(graph, &op_linear_dw, &gram, "normuon", twice, 3, &a));
    else
        TRY(pass_add(graph, &op_linear, NULL, "normuon", twice, 2, &a));
    TRY(pass_add(graph, &op_add_identity, &line, "normuon", &a, 1, &p));
    Value *product[] = {a, a, p};
    TRY(pass_add(graph, &op_linear_dx, &square, "normuon", product, 3, &p));
    Value *result[] = {is_tall ? *x : p, is_tall ? p : *x, NULL};
    return pass_add(graph, &op_linear_dx, &plain, "normuon", result, 3, x);
}

Status normuon_emit(Graph *graph, const NormuonOptions *options, const NormuonShared *shared, NormuonMatrix *matrix)
{
    NormuonMomentumAttrs momentum = {.momentum = options->momentum,
                                     .max_grad_norm = options->max_grad_norm,
                                     .nesterov = options->nesterov,
                                     .dtype = DTYPE_TO_ATTR(options->compute_dtype),
                                     .rows = matrix->rows};
    NormuonUpdateAttrs   update = {.beta2 = options->beta2,
                                   .eps = options->eps,
                                   .weight_decay = matrix->weight_decay,
                                   .stochastic = matrix->w->type.dtype == DT_BF16 && !matrix->master,
                                   .key = matrix->key,
                                   .rows = matrix->rows};
    Value               *x, *from[] = {matrix->g, matrix->m, shared->norm2, shared->loss};
    Node                *node;
    TRY(graph_add_node(graph, &op_normuon_momentum, &momentum, "normuon", from, 4, ~0u, &node));
    x = node->out[0];
    matrix->m = node->out[1];
    for (int i = 0; i < NORMUON_TURNS; i++) TRY(turn(graph, &coefficients[options->steps][i], &x));
    Value *in[] = {matrix->w, x, matrix->v, shared->norm2, shared->loss, shared->hyper, shared->step, matrix->master};
    TRY(graph_add_node(graph, &op_normuon_update, &update, "normuon", in, 8, ~0u, &node));
    matrix->w = node->out[0];
    matrix->v = node->out[1];
    matrix->master = node->out[2];
    return OK;
}
