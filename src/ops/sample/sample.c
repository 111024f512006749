/* sample: chooses the next token of each sequence from its logits. It is the likeliest token, or is drawn after these were applied, in
 * this order: bias, bans, penalties, a guide, temperature, top-k, top-p and min-p. ops/sample/sample.h explains why CPU and CUDA choose
 * the same token. The plain kernel sorts all tokens. The fast kernel only looks at tokens in chunks whose largest score is high enough,
 * and sums in vectors. */
#include "ops/sample/sample.h"

#include "ops/infer.h"

#include <stdlib.h>

static const AttrDef sample_attrs[] = {ATTR_INT(SampleAttrs, vocab, 0), ATTR_INT(SampleAttrs, best, 0), {0}};

/* logits (B,V), controls f32 (B,SAMPLE_CONTROLS), keys i32 (B,SAMPLE_KEYS), slots i32 (B), next i32 (S), [seen i32 (S,V)], [bias_ids i32
 * (B,N), bias f32 (B,N)], [guides i32 (B,words)] -> ids i32 (B), logprobs f32 (B,2), best_ids i32 (B,best), best_logprobs f32 (B,best),
 * next', [seen'] in place. A slot outside [0, S) marks an idle row. Bias id -1: no bias; of equal ids the last counts. guides: one bit
 * per column, 32 in a word from the lowest on; only read for rows whose control SAMPLE_GUIDED isn't 0. */
static Status sample_infer(Node *node)
{
    const SampleAttrs *attrs = node->attrs;
    TRY(infer_input(node, SAMPLE_IN_LOGITS, "logits", DT_SET_FLOAT, DIMS(-1, -1)));
    int64_t rows = node->in[SAMPLE_IN_LOGITS]->type.dim[0], cols = node->in[SAMPLE_IN_LOGITS]->type.dim[1];
    TRY(infer_input(node, SAMPLE_IN_CONTROLS, "controls", DT_SET_F32, DIMS(rows, SAMPLE_CONTROLS)));
    TRY(infer_input(node, SAMPLE_IN_KEYS, "keys", DT_SET(DT_I32), DIMS(rows, SAMPLE_KEYS)));
    TRY(infer_input(node, SAMPLE_IN_SLOTS, "slots", DT_SET(DT_I32), DIMS(rows)));
    TRY(infer_input(node, SAMPLE_IN_NEXT, "next", DT_SET(DT_I32), DIMS(-1)));
    const Value *seen = node->in[SAMPLE_IN_SEEN], *bias_ids = node->in[SAMPLE_IN_BIAS_IDS];
    if (seen) TRY(infer_input(node, SAMPLE_IN_SEEN, "seen", DT_SET(DT_I32), DIMS(node->in[SAMPLE_IN_NEXT]->type.dim[0], cols)));
    FAIL_IF(!bias_ids != !node->in[SAMPLE_IN_BIAS], ERR_INVALID, "bias_ids and bias come together");
    if (bias_ids) TRY(infer_input(node, SAMPLE_IN_BIAS_IDS, "bias_ids", DT_SET(DT_I32), DIMS(rows, -1)));
    if (bias_ids) TRY(infer_input(node, SAMPLE_IN_BIAS, "bias", DT_SET_F32, DIMS(rows, bias_ids->type.dim[1])));
    if (node->in[SAMPLE_IN_GUIDES])
        TRY(infer_input(node, SAMPLE_IN_GUIDES, "guides", DT_SET(DT_I32), DIMS(rows, sample_guide_words(cols))));
    FAIL_IF(rows > UINT16_MAX, ERR_INVALID, "%lld rows, expected at most %d", (long long)rows, UINT16_MAX);
    FAIL_IF(cols > INT32_MAX, ERR_INVALID, "%lld columns: ids have 32 bits", (long long)cols);
    FAIL_IF(attrs->vocab < 0 || attrs->vocab > cols, ERR_INVALID, "attribute vocab is %lld, of %lld columns", (long long)attrs->vocab,
            (long long)cols);
    FAIL_IF(attrs->best < 0 || attrs->best > SAMPLE_MOST_BEST, ERR_INVALID, "attribute best is %lld, expected 0 to %d",
            (long long)attrs->best, SAMPLE_MOST_BEST);
    node->out[SAMPLE_OUT_IDS]->type = type_make(DT_I32, 1, rows);
    node->out[SAMPLE_OUT_LOGPROBS]->type = type_make(DT_F32, 2, rows, INT64_C(2));
    node->out[SAMPLE_OUT_BEST_IDS]->type = type_make(DT_I32, 2, rows, max_i64(1, attrs->best));
    node->out[SAMPLE_OUT_BEST_LOGPROBS]->type = type_make(DT_F32, 2, rows, max_i64(1, attrs->best));
    node->out[SAMPLE_OUT_NEXT]->type = node->in[SAMPLE_IN_NEXT]->type;
    node->out[SAMPLE_OUT_SEEN]->type = seen ? seen->type : (TensorType){0};
    return OK;
}

/* Each sequence reads one row of seen, and writes one element. */
static OpCost sample_cost(const Node *node)
{
    const TensorType *logits = &node->in[SAMPLE_IN_LOGITS]->type;
    double            numel = (double)type_numel(logits), bytes = (double)type_bytes(logits);
    return (OpCost){.flops = 25 * numel, .bytes = node->in[SAMPLE_IN_SEEN] ? bytes + 4 * numel : bytes};
}

/* ---- a row ---- */

enum { CHUNK = 256 }; /* tokens in a chunk: the coarse and fine parts of their weights can be summed in 32 bits */

/* A row's share of the workspace in 64-bit words: floats of logits and scores, one word per token for the order, largest keys and mass
 * of each chunk. */
static size_t row_words(int64_t cols)
{
    return (size_t)(2 * cols + 2 * div_up(cols, CHUNK));
}

static size_t sample_workspace(const Node *node, int num_workers)
{
    return (size_t)num_workers * row_words(node->in[SAMPLE_IN_LOGITS]->type.dim[1]) * 8;
}

/* SAMPLE_ROW_BYTES for each row, and room for scores if an input may change them. */
static size_t sample_gpu_workspace(const Node *node, int sm)
{
    const SampleAttrs *attrs = node->attrs;
    const TensorType  *logits = &node->in[SAMPLE_IN_LOGITS]->type;
    int64_t            vocab = attrs->vocab ? attrs->vocab : logits->dim[1];
    (void)sm;
    bool    changes = node->in[SAMPLE_IN_SEEN] || node->in[SAMPLE_IN_BIAS] || node->in[SAMPLE_IN_GUIDES];
    int64_t scores = changes ? 4 * sample_stride(vocab) : 0;
    return (size_t)(logits->dim[0] * (scores + SAMPLE_ROW_BYTES(div_up(vocab, sample_group(vocab)))));
}

typedef struct Row {
    const KernelArgs *args;
    int64_t           b, vocab;
    uint32_t         *seen;  /* NULL: tokens aren't counted */
    const uint32_t   *guide; /* NULL: the row has none */
    SampleRow         controls;
    const float      *logits, *scores;
    float             most_logit, most;  /* most: the largest score */
    uint64_t         *order;             /* room for (vocab) tokens, see sample_order */
    uint32_t         *logit_keys, *keys; /* by chunk: its largest logit and its largest score */
    uint64_t         *mass;              /* by chunk: sum of its weights */
} Row;

/* The steps in which the plain and the fast kernel differ. */
typedef struct SampleKernel {
    uint64_t (*border)(Row *row);          /* the last token that top-k and top-p keep (the border), as a sample_order */
    void (*best)(Row *row, int64_t count); /* sorts the tokens with the `count` largest logits to the front of row->order */
    uint64_t (*mass)(Row *row, const float *scores, float most, float scale, uint64_t border, uint64_t least);
    int32_t (*find)(const Row *row, uint64_t border, uint64_t drawn);
} SampleKernel;

static int64_t slot_of(const KernelArgs *args, int64_t b)
{
    int64_t slot = ((const int32_t *)args->in[SAMPLE_IN_SLOTS].data)[b];
    return slot < type_numel(&args->in[SAMPLE_IN_NEXT].type) ? slot : -1;
}

static uint64_t weight_in(const Row *row, uint64_t order)
{
    return sample_weight(sample_order_score(order), row->most, row->controls.scale);
}

/* Applies bias, bans, penalties and a guide. */
static void change_scores(const Row *row, float *scores)
{
    const TensorView *ids = &row->args->in[SAMPLE_IN_BIAS_IDS], *bias = &row->args->in[SAMPLE_IN_BIAS];
    int64_t           count = ids->data ? type_cols(&ids->type) : 0;
    memcpy(scores, row->logits, (size_t)row->vocab * sizeof(float));
    for (int64_t k = row->b * count; k < (row->b + 1) * count; k++) {
        int64_t id = ((const int32_t *)ids->data)[k];
        if (id >= 0 && id < row->vocab) scores[id] = row->logits[id] + ((const float *)bias->data)[k];
    }
    if (row->seen && sample_penalises(&row->controls))
        for (int64_t i = 0; i < row->vocab; i++) scores[i] = sample_penalised(&row->controls, scores[i], row->seen[i]);
    for (int64_t i = 0; i < row->vocab && row->guide; i++) scores[i] = sample_guided(row->guide, i, scores[i]);
}

/* Prepares row b of the batch, with logits and scores in the worker's part of the workspace. */
static Row row_open(const KernelArgs *args, int64_t b, int worker)
{
    const SampleAttrs *attrs = args->attrs;
    const TensorView  *logits = &args->in[SAMPLE_IN_LOGITS];
    int64_t            cols = type_cols(&logits->type), vocab = attrs->vocab ? attrs->vocab : cols, slot = slot_of(args, b);
    uint64_t          *memory = (uint64_t *)args->workspace + (size_t)worker * row_words(cols);
    float             *scratch = (float *)(memory + cols), *scores = scratch + vocab;
    Row                row = {.args = args, .b = b, .vocab = vocab, .order = memory};
    const float       *controls = (const float *)args->in[SAMPLE_IN_CONTROLS].data + b * SAMPLE_CONTROLS;
    const uint32_t    *guides = args->in[SAMPLE_IN_GUIDES].data;
    row.controls = sample_row(controls, vocab);
    if (guides && controls[SAMPLE_GUIDED] != 0) row.guide = guides + b * sample_guide_words(cols);
    if (args->in[SAMPLE_IN_SEEN].data && slot >= 0) row.seen = (uint32_t *)args->out[SAMPLE_OUT_SEEN].data + slot * cols;
    row.mass = memory + 2 * cols;
    row.keys = (uint32_t *)(row.mass + div_up(cols, CHUNK));
    row.logit_keys = row.keys + div_up(cols, CHUNK);
    row.logits = vec_load_row(vec_at(logits->data, logits->type.dtype, b * cols), logits->type.dtype, vocab, scratch);
    row.scores = row.logits;
    if (!args->in[SAMPLE_IN_BIAS].data && !row.guide && !(row.seen && sample_penalises(&row.controls))) return row;
    change_scores(&row, scores);
    row.scores = scores;
    return row;
}

/* data is NULL if the output isn't wanted. */
static void put_id(const KernelArgs *args, int64_t b, int32_t id)
{
    int32_t *ids = args->out[SAMPLE_OUT_IDS].data;
    if (ids) ids[b] = id;
}

static void put_logprobs(const KernelArgs *args, int64_t b, float chosen, float drawn)
{
    float *logprobs = args->out[SAMPLE_OUT_LOGPROBS].data;
    if (logprobs) logprobs[2 * b] = chosen, logprobs[2 * b + 1] = drawn;
}

static void put_best(const KernelArgs *args, int64_t b, int64_t k, int32_t id, float logprob)
{
    int32_t *ids = args->out[SAMPLE_OUT_BEST_IDS].data;
    float   *logprobs = args->out[SAMPLE_OUT_BEST_LOGPROBS].data;
    int64_t  at = b * max_i64(1, ((const SampleAttrs *)args->attrs)->best) + k;
    if (ids) ids[at] = id;
    if (logprobs) logprobs[at] = logprob;
}

/* Outputs of a row without a choice. id: SAMPLE_IDLE or SAMPLE_BAD. */
static void put_none(const KernelArgs *args, int64_t b, int32_t id)
{
    put_id(args, b, id);
    put_logprobs(args, b, 0, 0);
    for (int64_t k = 0; k < max_i64(1, ((const SampleAttrs *)args->attrs)->best); k++) put_best(args, b, k, -1, 0);
}

/* Stores the chosen token, also in `next`, where the sequence's next run reads it. */
static void put_choice(Row *row, int32_t id)
{
    put_id(row->args, row->b, id);
    ((int32_t *)row->args->out[SAMPLE_OUT_NEXT].data)[slot_of(row->args, row->b)] = id;
    if (row->seen) row->seen[id]++;
}

static void tell_best(Row *row, const SampleKernel *kernel, uint64_t mass)
{
    int64_t best = ((const SampleAttrs *)row->args->attrs)->best, there = min_i64(best, row->vocab);
    if (there) kernel->best(row, there);
    for (int64_t k = 0; k < max_i64(1, best); k++) {
        float logit = k < there ? sample_order_score(row->order[k]) : 0;
        put_best(row->args, row->b, k, k < there ? sample_order_id(row->order[k]) : -1,
                 k < there ? sample_logprob(logit, row->most_logit, 1, mass) : 0);
    }
}

/* Chooses the row's token and fills in all outputs. The row's keys are set already. */
static void row_choose(Row *row, const SampleKernel *kernel)
{
    const KernelArgs *args = row->args;
    const SampleRow  *controls = &row->controls;
    bool     told = args->out[SAMPLE_OUT_LOGPROBS].data || args->out[SAMPLE_OUT_BEST_IDS].data || args->out[SAMPLE_OUT_BEST_LOGPROBS].data;
    uint64_t border = kernel->border(row), kept = kernel->mass(row, row->scores, row->most, controls->scale, border, controls->least);
    int32_t  id = kernel->find(row, border, sample_draw((const uint32_t *)args->in[SAMPLE_IN_KEYS].data + row->b * SAMPLE_KEYS, kept));
    if (told) {
        uint64_t all = kernel->mass(row, row->logits, row->most_logit, 1, 0, 0);
        put_logprobs(args, row->b, sample_logprob(row->logits[id], row->most_logit, 1, all),
                     sample_logprob(row->scores[id], row->most, controls->scale, kept));
        tell_best(row, kernel, all);
    }
    put_choice(row, id);
}

/* ---- the plain kernel ---- */

static int by_order(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

static void sort_tokens(Row *row, const float *scores)
{
    for (int64_t i = 0; i < row->vocab; i++) row->order[i] = sample_order(scores[i], i);
    qsort(row->order, (size_t)row->vocab, sizeof *row->order, by_order);
}

static uint64_t plain_border(Row *row)
{
    int64_t  count = row->controls.top_k ? row->controls.top_k : row->vocab, n = 0;
    uint64_t all = 0, mass = 0;
    sort_tokens(row, row->scores);
    for (int64_t i = 0; i < count; i++) all += weight_in(row, row->order[i]);
    while (n < count && mass < sample_wanted(&row->controls, all)) mass += weight_in(row, row->order[n++]);
    return row->order[n - 1];
}

static void plain_best(Row *row, int64_t count)
{
    (void)count;
    sort_tokens(row, row->logits);
}

static uint64_t kept_weight(float score, int64_t id, float most, float scale, uint64_t border, uint64_t least)
{
    if (sample_order(score, id) < border) return 0;
    uint64_t weight = sample_weight(score, most, scale);
    return weight >= least ? weight : 0;
}

static uint64_t plain_mass(Row *row, const float *scores, float most, float scale, uint64_t border, uint64_t least)
{
    uint64_t mass = 0;
    for (int64_t i = 0; i < row->vocab; i++) mass += kept_weight(scores[i], i, most, scale, border, least);
    return mass;
}

static int32_t plain_find(const Row *row, uint64_t border, uint64_t drawn)
{
    const SampleRow *controls = &row->controls;
    for (int64_t i = 0; i < row->vocab; i++) {
        uint64_t weight = kept_weight(row->scores[i], i, row->most, controls->scale, border, controls->least);
        if (drawn < weight) return (int32_t)i;
        drawn -= weight;
    }
    CHECK(!"less was drawn than is kept");
    return SAMPLE_BAD;
}

static void sample_plain_task(void *context, int64_t b, int worker)
{
    static const SampleKernel plain = {plain_border, plain_best, plain_mass, plain_find};
    const KernelArgs         *args = context;
    Row                       row = row_open(args, b, worker);
    bool                      finite = true;
    row.most = row.most_logit = -INFINITY;
    for (int64_t i = 0; i < row.vocab; i++) {
        finite = finite && row.scores[i] < INFINITY;
        row.most = fmaxf(row.most, row.scores[i]);
        row.most_logit = fmaxf(row.most_logit, row.logits[i]);
    }
    if (slot_of(args, b) < 0)
        put_none(args, b, SAMPLE_IDLE);
    else if (!finite || row.most == -INFINITY)
        put_none(args, b, SAMPLE_BAD);
    else
        row_choose(&row, &plain);
}

static Status sample_plain(const KernelArgs *args)
{
    pool_run(args->pool, args->in[SAMPLE_IN_LOGITS].type.dim[0], sample_plain_task, (void *)args);
    return OK;
}

/* ---- the fast one ---- */

/* The largest key in a chunk; with a NaN, a key above all others. */
VEC_ROW uint32_t chunk_key(const float *x, int64_t count)
{
    uint32_t most = 0, nan = 0;
    VEC_LOOP
    for (int64_t i = 0; i < count; i++) {
        uint32_t key = sample_key(x[i]);
        most = key > most ? key : most;
        nan |= (uint32_t) - (x[i] != x[i]);
    }
    return most | nan;
}

/* Fills in the keys of all chunks, and returns the largest. */
VEC_ROW uint32_t row_keys(const float *x, int64_t count, uint32_t *keys)
{
    uint32_t most = 0;
    for (int64_t c = 0; c * CHUNK < count; c++) {
        keys[c] = chunk_key(x + c * CHUNK, min_i64(CHUNK, count - c * CHUNK));
        most = keys[c] > most ? keys[c] : most;
    }
    return most;
}

VEC_ROW uint64_t chunk_mass(const float *scores, int64_t count, float most, float scale)
{
    int32_t coarse = 0, fine = 0;
    VEC_LOOP
    for (int64_t i = 0; i < count; i++) {
        float e = sample_exp(sample_distance(scores[i], most, scale));
        coarse += sample_coarse(e);
        fine += sample_fine(e);
    }
    return sample_mass(coarse, fine);
}

/* Mass of the kept tokens in a chunk. first: id of its first token. */
VEC_ROW uint64_t chunk_kept(const float *scores, int32_t first, int32_t count, float most, float scale, uint64_t border, uint64_t least)
{
    int32_t  coarse = 0, fine = 0, last = sample_order_id(border);
    uint32_t key = (uint32_t)(border >> 32);
    VEC_LOOP
    for (int32_t i = 0; i < count; i++) {
        float    e = sample_exp(sample_distance(scores[i], most, scale));
        uint32_t own = sample_key(scores[i]);
        int32_t  whole = sample_coarse(e), part = sample_fine(e);
        int32_t  kept = -((own > key) | ((own == key) & (first + i <= last))) & -(sample_mass(whole, part) >= least);
        coarse += whole & kept;
        fine += part & kept;
    }
    return sample_mass(coarse, fine);
}

/* Fills in the mass of each chunk, and returns their sum. border 0: all tokens are kept. */
VEC_ROW uint64_t row_mass(Row *row, const float *scores, float most, float scale, uint64_t border, uint64_t least)
{
    uint64_t mass = 0, key = border >> 32;
    for (int64_t c = 0; c * CHUNK < row->vocab; c++) {
        const float *x = scores + c * CHUNK;
        int64_t      count = min_i64(CHUNK, row->vocab - c * CHUNK);
        if (!border && !least)
            row->mass[c] = chunk_mass(x, count, most, scale);
        else
            row->mass[c] = row->keys[c] < key ? 0 : chunk_kept(x, (int32_t)(c * CHUNK), (int32_t)count, most, scale, border, least);
        mass += row->mass[c];
    }
    return mass;
}

VEC_WIDE static uint64_t row_mass_wide(Row *row, const float *scores, float most, float scale, uint64_t border, uint64_t least)
{
    return row_mass(row, scores, most, scale, border, least);
}

static uint64_t fast_mass(Row *row, const float *scores, float most, float scale, uint64_t border, uint64_t least)
{
    if (cpu_avx512()) return row_mass_wide(row, scores, most, scale, border, least);
    return row_mass(row, scores, most, scale, border, least);
}

VEC_ROW void chunk_exps(float *exps, const float *scores, int64_t count, float most, float scale)
{
    VEC_LOOP
    for (int64_t i = 0; i < count; i++) exps[i] = sample_exp(sample_distance(scores[i], most, scale));
}

/* Needs the chunks' masses as row_mass has left them. */
static int32_t fast_find(const Row *row, uint64_t border, uint64_t drawn)
{
    float   exps[CHUNK];
    int64_t c = 0, i = 0;
    for (; drawn >= row->mass[c]; c++) drawn -= row->mass[c];
    const float *scores = row->scores + c * CHUNK;
    chunk_exps(exps, scores, min_i64(CHUNK, row->vocab - c * CHUNK), row->most, row->controls.scale);
    for (;; i++) {
        uint64_t weight = sample_mass(sample_coarse(exps[i]), sample_fine(exps[i]));
        if (weight < row->controls.least || sample_order(scores[i], c * CHUNK + i) < border) continue;
        if (drawn < weight) return (int32_t)(c * CHUNK + i);
        drawn -= weight;
    }
}

static void swap(uint64_t *a, uint64_t *b)
{
    uint64_t kept = *a;
    *a = *b;
    *b = kept;
}

/* Moves tokens that come before the median of three of [begin, end) in front of it. Returns the median's new index. */
static int64_t split(uint64_t *order, int64_t begin, int64_t end)
{
    uint64_t *first = &order[begin], *middle = &order[begin + (end - begin) / 2], *last = &order[end - 1];
    if (*first < *middle) swap(first, middle);
    if (*first < *last) swap(first, last);
    if (*last < *middle) swap(last, middle);
    int64_t at = begin;
    for (int64_t i = begin; i < end - 1; i++) { /* no branch: half of its predictions would be wrong */
        uint64_t own = order[i];
        order[i] = order[at];
        order[at] = own;
        at += own > *last;
    }
    swap(&order[at], last);
    return at;
}

#define ANY_MASS UINT64_MAX

static uint64_t mass_between(const Row *row, int64_t begin, int64_t end)
{
    float    scores[CHUNK];
    uint64_t mass = 0;
    for (int64_t at = begin; at < end; at += CHUNK) {
        int64_t count = min_i64(CHUNK, end - at);
        VEC_LOOP
        for (int64_t i = 0; i < count; i++) scores[i] = sample_order_score(row->order[at + i]);
        mass += chunk_mass(scores, count, row->most, row->controls.scale);
    }
    return mass;
}

/* Moves the best entries among the first n of row->order to the front, unsorted, until there are `count` of them or their mass is
 * `wanted`. Returns their number. */
static int64_t select_first(Row *row, int64_t n, int64_t count, uint64_t wanted)
{
    enum { FEW = 24 };
    int64_t  begin = 0, end = n;
    uint64_t mass = 0; /* mass of the entries before begin */
    while (end - begin > FEW) {
        int64_t  at = split(row->order, begin, end);
        uint64_t part = wanted == ANY_MASS ? 0 : mass_between(row, begin, at);
        if (at >= count || mass + part >= wanted) {
            end = at;
            continue;
        }
        begin = at + 1;
        mass += part + (wanted == ANY_MASS ? 0 : weight_in(row, row->order[at]));
        if (begin >= count || mass >= wanted) return begin;
    }
    for (int64_t i = begin + 1; i < end; i++)
        for (int64_t k = i; k > begin && row->order[k] > row->order[k - 1]; k--) swap(&row->order[k], &row->order[k - 1]);
    while (begin < end && begin < count && mass < wanted) mass += wanted == ANY_MASS ? (begin++, 0) : weight_in(row, row->order[begin++]);
    return begin;
}

/* Puts all tokens whose key is at least `least` into row->order, and returns how many. */
static int64_t collect(Row *row, const float *scores, const uint32_t *keys, uint32_t least)
{
    int64_t n = 0;
    for (int64_t c = 0; c * CHUNK < row->vocab; c++) {
        if (keys[c] < least) continue;
        for (int64_t i = c * CHUNK; i < min_i64(row->vocab, (c + 1) * CHUNK); i++) {
            row->order[n] = sample_order(scores[i], i);
            n += row->order[n] >> 32 >= least;
        }
    }
    return n;
}

/* A key that at least `count` tokens reach, and not many more: the count-th largest of the chunks' largest keys. 0: there are too few
 * chunks. */
static uint32_t reached_by(Row *row, const uint32_t *keys, int64_t count)
{
    int64_t chunks = div_up(row->vocab, CHUNK);
    if (count > chunks) return 0;
    for (int64_t c = 0; c < chunks; c++) row->order[c] = (uint64_t)keys[c] << 32 | (uint32_t)c;
    select_first(row, chunks, count, ANY_MASS);
    uint64_t least = UINT64_MAX;
    for (int64_t c = 0; c < count; c++) least = row->order[c] < least ? row->order[c] : least;
    return (uint32_t)(least >> 32);
}

/* Puts tokens with at least the mass `wanted` into row->order, and returns how many. First it tries tokens above the median of the
 * chunks' largest scores, which almost always is enough. */
static int64_t collect_mass(Row *row, uint64_t wanted)
{
    int64_t n = collect(row, row->scores, row->keys, reached_by(row, row->keys, (div_up(row->vocab, CHUNK) + 1) / 2));
    return mass_between(row, 0, n) >= wanted ? n : collect(row, row->scores, row->keys, 0);
}

static uint64_t fast_border(Row *row)
{
    const SampleRow *controls = &row->controls;
    bool             part = controls->top_p < 1u << 24;
    int64_t          n, k = controls->top_k;
    uint64_t         last = UINT64_MAX;
    if (!k && !part) return 0;
    if (k) {
        n = select_first(row, collect(row, row->scores, row->keys, reached_by(row, row->keys, k)), k, ANY_MASS);
        if (part) n = select_first(row, n, n, sample_wanted(controls, mass_between(row, 0, n)));
    } else {
        uint64_t wanted = sample_wanted(controls, fast_mass(row, row->scores, row->most, controls->scale, 0, 0));
        n = select_first(row, collect_mass(row, wanted), row->vocab, wanted);
    }
    for (int64_t i = 0; i < n; i++) last = row->order[i] < last ? row->order[i] : last;
    return last;
}

static void fast_best(Row *row, int64_t count)
{
    select_first(row, collect(row, row->logits, row->logit_keys, reached_by(row, row->logit_keys, count)), count, ANY_MASS);
    qsort(row->order, (size_t)count, sizeof *row->order, by_order);
}

VEC_TASK(sample_task)
{
    static const SampleKernel fast = {fast_border, fast_best, fast_mass, fast_find};
    const KernelArgs         *args = context;
    if (slot_of(args, task) < 0) {
        put_none(args, task, SAMPLE_IDLE);
        return;
    }
    Row      row = row_open(args, task, worker);
    uint32_t most_logit = row_keys(row.logits, row.vocab, row.logit_keys), most = most_logit;
    if (row.scores == row.logits)
        row.keys = row.logit_keys;
    else
        most = row_keys(row.scores, row.vocab, row.keys);
    row.most_logit = sample_of_key(most_logit);
    row.most = sample_of_key(most);
    if (sample_key_fits(most))
        row_choose(&row, &fast);
    else
        put_none(args, task, SAMPLE_BAD);
}

static Status sample_fast(const KernelArgs *args)
{
    pool_run(args->pool, args->in[SAMPLE_IN_LOGITS].type.dim[0], sample_task, (void *)args);
    return OK;
}

/* ---- descriptor ---- */

const OpDef op_sample = {
    .id = OP_SAMPLE,
    .name = "sample",
    .synopsis = "ids: the likeliest (temperature 0), or drawn by (seed, request, number, position), after bias, bans, penalties, "
                "guide, temperature, top-k, top-p and min-p; -1: idle row, -2: no finite score; next[slots] = ids, seen[slots, "
                "ids] += 1",
    .num_in = SAMPLE_NUM_IN,
    .num_out = 6,
    .min_in = SAMPLE_IN_SEEN,
    .flags = OP_RANDOM,
    .alias = {{.out = SAMPLE_OUT_NEXT, .in = SAMPLE_IN_NEXT}, {.out = SAMPLE_OUT_SEEN, .in = SAMPLE_IN_SEEN}},
    .num_alias = 2,
    .attrs_size = sizeof(SampleAttrs),
    .attrs = sample_attrs,
    .infer = sample_infer,
    .cost = sample_cost,
    .workspace = sample_workspace,
    .gpu_workspace = sample_gpu_workspace,
    .cpu = {{DT_SET_FLOAT, sample_fast, "fast"}, {DT_SET_FLOAT, sample_plain, "reference"}},
    .holds = {[SAMPLE_IN_CONTROLS] = HOLDS_CONTROLS, [SAMPLE_IN_SLOTS] = HOLDS_SLOTS, [SAMPLE_IN_SEEN] = HOLDS_SEEN},
    .samples = "[12,700], [12,8], i32[12,8] below=1073741824, i32[12] below=14, i32[14] below=700 {best=5}\n"
               "[12,1032], [12,8], i32[12,8] below=1073741824, i32[12] below=12, i32[12] below=700, i32[12,1032] below=30,"
               "  i32[12,9] below=1100, [12,9] masked=6 {vocab=1000, best=3}\n"
               "[3,5], [3,8], i32[3,8] below=1073741824, i32[3] below=3, i32[3] below=5, i32[3,5] below=3 {best=5}\n"
               "[2,9] masked=1, [2,8], i32[2,8] below=1073741824, i32[2] below=2, i32[2] below=9\n"
               "[12,1032], [12,8], i32[12,8] below=1073741824, i32[12] below=12, i32[12] below=700, _, _, _,"
               "  i32[12,33] below=1073741824 {vocab=1000, best=3}\n",
    /* Real vocabularies; in the last sample most columns are outside the vocabulary. */
    .large = "[64,151936], [64,8], i32[64,8] below=1073741824, i32[64] below=64, i32[64] below=700 {best=20}\n"
             "[10,32001], [10,8], i32[10,8] below=1073741824, i32[10] below=10, i32[10] below=700, i32[10,32001] below=30,"
             "  i32[10,300] below=32001, [10,300] masked=200 {best=20}\n"
             "[20,8192], [20,8], i32[20,8] below=1073741824, i32[20] below=21, i32[21] below=700 {best=5}\n"
             "[10,50000] masked=900, [10,8], i32[10,8] below=1073741824, i32[10] below=10, i32[10] below=700 {vocab=1000, best=3}\n",
};
