/* See lora_pairs.h. */
#include "model/lora_pairs.h"

#include "base/scoped.h"
#include "model/low_rank.h"
#include "model/peft.h"
#include "model/weights.h"
#include "passes/peft_names.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct LoraPairs {
    Arena     arena;
    LoraPair *items;
    int       count;
};

bool lora_is_half(const Param *param, const char *half)
{
    const char *dot = strrchr(param->name, '.');
    return param->is_adapter && !param->is_whole && dot && strcmp(dot + 1, half) == 0;
}

const Param *lora_base_of(const Plan *plan, const char *module)
{
    for (int i = 0; i < plan->num_params; i++) {
        const Param *param = plan->params[i];
        if (param->is_linear && !param->is_adapter && !param->ns && param->module && strcmp(param->module, module) == 0) return param;
    }
    return NULL;
}

/* Allocates a pair for each adapter of the plan, without values. */
static LoraPairs *make_room(const Plan *plan, const LoraOptions *lora)
{
    LoraPairs *pairs = calloc_or_end(1, sizeof *pairs);
    pairs->items = arena_array(&pairs->arena, LoraPair, plan->num_params);
    for (int i = 0; i < plan->num_params; i++) {
        const Param *a = plan->params[i];
        if (!lora_is_half(a, PEFT_A)) continue;
        const Param      *base = lora_base_of(plan, a->module);
        const LoraModule *module = lora_find_module(lora, a->module);
        LoraPair         *pair = &pairs->items[pairs->count++];
        CHECK(base);
        *pair = (LoraPair){arena_strdup(&pairs->arena, a->module), base->type.dim[0], a->type.dim[1], a->type.dim[0], 0, NULL, NULL};
        pair->scale = lora_scale(lora, pair->r, module ? module->alpha : lora->alpha);
        pair->a = malloc_or_end((size_t)(pair->r * pair->cols) * sizeof *pair->a);
        pair->b = malloc_or_end((size_t)(pair->r * pair->rows) * sizeof *pair->b);
    }
    return pairs;
}

void lora_pairs_destroy(LoraPairs *pairs)
{
    if (!pairs) return;
    for (int i = 0; i < pairs->count; i++) {
        free(pairs->items[i].a);
        free(pairs->items[i].b);
    }
    arena_deinit(&pairs->arena);
    free(pairs);
}

const LoraPair *lora_pairs_find(const LoraPairs *pairs, const char *module)
{
    for (int i = 0; pairs && module && i < pairs->count; i++)
        if (strcmp(pairs->items[i].module, module) == 0) return &pairs->items[i];
    return NULL;
}

/* ---- making ---- */

void lora_round(DType dtype, float *values, int64_t count)
{
    if (dtype == DT_F32) return;
    SCOPED_ARRAY(char, codes, dtype_bytes(dtype, count));
    dtype_encode(dtype, values, count, codes);
    dtype_decode(dtype, codes, count, values);
}

static Status check_pair(const LoraPair *pair, const Param *base)
{
    int64_t most = pair->rows < pair->cols ? pair->rows : pair->cols;
    FAIL_IF(pair->r > most, ERR_INVALID, "lora_init: %s has %lld rows and %lld columns, too few for rank %lld; lower lora_rank",
            pair->module, (long long)pair->rows, (long long)pair->cols, (long long)pair->r);
    FAIL_IF(base->untied || (base->hf.kind != HF_WHOLE && base->hf.kind != HF_TRANSPOSE), ERR_UNSUPPORTED,
            "lora_init: the weight of %s is the embedding, or shares a tensor with others, which would change too; leave it out of "
            "lora_target_modules, or take lora_init: default",
            pair->module);
    return OK;
}

static Status make_pair(HfModel *model, const Plan *plan, LoraInit init, ThreadPool *pool, LoraPair *pair)
{
    const Param *base = lora_base_of(plan, pair->module);
    double       residual = 0;
    TRY(check_pair(pair, base));
    SCOPED(scoped_free) float *w = malloc((size_t)(pair->rows * pair->cols) * sizeof *w);
    FAIL_IF(!w, ERR_NO_FIT, "no memory for the weight of %s", pair->module);
    TRY(weights_read(model, base, w));
    if (init != LORA_PISSA) {
        low_rank_qr(pool, w, pair->rows, pair->cols, pair->r, pair->a, pair->b);
        return OK;
    }
    low_rank_svd(pool, w, pair->rows, pair->cols, pair->r, pair->a, pair->b, &residual);
    for (int64_t i = 0; i < pair->r * pair->cols; i++) pair->a[i] = (float)((double)pair->a[i] / sqrt(pair->scale));
    for (int64_t i = 0; i < pair->r * pair->rows; i++) pair->b[i] = (float)((double)pair->b[i] / sqrt(pair->scale));
    return OK;
}

Status lora_pairs_make(HfModel *model, const Plan *plan, const LoraOptions *lora, DType dtype, Comm *comm, ThreadPool *pool,
                       LoraPairs **out)
{
    SCOPED(lora_pairs_destroy_at) LoraPairs *pairs = make_room(plan, lora);
    int                                      world = comm_size(comm);
    Status                                   status = hf_model_open_weights(model);
    for (int i = comm_rank(comm); i < pairs->count && status == OK; i += world) {
        LoraPair *pair = &pairs->items[i];
        comm_beat(comm, "decomposing the base's weights");
        status = make_pair(model, plan, lora->init, pool, pair);
        lora_round(dtype, pair->a, pair->r * pair->cols);
        lora_round(dtype, pair->b, pair->r * pair->rows);
    }
    *out = NULL;
    TRY(comm_agree(comm, status));
    for (int i = 0; i < pairs->count && comm; i++) {
        LoraPair *pair = &pairs->items[i];
        TRY(comm_broadcast(comm, i % world, pair->a, (size_t)(pair->r * pair->cols) * sizeof *pair->a));
        TRY(comm_broadcast(comm, i % world, pair->b, (size_t)(pair->r * pair->rows) * sizeof *pair->b));
    }
    *out = pairs;
    pairs = NULL;
    return OK;
}

/* ---- reading ---- */

/* Reads the second halves of A's rows and of B's columns. The file has that half of B with the opposite sign. */
static Status read_pair(const StFile *file, LoraPair *pair)
{
    const StTensor *a, *b;
    SCOPED_ARENA(arena);
    TRY(st_require(file, arena_printf(&arena, PEFT_PREFIX "%s" PEFT_END_A, pair->module), &a));
    TRY(st_require(file, arena_printf(&arena, PEFT_PREFIX "%s" PEFT_END_B, pair->module), &b));
    FAIL_IF(a->ndim != 2 || b->ndim != 2 || a->dim[0] != 2 * pair->r || a->dim[1] != pair->cols || b->dim[0] != pair->rows ||
                b->dim[1] != 2 * pair->r,
            ERR_CHECKPOINT,
            "%s: the pair of %s has other dims than this run's twice: is it of another lora_init or lora_rank? Go on with the settings it "
            "was made with",
            a->path, pair->module);
    TRY(st_to_f32(a, pair->r * pair->cols, pair->r * pair->cols, pair->a));
    for (int64_t row = 0; row < pair->rows; row++) {
        float *at = pair->b + row * pair->r;
        TRY(st_to_f32(b, (2 * row + 1) * pair->r, pair->r, at));
        for (int64_t k = 0; k < pair->r; k++) at[k] = -at[k];
    }
    return OK;
}

Status lora_pairs_read(const char *folder, const Plan *plan, const LoraOptions *lora, LoraPairs **out)
{
    SCOPED(st_close_at) StFile              *file = NULL;
    SCOPED(lora_pairs_destroy_at) LoraPairs *pairs = make_room(plan, lora);
    *out = NULL;
    TRY(peft_open_tensors(folder, &file));
    for (int i = 0; i < pairs->count; i++) TRY(read_pair(file, &pairs->items[i]));
    *out = pairs;
    pairs = NULL;
    return OK;
}

/* ---- using ---- */

static Status pair_values(void *context, const Param *param, int64_t first, int64_t count, float *out)
{
    const LoraPair *pair = lora_pairs_find(context, param->module);
    CHECK(pair);
    memcpy(out, (lora_is_half(param, PEFT_A) ? pair->a : pair->b) + first, (size_t)count * sizeof *out);
    return OK;
}

Status lora_pairs_load(Session *session, const LoraPairs *pairs)
{
    LoadSource source = {.context = (void *)pairs, .values = pair_values, .begins = true};
    return session_load(session, true, &source);
}

void lora_pair_subtract(const LoraPair *pair, int64_t first, int64_t count, float *values)
{
    for (int64_t row = first / pair->cols; row < (first + count) / pair->cols; row++) {
        float *at = values + row * pair->cols - first;
        for (int64_t k = 0; k < pair->r; k++) {
            float        factor = (float)(pair->scale * (double)pair->b[row * pair->r + k]);
            const float *a = pair->a + k * pair->cols;
            for (int64_t c = 0; c < pair->cols; c++) at[c] -= factor * a[c];
        }
    }
}

/* A copy of the settings for twice the rank: rank_pattern is doubled, alpha_pattern multiplied by `alpha`, the rest unchanged. */
static const JsonValue *scaled_selection(Arena *arena, const JsonValue *selection, double alpha)
{
    JsonValue *copy = arena_new(arena, JsonValue);
    *copy = *selection;
    copy->members = arena_array(arena, JsonMember, selection->count);
    for (uint32_t i = 0; i < selection->count; i++) {
        JsonMember *member = &copy->members[i];
        bool        is_rank = str_equal(selection->members[i].key, "rank_pattern");
        *member = selection->members[i];
        if (!is_rank && !str_equal(member->key, "alpha_pattern")) continue;
        member->value.members = arena_array(arena, JsonMember, member->value.count);
        for (uint32_t k = 0; k < member->value.count; k++) {
            const JsonMember *from = &selection->members[i].value.members[k];
            double            number = from->value.type == JSON_INT ? (double)from->value.integer : from->value.number;
            JsonValue         value = {.type = JSON_DOUBLE, .number = alpha * number};
            if (is_rank) value = (JsonValue){.type = JSON_INT, .integer = 2 * (int64_t)number};
            member->value.members[k] = (JsonMember){from->key, value};
        }
    }
    return copy;
}

LoraOptions lora_pairs_saved(Arena *arena, const LoraOptions *lora)
{
    LoraOptions saved = *lora;
    double      alpha = lora->use_rslora ? sqrt(2.0) : 2.0;
    saved.r = 2 * lora->r;
    saved.alpha = alpha * lora->alpha;
    if (lora->selection) saved.selection = scaled_selection(arena, lora->selection, alpha);
    return saved;
}
