/* The loss and the gradient norm don't depend on the layout of the documents: 8x1, 4x2, 1x8 (micro-batch x accumulation), padded or packed,
 * in any order. Also with LoRA dropout, and with documents that have no trained token. */
#include "base/philox.h"
#include "family.h"

enum { NUM_DOCS = 8, MAX_LEN = 24, PACKED_LEN = 64 };

typedef struct Doc {
    int     len;
    int32_t tokens[MAX_LEN], labels[MAX_LEN];
} Doc;

static void make_docs(Doc docs[NUM_DOCS])
{
    for (int d = 0; d < NUM_DOCS; d++) {
        docs[d].len = 1 + (int)(philox4x32((uint32_t)d, 0, 0, 0, 3).v[0] % MAX_LEN);
        for (int t = 0; t < docs[d].len; t++) {
            Philox4 random = philox4x32((uint32_t)d, (uint32_t)t, 1, 0, 3);
            docs[d].tokens[t] = (int32_t)(random.v[0] % FAMILY_V);
            bool trained = d != 2 && random.v[2] % 3 != 0; /* document 2 has no trained token */
            docs[d].labels[t] = trained ? (int32_t)(random.v[1] % FAMILY_V) : IGNORE_INDEX;
        }
    }
}

typedef struct Rows {
    int32_t *tokens, *labels, *positions, *doc_start, *doc_id;
    int      rows, len;
} Rows;

static Rows rows_create(Arena *arena, int rows, int len)
{
    Rows      r = {.rows = rows, .len = len};
    int32_t **fields[] = {&r.tokens, &r.labels, &r.positions, &r.doc_start, &r.doc_id};
    for (int i = 0; i < 5; i++) *fields[i] = arena_array(arena, int32_t, rows * len);
    for (int i = 0; i < rows * len; i++) {
        r.labels[i] = IGNORE_INDEX;
        r.doc_start[i] = i % len;
        r.doc_id[i] = -1;
    }
    return r;
}

static void put_doc(Rows *r, int row, int at, const Doc *doc, int id)
{
    for (int t = 0; t < doc->len; t++) {
        int i = row * r->len + at + t;
        r->tokens[i] = doc->tokens[t];
        r->labels[i] = doc->labels[t];
        r->positions[i] = t;
        r->doc_start[i] = at;
        r->doc_id[i] = id;
    }
}

/* Document d is row d, padded. */
static Rows padded(Arena *arena, const Doc *docs)
{
    Rows r = rows_create(arena, NUM_DOCS, MAX_LEN);
    for (int d = 0; d < NUM_DOCS; d++) put_doc(&r, d, 0, &docs[d], d);
    return r;
}

/* First fit into longer rows, from the last document on: the order differs too. */
static Rows packed(Arena *arena, const Doc *docs)
{
    Rows r = rows_create(arena, NUM_DOCS, PACKED_LEN);
    int  used[NUM_DOCS] = {0}, rows = 0;
    for (int d = NUM_DOCS - 1; d >= 0; d--) {
        int row = 0;
        while (used[row] + docs[d].len > PACKED_LEN) row++;
        put_doc(&r, row, used[row], &docs[d], d);
        used[row] += docs[d].len;
        if (row + 1 > rows) rows = row + 1;
    }
    r.rows = rows;
    return r;
}

static const char *all_linear[] = {"all-linear"};

static void write_rows(Family *f, const Rows *r, int first, int rows, float inv)
{
    static const char *const names[] = {"tokens", "labels", "positions", "doc_start", "doc_id"};
    const int32_t           *data[] = {r->tokens, r->labels, r->positions, r->doc_start, r->doc_id};
    for (int i = 0; i < 5; i++)
        if (plan_find(f->plan, names[i]))
            EXPECT_OK(session_write(f->session, names[i], data[i] + (size_t)(first * r->len), (size_t)(rows * r->len) * 4));
    int64_t step[STEP_COUNT] = {99, 5, 0, 0};
    float   hyper[HYPER_COUNT] = {[HYPER_INV_TOKENS] = inv};
    if (plan_find(f->plan, "step")) EXPECT_OK(session_write(f->session, "step", step, sizeof step));
    EXPECT_OK(session_write(f->session, "hyper", hyper, sizeof hyper));
}

static void run_layout(const char *family, bool lora, const Rows *r, int micro_batch, double *loss, double *norm)
{
    Family         f;
    CompileOptions options = compile_defaults();
    compile_add_training(&options, micro_batch, r->len);
    if (lora) {
        options.lora = (LoraOptions){.enabled = true, .r = 4, .alpha = 8, .dropout = 0.3, .targets = all_linear, .num_targets = 1};
        options.train_base = false;
    }
    family_open(&f, family, "config.json", &options, 2);
    if (lora) { /* the fixture's adapter has other targets: every weight is filled by its name instead */
        for (int i = 0; i < f.plan->num_params; i++) {
            const Param *param = f.plan->params[i];
            int64_t      n = type_numel(&param->type);
            float       *values = arena_array(&f.arena, float, n);
            uint32_t     key = 0;
            for (const char *p = param->name; *p; p++) key = key * 31 + (unsigned char)*p;
            for (int64_t k = 0; k < n; k++) values[k] = (philox_uniform(philox4x32((uint32_t)k, key, 0, 0, 1).v[0]) - 0.5f) * 0.4f;
            EXPECT_OK(session_write(f.session, param->name, values, (size_t)n * 4));
        }
    } else {
        family_load(&f);
    }
    int   trained = count_labels(r->labels, r->rows * r->len);
    float norm2, value;
    for (int first = 0; first < r->rows; first += micro_batch) {
        write_rows(&f, r, first, micro_batch, 1.0f / (float)trained);
        EXPECT_OK(session_run(f.session, plan_micro(f.plan, first > 0, 3)));
    }
    EXPECT_OK(session_run(f.session, plan_program(f.plan, &entry_optimizer)));
    EXPECT_OK(session_output(f.session, plan_program(f.plan, &entry_optimizer), "loss", &value, sizeof value));
    EXPECT_OK(session_output(f.session, plan_program(f.plan, &entry_optimizer), "norm2", &norm2, sizeof norm2));
    *loss = (double)value;
    *norm = sqrt((double)norm2);
    family_close(&f);
}

static void check_layouts(const char *family, bool lora)
{
    Arena  arena = {0};
    Doc    docs[NUM_DOCS];
    double loss, norm;
    make_docs(docs);
    Rows rows = padded(&arena, docs), dense = packed(&arena, docs);
    EXPECT(dense.rows > 1 && dense.rows < NUM_DOCS);
    run_layout(family, lora, &rows, NUM_DOCS, &loss, &norm);
    const struct {
        const Rows *rows;
        int         micro_batch;
        const char *what;
    } others[] = {{&rows, 4, "4x2"}, {&rows, 1, "1x8"}, {&dense, dense.rows, "packed"}, {&dense, 1, "packed, accumulated"}};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        double l, n;
        run_layout(family, lora, others[i].rows, others[i].micro_batch, &l, &n);
        if (!(fabs(l - loss) <= 1e-6 * loss) || !(fabs(n - norm) <= 1e-6 * norm))
            test_fail(__FILE__, __LINE__, "%s %s %s: loss %.9g, norm %.9g; 8x1: %.9g, %.9g", family, lora ? "lora" : "full", others[i].what,
                      l, n, loss, norm);
    }
    arena_deinit(&arena);
}

static void layout_changes_nothing_in_full_training(void)
{
    for (int i = 0; i < NUM_FAMILIES; i++) check_layouts(family_names[i], false);
}

static void layout_changes_nothing_with_lora_dropout(void)
{
    for (int i = 0; i < NUM_FAMILIES; i++) check_layouts(family_names[i], true);
}

TEST_MAIN(TEST(layout_changes_nothing_in_full_training), TEST(layout_changes_nothing_with_lora_dropout))
