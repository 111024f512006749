/* See dora.h. Each rank reads one whole weight at a time; sums are in double. */
#include "model/dora.h"

#include "base/scoped.h"
#include "model/init.h"
#include "model/make_again.h"
#include "model/weights.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct Magnitude {
    const Param *param;
    float       *norms;
} Magnitude;

typedef struct Magnitudes {
    Magnitude *items;
    int        count;
    uint64_t   seed;
    Arena      arena;
} Magnitudes;

static void find_all(const Plan *plan, Magnitudes *out)
{
    out->items = arena_array(&out->arena, Magnitude, plan->num_params + 1);
    for (int i = 0; i < plan->num_params; i++) {
        const Param *param = plan->params[i];
        if (param->init != INIT_NORMS) continue;
        out->items[out->count++] = (Magnitude){param, arena_array(&out->arena, float, param->type.dim[0])};
    }
}

/* ---- norms of rows ---- */

typedef struct Rows {
    const float *w; /* (rows, cols) */
    int64_t      cols;
    float       *norms;
} Rows;

static void norm_of_row(void *context, int64_t row, int worker)
{
    const Rows  *rows = context;
    const float *w = rows->w + row * rows->cols;
    double       sum = 0;
    (void)worker;
    for (int64_t c = 0; c < rows->cols; c++) sum += (double)w[c] * (double)w[c];
    rows->norms[row] = (float)sqrt(sum);
}

/* Changes w to the values that the plan keeps: if the plan quantises this weight, quantises w to `made` and dequantises it; then rounds it
 * to the weight's dtype. */
static Status keep(const Param *base, const WeightFormat *made, ThreadPool *pool, float *w)
{
    if (base->format && made) TRY(weight_make_again(made, base->type.dim[0], base->type.dim[1], w, pool));
    lora_round(base->type.dtype, w, type_numel(&base->type));
    return OK;
}

static Status make_norms(const HfModel *model, const Param *base, const WeightFormat *made, ThreadPool *pool, float *norms)
{
    SCOPED(scoped_free) float *w = malloc((size_t)type_numel(&base->type) * sizeof *w);
    FAIL_IF(!w, ERR_NO_FIT, "no memory for the weight of %s", base->module);
    TRY(weights_read(model, base, w));
    TRY(keep(base, made, pool, w));
    Rows rows = {w, base->type.dim[1], norms};
    pool_run(pool, base->type.dim[0], norm_of_row, &rows);
    return OK;
}

/* ---- what adapters begin with ---- */

static Status begin_values(void *context, const Param *param, int64_t first, int64_t count, float *out)
{
    const Magnitudes *all = context;
    for (int i = 0; i < all->count && param->init == INIT_NORMS; i++)
        if (all->items[i].param == param) memcpy(out, all->items[i].norms + first, (size_t)count * sizeof *out);
    if (param->init != INIT_NORMS) init_values(all->seed, param, first, count, out);
    return OK;
}

Status dora_begin(Session *session, HfModel *model, const WeightFormat *made, uint64_t seed, Comm *comm, ThreadPool *pool)
{
    const Plan *plan = session_plan(session);
    Magnitudes  all = {.seed = seed};
    LoadSource  source = {.context = &all, .values = begin_values, .begins = true};
    int         world = comm_size(comm);
    Status      status = OK;
    find_all(plan, &all);
    for (int i = comm_rank(comm); i < all.count && status == OK; i += world) {
        const Param *base = lora_base_of(plan, all.items[i].param->module);
        CHECK(base);
        comm_beat(comm, "norms of the base's rows");
        status = make_norms(model, base, made, pool, all.items[i].norms);
    }
    status = comm_agree(comm, status);
    for (int i = 0; i < all.count && status == OK && comm; i++)
        status = comm_broadcast(comm, i % world, all.items[i].norms, (size_t)all.items[i].param->type.dim[0] * sizeof(float));
    if (status == OK) status = session_load(session, true, &source);
    arena_deinit(&all.arena);
    return status;
}
