/* sample: draws follow the distribution that the filters leave (chi-square), the fast kernel chooses the tokens that the sorting kernel
 * chooses, filters keep the tokens that transformers' filters keep (tests/fixtures/sample.safetensors, of
 * tests/oracle/make_sample_cases.py), and rows that can't be drawn from change nothing. TEST_LONG=1: a million draws of each mixture, and
 * more random rows.
 *
 *   test_sample [case]    run from the top of the project
 */
#include "files/safetensors.h"
#include "ops/op_case.h"
#include "ops/op_inputs.h"
#include "ops/sample/sample.h"

static ThreadPool *pool;

static const float neutral[SAMPLE_CONTROLS] = {1, 0, 1, 0, 1};

/* `rows` rows with neutral controls, each with its own slot; logits, keys, seen, biases and guides are 0. */
static OpCase make_guided_rows(int64_t rows, int64_t vocab, const SampleAttrs *attrs, bool seen, int64_t biases, bool guides)
{
    OpCase     c;
    TensorType in[NODE_MAX_IN] = {{DT_F32, 2, {rows, vocab}},
                                  {DT_F32, 2, {rows, SAMPLE_CONTROLS}},
                                  {DT_I32, 2, {rows, SAMPLE_KEYS}},
                                  {DT_I32, 1, {rows}},
                                  {DT_I32, 1, {rows}}};
    if (seen) in[SAMPLE_IN_SEEN] = type_make(DT_I32, 2, rows, vocab);
    if (biases) in[SAMPLE_IN_BIAS_IDS] = type_make(DT_I32, 2, rows, biases);
    if (biases) in[SAMPLE_IN_BIAS] = type_make(DT_F32, 2, rows, biases);
    if (guides) in[SAMPLE_IN_GUIDES] = type_make(DT_I32, 2, rows, sample_guide_words(vocab));
    if (op_case_make(&c, &op_sample, attrs, in) != OK) {
        fprintf(stderr, "%s\n", status_message());
        exit(1);
    }
    for (int i = 0; i < c.node->num_in; i++)
        if (c.in[i].data) memset(c.in[i].data, 0, c.in[i].bytes);
    for (int64_t b = 0; b < rows; b++) {
        memcpy(c.in[SAMPLE_IN_CONTROLS].data + b * (int64_t)sizeof neutral, neutral, sizeof neutral);
        ((int32_t *)(void *)c.in[SAMPLE_IN_SLOTS].data)[b] = (int32_t)b;
    }
    return c;
}

static OpCase make_rows(int64_t rows, int64_t vocab, const SampleAttrs *attrs, bool seen, int64_t biases)
{
    return make_guided_rows(rows, vocab, attrs, seen, biases, false);
}

static float *floats_of(const OpCase *c, int k)
{
    return (float *)(void *)c->in[k].data;
}

static int32_t *words_of(const OpCase *c, int k)
{
    return (int32_t *)(void *)c->in[k].data;
}

static const int32_t *ids_of(const OpCase *c)
{
    return (const int32_t *)(const void *)c->out[SAMPLE_OUT_IDS].data;
}

static const float *logprobs_of(const OpCase *c)
{
    return (const float *)(const void *)c->out[SAMPLE_OUT_LOGPROBS].data;
}

/* kernel 0: the fast one; 1: the reference. */
static void run_rows(OpCase *c, int kernel)
{
    EXPECT_OK(op_case_run(c, &op_sample.cpu[kernel], pool_num_workers(pool), op_sample.cpu[kernel].name));
}

/* ---- chi-square ---- */

/* Probability that a chi-square with `degrees` degrees of freedom is at least x: the upper incomplete gamma function (Abramowitz and
 * Stegun, 6.5.29 and 6.5.31). */
static double chi_square_tail(double x, double degrees)
{
    double a = degrees / 2, z = x / 2, front = exp(a * log(z) - z - lgamma(a));
    if (z < a + 1) {
        double term = 1 / a, sum = term;
        for (int n = 1; n < 10000 && term > 1e-16 * sum; n++) sum += term *= z / (a + n);
        return 1 - front * sum;
    }
    double b = z + 1 - a, c = 1e300, d = 1 / b, h = d;
    for (int n = 1; n < 10000; n++) {
        double an = -n * (n - a), change;
        b += 2;
        d = 1 / (an * d + b);
        c = b + an / c;
        h *= change = d * c;
        if (fabs(change - 1) < 1e-15) break;
    }
    return front * h;
}

/* Probability of counts at least this far from the expected ones; cells with less than 5 expected draws are joined into one. */
static double chance_of(const int64_t *counts, const double *expected, int64_t vocab, int64_t draws)
{
    double sum = 0, rare = 0, rare_count = 0;
    int    cells = 0;
    for (int64_t i = 0; i < vocab; i++) {
        double want = expected[i] * (double)draws, off = (double)counts[i] - want;
        if (want == 0 && counts[i]) return 0;
        if (want < 5) {
            rare += want;
            rare_count += (double)counts[i];
        } else {
            sum += off * off / want;
            cells++;
        }
    }
    if (rare > 0) sum += (rare_count - rare) * (rare_count - rare) / fmax(rare, 1), cells++;
    return cells < 2 ? 1 : chi_square_tail(sum, cells - 1);
}

enum { VOCAB = 1000, ROWS = 1000, BIASES = 4 };

typedef struct Mixture {
    const char *name;
    float       controls[SAMPLE_CONTROLS];
    bool        changed; /* true: with penalties for seen tokens, and with biases */
} Mixture;

static const Mixture mixtures[] = {
    {"temperature", {0.8f, 0, 1, 0, 1}, false},
    {"high temperature", {1.7f, 0, 1, 0, 1}, false},
    {"top-k", {1, 50, 1, 0, 1}, false},
    {"top-p", {1, 0, 0.9f, 0, 1}, false},
    {"min-p", {1, 0, 1, 0.05f, 1}, false},
    {"penalties", {1, 0, 1, 0, 1.3f, 0.4f, 0.2f}, true},
    {"bias alone", {0.9f, 0, 1, 0, 1}, true},
    {"top-k, top-p and temperature", {0.8f, 40, 0.8f, 0, 1}, false},
    {"all", {1.2f, 100, 0.95f, 0.01f, 0.8f, 0.3f, 0.1f}, true},
};

static const int32_t bias_ids[BIASES] = {3, 500, -1, 77};
static const float   biases[BIASES] = {2.5f, -1, 9, -INFINITY};

static float logit_of(int64_t id)
{
    return (float)(2 * draw_normal(77, (uint32_t)id));
}

static uint32_t seen_of(int64_t id)
{
    return (id % 5 == 0 ? SAMPLE_IN_PROMPT : 0) | (id % 7 == 0 ? (uint32_t)(id % 3 + 1) : 0);
}

/* The score of a token by the definition of its controls. */
static double score_of(const Mixture *m, int64_t id)
{
    double   score = logit_of(id);
    uint32_t seen = seen_of(id), count = seen & ~SAMPLE_IN_PROMPT;
    if (!m->changed) return score;
    for (int k = 0; k < BIASES; k++) score += bias_ids[k] == id ? biases[k] : 0;
    if (seen) score = score < 0 ? score * m->controls[SAMPLE_REPETITION] : score / m->controls[SAMPLE_REPETITION];
    return score - (double)m->controls[SAMPLE_FREQUENCY] * count - (count ? (double)m->controls[SAMPLE_PRESENCE] : 0);
}

typedef struct Token {
    double  score, weight;
    int64_t id;
} Token;

static int by_score(const void *a, const void *b)
{
    double x = ((const Token *)a)->score, y = ((const Token *)b)->score;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* Probabilities of all tokens in fp64; returns how many tokens top-k and top-p leave. *below: a top-p that leaves one fewer. */
static int64_t expect(const Mixture *m, double *chances, double *below)
{
    static Token tokens[VOCAB];
    double       all = 0, mass = 0, kept = 0;
    int64_t      count = m->controls[SAMPLE_TOP_K] > 0 ? (int64_t)m->controls[SAMPLE_TOP_K] : VOCAB, n = 0;
    for (int64_t i = 0; i < VOCAB; i++) tokens[i] = (Token){score_of(m, i), 0, i}, chances[i] = 0;
    qsort(tokens, VOCAB, sizeof tokens[0], by_score);
    for (int64_t i = 0; i < VOCAB; i++) tokens[i].weight = exp((tokens[i].score - tokens[0].score) / m->controls[SAMPLE_TEMPERATURE]);
    for (int64_t i = 0; i < count; i++) all += tokens[i].weight;
    while (n < count && (!n || mass < (double)m->controls[SAMPLE_TOP_P] * all)) mass += tokens[n++].weight;
    *below = (mass - 1.5 * tokens[n - 1].weight) / all;
    for (int64_t i = 0; i < n; i++) kept += tokens[i].weight >= m->controls[SAMPLE_MIN_P] ? tokens[i].weight : 0;
    for (int64_t i = 0; i < n; i++)
        if (tokens[i].weight >= m->controls[SAMPLE_MIN_P]) chances[tokens[i].id] = tokens[i].weight / kept;
    return n;
}

/* All rows of a batch have the logits of one sequence. */
static OpCase make_mixture(const Mixture *m)
{
    OpCase c = make_rows(ROWS, VOCAB, NULL, m->changed, m->changed ? BIASES : 0);
    for (int64_t b = 0; b < ROWS; b++) {
        memcpy(floats_of(&c, SAMPLE_IN_CONTROLS) + b * SAMPLE_CONTROLS, m->controls, sizeof m->controls);
        for (int64_t i = 0; i < VOCAB; i++) floats_of(&c, SAMPLE_IN_LOGITS)[b * VOCAB + i] = logit_of(i);
        if (!m->changed) continue;
        for (int64_t i = 0; i < VOCAB; i++) words_of(&c, SAMPLE_IN_SEEN)[b * VOCAB + i] = (int32_t)seen_of(i);
        memcpy(words_of(&c, SAMPLE_IN_BIAS_IDS) + b * BIASES, bias_ids, sizeof bias_ids);
        memcpy(floats_of(&c, SAMPLE_IN_BIAS) + b * BIASES, biases, sizeof biases);
    }
    return c;
}

/* Runs the kernel without op_case_run's checks, which take longer than the draws. Only counts of chosen tokens change in `seen`; they are
 * set back. */
static void run_plainly(OpCase *c, void *workspace, size_t bytes)
{
    TensorView in[NODE_MAX_IN] = {0}, out[NODE_MAX_OUT] = {0};
    for (int k = 0; k < NODE_MAX_IN; k++)
        if (c->in[k].data) in[k] = (TensorView){c->in[k].data, c->node->in[k]->type};
    out[SAMPLE_OUT_IDS] = (TensorView){c->out[SAMPLE_OUT_IDS].data, c->all_out[SAMPLE_OUT_IDS]->type};
    out[SAMPLE_OUT_NEXT] = in[SAMPLE_IN_NEXT];
    out[SAMPLE_OUT_SEEN] = in[SAMPLE_IN_SEEN];
    KernelArgs args = {.in = in,
                       .out = out,
                       .num_in = c->node->num_in,
                       .num_out = c->node->num_out,
                       .attrs = c->node->attrs,
                       .workspace = workspace,
                       .workspace_bytes = bytes,
                       .pool = pool};
    EXPECT_OK(op_sample.cpu[0].run(&args));
    for (int64_t b = 0; b < ROWS && in[SAMPLE_IN_SEEN].data; b++) words_of(c, SAMPLE_IN_SEEN)[b * VOCAB + ids_of(c)[b]]--;
}

static void count_draws(OpCase *c, uint32_t seed, int64_t draws, int64_t *counts)
{
    size_t bytes = op_sample.workspace(c->node, pool_num_workers(pool));
    void  *workspace = malloc(bytes);
    memset(counts, 0, VOCAB * sizeof *counts);
    for (int64_t done = 0; done < draws; done += ROWS) {
        for (int64_t b = 0; b < ROWS; b++) { /* rows as samples of requests, at growing positions */
            uint32_t keys[SAMPLE_KEYS] = {seed, 0, (uint32_t)(b / 4), 0, (uint32_t)(b % 4), (uint32_t)(done / ROWS)};
            memcpy(words_of(c, SAMPLE_IN_KEYS) + b * SAMPLE_KEYS, keys, sizeof keys);
        }
        run_plainly(c, workspace, bytes);
        for (int64_t b = 0; b < ROWS; b++) counts[ids_of(c)[b]]++;
    }
    free(workspace);
}

static int64_t number_of_draws(void)
{
    return getenv("TEST_LONG") ? 1000000 : TEST_IS_WATCHED ? 20000 : 100000;
}

static void draws_follow_the_distribution(void)
{
    static double  chances[VOCAB];
    static int64_t counts[VOCAB];
    double         below;
    for (size_t i = 0; i < sizeof mixtures / sizeof mixtures[0]; i++) {
        OpCase c = make_mixture(&mixtures[i]);
        expect(&mixtures[i], chances, &below);
        for (uint32_t seed = 1; seed <= 3; seed++) {
            count_draws(&c, seed, number_of_draws(), counts);
            double chance = chance_of(counts, chances, VOCAB, number_of_draws());
            if (!(chance > 1e-4)) test_fail(__FILE__, __LINE__, "%s, seed %u: chance %.3g", mixtures[i].name, seed, chance);
        }
        op_case_free(&c);
    }
}

/* Slightly wrong draws: the test must see each fault at a million draws. */
static void faults_are_seen(void)
{
    static double  chances[VOCAB];
    static int64_t counts[VOCAB];
    double         below;
    Mixture        warm = mixtures[0], narrow = mixtures[3];
    for (uint32_t seed = 1; seed <= (getenv("TEST_LONG") ? 3 : !TEST_IS_WATCHED); seed++) {
        expect(&mixtures[0], chances, &below);
        warm.controls[SAMPLE_TEMPERATURE] *= 1.02f;
        OpCase c = make_mixture(&warm);
        count_draws(&c, seed, 1000000, counts);
        EXPECT(chance_of(counts, chances, VOCAB, 1000000) < 1e-4);
        op_case_free(&c);
        warm = mixtures[0];
        int64_t n = expect(&mixtures[3], chances, &below);
        narrow.controls[SAMPLE_TOP_P] = (float)below;
        static double fewer[VOCAB];
        EXPECT_INT(expect(&narrow, fewer, &below), n - 1);
        c = make_mixture(&narrow);
        count_draws(&c, seed, 1000000, counts);
        EXPECT(chance_of(counts, fewer, VOCAB, 1000000) > 1e-4);
        EXPECT(chance_of(counts, chances, VOCAB, 1000000) < 1e-4);
        op_case_free(&c);
        narrow = mixtures[3];
    }
}

/* ---- the two kernels ---- */

typedef struct Random {
    uint64_t key;
    uint32_t index;
} Random;

static uint32_t below(Random *r, uint32_t count)
{
    return philox4x32(r->index++, 0, 0, 0, r->key).v[0] % count;
}

#define ONE_OF(r, ...) ((float[]){__VA_ARGS__})[below(r, sizeof((float[]){__VA_ARGS__}) / sizeof(float))]

/* Draws logits of many kinds: normal, with few distinct values, mostly -inf, with some -0, in order of ids. */
static void draw_logits(Random *r, float *logits, int64_t count, int64_t vocab)
{
    float scale = ONE_OF(r, 0, 0.01f, 1, 3, 10, 1e30f);
    int   kind = (int)below(r, 5);
    for (int64_t i = 0; i < count; i++) {
        float x = (float)draw_normal(r->key + 1, (uint32_t)i);
        if (kind == 1) x = roundf(2 * x) / 2;
        if (kind == 4) x = (float)(i % vocab) * 1e-4f;
        logits[i] = x * scale;
        if (kind == 2 && i % 8) logits[i] = -INFINITY;
        if (kind == 3 && i % 16 == 0) logits[i] = -0.0f;
    }
    if (below(r, 10) == 0) logits[below(r, (uint32_t)count)] = ONE_OF(r, NAN, -NAN, INFINITY);
}

static void draw_rest(Random *r, const OpCase *c, int64_t rows, int64_t vocab, int64_t num_biases)
{
    bool few = vocab < 20 && below(r, 2);
    for (int64_t b = 0; b < rows; b++) {
        float all = (float)vocab, controls[SAMPLE_CONTROLS] = {ONE_OF(r, 0, 1, 0.8f, 1.7f, 1e-30f, 1e30f, 1e-40f, INFINITY),
                                                               ONE_OF(r, 0, 0, 1, 7, 50, 300, 3000, 1e9f, all, all - 1),
                                                               ONE_OF(r, 1, 1, 0.9f, 0.5f, 1e-9f, 0.99f, 0.9999f, 0),
                                                               ONE_OF(r, 0, 0, 0.05f, 1e-4f, 1, 1e-9f),
                                                               ONE_OF(r, 1, 1, 1.3f, 0.7f),
                                                               ONE_OF(r, 0, 0, 0.5f),
                                                               ONE_OF(r, 0, 0, 0.3f, -0.2f)};
        memcpy(floats_of(c, SAMPLE_IN_CONTROLS) + b * SAMPLE_CONTROLS, controls, sizeof controls);
        for (int k = 0; k < SAMPLE_KEYS; k++)
            words_of(c, SAMPLE_IN_KEYS)[b * SAMPLE_KEYS + k] = (int32_t)philox4x32(r->index++, 1, 0, 0, r->key).v[0];
        if (below(r, 9) == 0) words_of(c, SAMPLE_IN_SLOTS)[b] = -1;
        for (int64_t k = b * num_biases; k < (b + 1) * num_biases; k++) {
            words_of(c, SAMPLE_IN_BIAS_IDS)[k] = few ? (int32_t)(k % vocab) : below(r, 4) ? (int32_t)below(r, (uint32_t)vocab) : -1;
            floats_of(c, SAMPLE_IN_BIAS)[k] = few ? -INFINITY : ONE_OF(r, 1.5f, -2, 0, 30, -INFINITY);
        }
    }
    for (int64_t i = 0; c->in[SAMPLE_IN_GUIDES].data && i < rows * sample_guide_words(vocab); i++)
        words_of(c, SAMPLE_IN_GUIDES)[i] = below(r, 2) ? (int32_t)philox4x32(r->index++, 2, 0, 0, r->key).v[0] : 0;
    for (int64_t b = 0; b < rows; b++) floats_of(c, SAMPLE_IN_CONTROLS)[b * SAMPLE_CONTROLS + SAMPLE_GUIDED] = (float)below(r, 2);
    for (int64_t i = 0; c->in[SAMPLE_IN_SEEN].data && i < rows * vocab; i++)
        words_of(c, SAMPLE_IN_SEEN)[i] = below(r, 3) ? 0 : (int32_t)((below(r, 2) ? SAMPLE_IN_PROMPT : 0) | below(r, 4));
}

static void compare_kernels(Random *r, int64_t vocab)
{
    int64_t     rows = 1 + below(r, 4), num_biases = below(r, 2) * (1 + below(r, 30));
    SampleAttrs attrs = {.vocab = below(r, 3) ? 0 : 1 + below(r, (uint32_t)vocab), .best = (int64_t)ONE_OF(r, 0, 1, 5, 300, 1024)};
    OpCase      c = make_guided_rows(rows, vocab, &attrs, below(r, 2), num_biases, below(r, 3) == 0);
    void       *want[NODE_MAX_OUT] = {0};
    draw_logits(r, floats_of(&c, SAMPLE_IN_LOGITS), rows * vocab, vocab);
    draw_rest(r, &c, rows, vocab, num_biases);
    run_rows(&c, 1);
    for (int k = 0; k < op_sample.num_out; k++)
        if (c.out[k].data) want[k] = memcpy(malloc(c.out[k].bytes), c.out[k].data, c.out[k].bytes);
    run_rows(&c, 0);
    for (int k = 0; k < op_sample.num_out; k++) {
        if (want[k] && memcmp(want[k], c.out[k].data, c.out[k].bytes) != 0)
            test_fail(__FILE__, __LINE__, "key %llu, vocabulary %lld: output %d isn't the reference's", (unsigned long long)r->key,
                      (long long)vocab, k);
        free(want[k]);
    }
    op_case_free(&c);
}

static void fast_is_the_reference(void)
{
    static const int64_t vocabs[] = {1, 2, 5, 33, 255, 256, 257, 700, 1000, 2049, 8192};
    int                  count = getenv("TEST_LONG") ? 20000 : TEST_IS_WATCHED ? 100 : 2000;
    for (int i = 0; i < count; i++) {
        Random r = {.key = (uint64_t)i * 1000};
        compare_kernels(&r, vocabs[below(&r, sizeof vocabs / sizeof vocabs[0])]);
    }
    for (int i = 0; i < count / 200; i++) {
        Random r = {.key = (uint64_t)i * 1000 + 500};
        compare_kernels(&r, 100000 + below(&r, 60000));
    }
}

/* ---- filters ---- */

/* Tokens are drawn with the probabilities that transformers' filters leave, and no other tokens are drawn. */
static void filters_are_those_of_transformers(void)
{
    enum { DRAWS = 2000 };
    static const char *const names[] = {"logits", "controls", "seen", "bias_ids", "bias", "logprobs"};
    static const int         inputs[] = {SAMPLE_IN_LOGITS, SAMPLE_IN_CONTROLS, SAMPLE_IN_SEEN, SAMPLE_IN_BIAS_IDS, SAMPLE_IN_BIAS};
    const StTensor          *tensors[6];
    StFile                  *file;
    EXPECT_OK(st_open("tests/fixtures/sample.safetensors", &file));
    for (int k = 0; k < 6; k++) tensors[k] = st_find(file, names[k]);
    int64_t vocab = tensors[0]->dim[1], num_biases = tensors[4]->dim[1];
    OpCase  c = make_rows(DRAWS, vocab, NULL, true, num_biases);
    for (int64_t i = 0; i < tensors[0]->dim[0]; i++) {
        const float *want = (const float *)tensors[5]->data + i * vocab;
        double       found = 0;
        bool         drawn[1024] = {0};
        for (int64_t b = 0; b < DRAWS; b++) {
            for (int k = 0; k < 5; k++) {
                int64_t bytes = 4 * tensors[k]->dim[1];
                memcpy(c.in[inputs[k]].data + b * bytes, (const char *)tensors[k]->data + i * bytes, (size_t)bytes);
            }
            words_of(&c, SAMPLE_IN_KEYS)[b * SAMPLE_KEYS + SAMPLE_POSITION] = (int32_t)b;
        }
        run_rows(&c, 0);
        for (int64_t b = 0; b < DRAWS; b++) {
            int32_t id = ids_of(&c)[b];
            if (!(fabsf(logprobs_of(&c)[2 * b + 1] - want[id]) < 2e-5f))
                test_fail(__FILE__, __LINE__, "case %d: id %d at %.6f, transformers: %.6f", (int)i, id, logprobs_of(&c)[2 * b + 1],
                          want[id]);
            if (!drawn[id]) found += exp((double)want[id]);
            drawn[id] = true;
        }
        EXPECT(found > 0.97); /* the other tokens are too rare for so few draws */
    }
    op_case_free(&c);
    st_close(file);
}

/* Only the likeliest token is left, of equally likely tokens the lowest id: greedy, k of 1, a tiny p, the largest min-p, a temperature near
 * 0. */
static void one_is_left(void)
{
    enum { VARIANTS = 5, EQUALS = 3 };
    static const float controls[VARIANTS][SAMPLE_CONTROLS] = {
        {0, 9, 0.5f, 0, 1}, {1, 1, 1, 0, 1}, {1, 0, 1e-12f, 0, 1}, {1, 0, 1, 1, 1}, {1e-35f, 0, 1, 0, 1}};
    OpCase c = make_rows(VARIANTS, VOCAB, NULL, false, 0);
    for (int64_t b = 0; b < VARIANTS; b++) {
        float *logits = floats_of(&c, SAMPLE_IN_LOGITS) + b * VOCAB;
        memcpy(floats_of(&c, SAMPLE_IN_CONTROLS) + b * SAMPLE_CONTROLS, controls[b], sizeof controls[b]);
        for (int64_t i = 0; i < VOCAB; i++) logits[i] = logit_of(i);
        for (int k = 0; k < (b < 3 ? EQUALS : 1); k++) logits[700 + k] = 20;
    }
    for (int kernel = 0; kernel < 2; kernel++) {
        run_rows(&c, kernel);
        for (int b = 0; b < VARIANTS; b++) EXPECT_INT(ids_of(&c)[b], 700);
        for (int b = 0; b < VARIANTS; b++) EXPECT(logprobs_of(&c)[2 * b + 1] == 0);
    }
    op_case_free(&c);
}

/* ---- guides ---- */

static bool is_allowed(const OpCase *c, int64_t b, int64_t id)
{
    const uint32_t *guide = (const uint32_t *)words_of(c, SAMPLE_IN_GUIDES) + b * sample_guide_words(VOCAB);
    return guide[id / 32] >> (id % 32) & 1;
}

/* A row with a guide chooses only among the guide's tokens, with their probabilities relative to each other; the reported log-probabilities
 * are still the model's. Guides don't change other rows. A bias can't allow a token. */
static void a_guide_leaves_its_tokens(void)
{
    enum { GUIDED = 200 };
    OpCase plain = make_rows(GUIDED, VOCAB, NULL, false, 1), c = make_guided_rows(GUIDED, VOCAB, NULL, false, 1, true);
    for (int64_t b = 0; b < GUIDED; b++) {
        for (int64_t i = 0; i < VOCAB; i++) floats_of(&c, SAMPLE_IN_LOGITS)[b * VOCAB + i] = logit_of(i);
        for (int64_t w = 0; w < sample_guide_words(VOCAB); w++)
            words_of(&c, SAMPLE_IN_GUIDES)[b * sample_guide_words(VOCAB) + w] = (int32_t)philox4x32((uint32_t)b, (uint32_t)w, 0, 0, 4).v[0];
        float *controls = floats_of(&c, SAMPLE_IN_CONTROLS) + b * SAMPLE_CONTROLS;
        controls[SAMPLE_TEMPERATURE] = b % 3 ? 1.5f : 0;
        controls[SAMPLE_GUIDED] = b % 4 != 3;
        words_of(&c, SAMPLE_IN_KEYS)[b * SAMPLE_KEYS + SAMPLE_POSITION] = (int32_t)b;
        int64_t banned = 0;
        while (is_allowed(&c, b, banned)) banned++;
        words_of(&c, SAMPLE_IN_BIAS_IDS)[b] = b % 4 == 3 ? -1 : (int32_t)banned;
        floats_of(&c, SAMPLE_IN_BIAS)[b] = 100;
    }
    for (int k = 0; k < SAMPLE_IN_GUIDES; k++)
        if (c.in[k].data) memcpy(plain.in[k].data, c.in[k].data, c.in[k].bytes);
    for (int kernel = 0; kernel < 2; kernel++) {
        run_rows(&plain, kernel);
        run_rows(&c, kernel);
        for (int64_t b = 0; b < GUIDED; b++) {
            int32_t id = ids_of(&c)[b];
            if (b % 4 == 3) {
                EXPECT(id == ids_of(&plain)[b] && memcmp(logprobs_of(&c) + 2 * b, logprobs_of(&plain) + 2 * b, 8) == 0);
                continue;
            }
            double all = 0, kept = 0, scale = b % 3 ? 1 / 1.5 : 1;
            for (int64_t i = 0; i < VOCAB; i++) all += exp((double)logit_of(i));
            for (int64_t i = 0; i < VOCAB; i++) kept += is_allowed(&c, b, i) ? exp((double)logit_of(i) * scale) : 0;
            EXPECT(is_allowed(&c, b, id));
            EXPECT_NEAR(logprobs_of(&c)[2 * b], (double)logit_of(id) - log(all), 1e-4);
            if (b % 3) EXPECT_NEAR(logprobs_of(&c)[2 * b + 1], (double)logit_of(id) * scale - log(kept), 1e-4);
            for (int64_t i = 0; i < VOCAB && b % 3 == 0; i++) EXPECT(!is_allowed(&c, b, i) || logit_of(i) <= logit_of(id));
        }
    }
    op_case_free(&c);
    op_case_free(&plain);
}

/* ---- rows and keys ---- */

static void nothing_changes_for_rows_without_a_choice(void)
{
    enum { BROKEN = 6 };
    static const int32_t want[BROKEN] = {SAMPLE_BAD, SAMPLE_BAD, SAMPLE_BAD, SAMPLE_BAD, SAMPLE_IDLE, 2};
    SampleAttrs          attrs = {.vocab = 4};
    OpCase               c = make_rows(BROKEN, 6, &attrs, true, 4);
    float               *logits = floats_of(&c, SAMPLE_IN_LOGITS);
    logits[0] = NAN;
    logits[6 + 1] = INFINITY;
    for (int i = 0; i < 4; i++) logits[2 * 6 + i] = -INFINITY;
    for (int i = 0; i < BROKEN * 4; i++) words_of(&c, SAMPLE_IN_BIAS_IDS)[i] = i / 4 == 3 ? i % 4 : -1;
    for (int i = 0; i < BROKEN * 4; i++) floats_of(&c, SAMPLE_IN_BIAS)[i] = -INFINITY;
    words_of(&c, SAMPLE_IN_SLOTS)[4] = -1;
    logits[5 * 6 + 2] = 50;
    logits[5 * 6 + 5] = NAN; /* after the ids that may be chosen */
    words_of(&c, SAMPLE_IN_SLOTS)[5] = 4;
    for (int i = 0; i < BROKEN; i++) words_of(&c, SAMPLE_IN_NEXT)[i] = 9;
    words_of(&c, SAMPLE_IN_SEEN)[4 * 6 + 2] = INT32_MIN + 7;
    for (int kernel = 0; kernel < 2; kernel++) {
        run_rows(&c, kernel);
        const int32_t *next = (const int32_t *)(const void *)c.out[SAMPLE_OUT_NEXT].data;
        const int32_t *seen = (const int32_t *)(const void *)c.out[SAMPLE_OUT_SEEN].data;
        for (int b = 0; b < BROKEN; b++) EXPECT_INT(ids_of(&c)[b], want[b]);
        for (int s = 0; s < BROKEN; s++) EXPECT_INT(next[s], s == 4 ? 2 : 9);
        for (int i = 0; i < BROKEN * 6; i++) EXPECT_INT(seen[i], i == 4 * 6 + 2 ? INT32_MIN + 8 : 0);
    }
    op_case_free(&c);
}

/* A draw depends on each of the six words, and on nothing else: neither on the slot nor on other rows. */
static void a_draw_is_of_its_keys(void)
{
    enum { COUNT = 64 };
    int32_t first[COUNT];
    OpCase  c = make_rows(COUNT, VOCAB, NULL, false, 0);
    for (int32_t b = 0; b < COUNT; b++) words_of(&c, SAMPLE_IN_KEYS)[b * SAMPLE_KEYS + SAMPLE_POSITION] = b;
    run_rows(&c, 0);
    memcpy(first, ids_of(&c), sizeof first);
    for (int32_t b = 0; b < COUNT; b++) {
        words_of(&c, SAMPLE_IN_SLOTS)[b] = (b + 9) % COUNT;
        words_of(&c, SAMPLE_IN_KEYS)[b * SAMPLE_KEYS + SAMPLE_POSITION] = COUNT - 1 - b;
    }
    run_rows(&c, 0);
    for (int b = 0; b < COUNT; b++) EXPECT_INT(ids_of(&c)[b], first[COUNT - 1 - b]);
    for (int word = 0; word < SAMPLE_POSITION; word++) {
        int same = 0;
        for (int b = 0; b < COUNT; b++) words_of(&c, SAMPLE_IN_KEYS)[b * SAMPLE_KEYS + word] = 1;
        run_rows(&c, 0);
        for (int b = 0; b < COUNT; b++) same += ids_of(&c)[b] == first[COUNT - 1 - b];
        for (int b = 0; b < COUNT; b++) words_of(&c, SAMPLE_IN_KEYS)[b * SAMPLE_KEYS + word] = 0;
        EXPECT(same < 6);
    }
    op_case_free(&c);
}

/* ---- numbers ---- */

static void weights_are_near(void)
{
    double worst = 0;
    EXPECT(sample_weight(3, 3, 1) == SAMPLE_ONE);
    EXPECT(sample_weight(-INFINITY, 3, 1) == 0);
    for (int i = 0; i < 2000000; i++) {
        float    d = -(float)i * 1.4e-5f, e = sample_exp(d);
        uint64_t weight = sample_mass(sample_coarse(e), sample_fine(e));
        worst = fmax(worst, fabs(e / exp((double)d) - 1));
        EXPECT(fabs((double)weight - e * (double)SAMPLE_ONE) <= 0.5 && weight <= SAMPLE_ONE);
    }
    EXPECT(worst < 2e-7);
}

static void logprobs_are_those_of_doubles(void)
{
    enum { LARGE = 151936, BEST = 20 };
    SampleAttrs attrs = {.best = BEST};
    OpCase      c = make_rows(1, LARGE, &attrs, false, 0);
    float      *logits = floats_of(&c, SAMPLE_IN_LOGITS);
    double      most = -INFINITY, sum = 0;
    for (int64_t i = 0; i < LARGE; i++) logits[i] = 3 * (float)draw_normal(5, (uint32_t)i);
    for (int64_t i = 0; i < LARGE; i++) most = fmax(most, logits[i]);
    for (int64_t i = 0; i < LARGE; i++) sum += exp(logits[i] - most);
    for (int kernel = 0; kernel < 2; kernel++) {
        run_rows(&c, kernel);
        const int32_t *ids = (const int32_t *)(const void *)c.out[SAMPLE_OUT_BEST_IDS].data;
        const float   *best = (const float *)(const void *)c.out[SAMPLE_OUT_BEST_LOGPROBS].data;
        double         chosen = logits[ids_of(&c)[0]] - most - log(sum);
        EXPECT(fabs(logprobs_of(&c)[0] - chosen) < 1e-6 * fabs(chosen) && fabs(logprobs_of(&c)[1] - chosen) < 1e-6 * fabs(chosen));
        for (int k = 0; k < BEST; k++) {
            double want = logits[ids[k]] - most - log(sum);
            EXPECT(fabs(best[k] - want) < 1e-6 * fabs(want));
            EXPECT(k == 0 || logits[ids[k - 1]] > logits[ids[k]]);
        }
    }
    op_case_free(&c);
}

int main(int argc, char **argv)
{
    static const TestCase cases[] = {
        TEST(draws_follow_the_distribution),
        TEST(faults_are_seen),
        TEST(fast_is_the_reference),
        TEST(filters_are_those_of_transformers),
        TEST(one_is_left),
        TEST(a_guide_leaves_its_tokens),
        TEST(nothing_changes_for_rows_without_a_choice),
        TEST(a_draw_is_of_its_keys),
        TEST(weights_are_near),
        TEST(logprobs_are_those_of_doubles),
    };
    if (pool_create(0, &pool) != OK) return 1;
    int failed = test_run(cases, sizeof cases / sizeof cases[0], argc, argv);
    pool_destroy(pool);
    return failed;
}
