/* NorMuon (arXiv 2510.05491): the nodes that update one matrix, rows x columns as the model's weight has them (columns: the layer's
 * inputs). Packed matrices are updated one by one: each is a view of the flat buffers, or some rows of a weight. */
#pragma once

#include "ir/graph.h"
#include "ops/attrs.h"

/* How the momentum is orthogonalised: by five steps with these coefficients. */
typedef enum NormuonSteps {
    NORMUON_POLAR_EXPRESS, /* Amsel et al. 2025 */
    NORMUON_NEWTON_SCHULZ, /* Jordan 2024: the steps of the NorMuon paper */
    NORMUON_STEPS_COUNT
} NormuonSteps;

typedef struct NormuonOptions {
    DType        compute_dtype; /* dtype of the products: bf16 or f32 */
    NormuonSteps steps;
    double       momentum, beta2, eps, max_grad_norm; /* max_grad_norm 0: no clipping */
    bool         nesterov;
} NormuonOptions;

/* momentum 0.95, beta2 0.95, eps 1e-10, Nesterov, Polar Express in bf16, no clipping. */
NormuonOptions normuon_defaults(void);

/* Values that all updates of a program read; adamw's updates read them too. */
typedef struct NormuonShared {
    Value *norm2, *loss, *hyper, *step;
} NormuonShared;

typedef struct NormuonMatrix {
    Value     *w, *g, *m; /* (R,C): weight, gradient, momentum (f32 or bf16) */
    Value     *v;         /* (R) f32: second moment of each row */
    Value     *master;    /* (R,C) f32; NULL: w is the only copy, and is rounded stochastically if it is bf16 */
    double     weight_decay;
    MatrixRows rows; /* the rows of these tensors that are the matrix */
    int64_t    key;  /* seeds the update's random numbers */
} NormuonMatrix;

/* Emits at the cursor. w, m, v and master are updated in place; the fields become their new versions. m and v are zero before the first
 * update. */
NODISCARD Status normuon_emit(Graph *graph, const NormuonOptions *options, const NormuonShared *shared, NormuonMatrix *matrix);
