/* nvfp4_quantise: encodes x, or its transpose, in e2m1 with a scale for each 16 elements along a row of codes (ops/lowbit/nvfp4.h).
 *
 * It works on squares of 16 x 16 elements of x: 16 blocks side by side, which share one scale if blocks are two-dimensional. A line of a
 * square becomes a block: it is a part of a row of x or, transposed, of a column. Squares at the lower edge may have fewer rows.
 *
 * Stochastic rounding is keyed by (seed, step, site) and counted by (document, position, element), also if x is transposed. Four over six
 * chooses by rounding to nearest, so that the choice doesn't depend on the draws and the mean stays x. */
#include "ops/infer.h"
#include "ops/lowbit/nvfp4.h"
#include "ops/random.h"

static const AttrDef nvfp4_quantise_attrs[] = {ATTR_BOOL(Nvfp4Attrs, transposed, false),
                                               ATTR_BOOL(Nvfp4Attrs, two_d, false),
                                               ATTR_BOOL(Nvfp4Attrs, four_six, false),
                                               ATTR_BOOL(Nvfp4Attrs, stochastic, false),
                                               ATTR_BOOL(Nvfp4Attrs, hadamard, false),
                                               ATTR_BOOL(Nvfp4Attrs, tiled, false),
                                               ATTR_SITE(Nvfp4Attrs, site),
                                               {0}};

enum { IN_X, IN_STEP, IN_DOC_ID, IN_POSITIONS };
enum { OUT_CODES, OUT_SCALE, OUT_GLOBAL };

static Status infer_random(const Node *node)
{
    const Nvfp4Attrs *attrs = node->attrs;
    TensorType        rows = type_without_last(&node->in[IN_X]->type, DT_I32);
    for (int k = IN_STEP; k <= IN_POSITIONS; k++)
        FAIL_IF(!node->in[k] == attrs->stochastic, ERR_INVALID, "attribute stochastic is %s; expected step, doc_id and positions %s it",
                attrs->stochastic ? "true" : "false", attrs->stochastic ? "with" : "only with");
    if (!attrs->stochastic) return OK;
    TRY(infer_input(node, IN_STEP, "step", DT_SET(DT_I64), DIMS(STEP_COUNT)));
    TRY(infer_like(node, IN_DOC_ID, "doc_id", DT_SET(DT_I32), &rows));
    return infer_like(node, IN_POSITIONS, "positions", DT_SET(DT_I32), &rows);
}

/* x (...,C), [step i64 (STEP_COUNT)], [doc_id i32 (...)], [positions i32 (...)] -> codes e2m1 (...,C), scale e4m3 (...,C / 16), global
 * f32 (1); transposed: codes (C,N), scale (C,N / 16); tiled: scale (N / 128, C / 64, 512), quotients rounded up. */
static Status nvfp4_quantise_infer(Node *node)
{
    const Nvfp4Attrs *attrs = node->attrs;
    TRY(infer_float(node, IN_X, "x", 2));
    const TensorType *x = &node->in[IN_X]->type;
    int64_t           rows = type_rows(x), cols = type_cols(x);
    FAIL_IF((!attrs->transposed || attrs->two_d) && cols % NVFP4_BLOCK, ERR_INVALID, "x has %lld columns; expected a multiple of 16",
            (long long)cols);
    FAIL_IF((attrs->transposed || attrs->two_d) && rows % NVFP4_BLOCK, ERR_INVALID,
            "x has %lld rows; expected a multiple of 16 for codes of %s", (long long)rows,
            attrs->two_d ? "square blocks" : "its transpose");
    TRY(infer_random(node));
    TensorType codes = attrs->transposed ? type_make(DT_E2M1, 2, cols, rows) : type_as(x, DT_E2M1);
    node->out[OUT_CODES]->type = codes;
    node->out[OUT_SCALE]->type = nvfp4_scale_type(&codes, attrs->tiled);
    node->out[OUT_GLOBAL]->type = type_make(DT_F32, 1, INT64_C(1));
    return OK;
}

/* 20 operations an element are scaling, rounding and packing; four_six tries a second scale. x is read twice. */
static OpCost nvfp4_quantise_cost(const Node *node)
{
    const Nvfp4Attrs *attrs = node->attrs;
    const TensorType *x = &node->in[IN_X]->type;
    OpCost            cost =
        cost_streaming(node, (20.0 + 60.0 * attrs->four_six + 15.0 * attrs->stochastic + 10.0 * attrs->hadamard) * (double)type_numel(x));
    cost.bytes += (double)type_bytes(x);
    return cost;
}

/* ---- squares ---- */

typedef struct Square {
    int      lines;                                 /* 16, or fewer rows at the lower edge */
    int64_t  row, col;                              /* first row and column, in x */
    float    v[NVFP4_BLOCK][NVFP4_BLOCK];           /* [line][element] */
    uint32_t random[NVFP4_BLOCK][NVFP4_BLOCK];      /* [line][element] */
    uint32_t most[NVFP4_BLOCK], scale[NVFP4_BLOCK]; /* for each line: largest magnitude; code of the scale */
} Square;

static int64_t squares_down(const TensorType *x)
{
    return div_up(type_rows(x), NVFP4_BLOCK);
}

static int64_t squares_across(const TensorType *x)
{
    return div_up(type_cols(x), NVFP4_BLOCK);
}

static void hadamard(float *v)
{
    float first[NVFP4_BLOCK / 2], second[NVFP4_BLOCK / 2];
    for (int i = 0; i < NVFP4_BLOCK / 2; i++) first[i] = nvfp4_signed(v[i], i);
    for (int i = 0; i < NVFP4_BLOCK / 2; i++) second[i] = nvfp4_signed(v[i + NVFP4_BLOCK / 2], i + NVFP4_BLOCK / 2);
    nvfp4_hadamard8(first);
    nvfp4_hadamard8(second);
    for (int i = 0; i < NVFP4_BLOCK; i++) v[i] = nvfp4_hadamard_join(first[i % 8], second[i % 8], i >= NVFP4_BLOCK / 2);
}

/* Loads a square, transforms it, and finds the largest magnitude of each line. */
static void square_load(const KernelArgs *args, int64_t down, int64_t across, Square *s)
{
    const Nvfp4Attrs *attrs = args->attrs;
    const TensorView *x = &args->in[IN_X];
    int64_t           rows = type_rows(&x->type), cols = type_cols(&x->type);
    s->row = down * NVFP4_BLOCK;
    s->col = across * NVFP4_BLOCK;
    int high = (int)min_i64(NVFP4_BLOCK, rows - s->row), wide = (int)min_i64(NVFP4_BLOCK, cols - s->col);
    s->lines = attrs->transposed ? wide : high;
    for (int i = 0; i < high; i++) {
        float        scratch[NVFP4_BLOCK];
        const float *row = tile_load(x, (s->row + i) * cols + s->col, wide, scratch);
        for (int j = 0; j < wide; j++) *(attrs->transposed ? &s->v[j][i] : &s->v[i][j]) = row[j];
    }
    for (int line = 0; line < s->lines; line++) {
        if (attrs->hadamard) hadamard(s->v[line]);
        s->most[line] = most_magnitude(0, s->v[line], NVFP4_BLOCK);
    }
}

static uint32_t square_most(const Square *s)
{
    uint32_t most = 0;
    for (int line = 0; line < s->lines; line++) most = s->most[line] > most ? s->most[line] : most;
    return most;
}

/* The squared error of a line with this scale. */
static uint64_t line_error(const Square *s, int line, uint32_t code, float global)
{
    float    scale = nvfp4_scale(code), inverse = nvfp4_inverse(global, scale), unit = nvfp4_error_unit(s->most[line], global);
    uint64_t error = 0;
    for (int i = 0; i < NVFP4_BLOCK; i++) error += nvfp4_error(s->v[line][i], global, scale, inverse, unit);
    return error;
}

/* Chooses the scale that lines [first, end) share. */
static void choose_scale(Square *s, int first, int end, float global, bool four_six)
{
    uint32_t six = nvfp4_scale_code(s->most[first], 6, global), four = nvfp4_scale_code(s->most[first], 4, global);
    uint64_t of_six = 0, of_four = 0;
    for (int line = first; line < end && four_six; line++) {
        of_six += line_error(s, line, six, global);
        of_four += line_error(s, line, four, global);
    }
    for (int line = first; line < end; line++) s->scale[line] = of_four < of_six ? four : six;
}

static void square_scales(Square *s, const Nvfp4Attrs *attrs, float global)
{
    uint32_t most = square_most(s);
    for (int line = 0; line < s->lines && attrs->two_d; line++) s->most[line] = most;
    for (int line = 0; line < s->lines; line += attrs->two_d ? s->lines : 1)
        choose_scale(s, line, attrs->two_d ? s->lines : line + 1, global, attrs->four_six);
}

static void square_draw(const KernelArgs *args, Square *s)
{
    const Nvfp4Attrs *attrs = args->attrs;
    const int32_t    *doc_id = args->in[IN_DOC_ID].data, *positions = args->in[IN_POSITIONS].data;
    const int64_t    *step = args->in[IN_STEP].data, rows = type_rows(&args->in[IN_X].type);
    uint64_t          key = random_key(step[STEP_SEED], step[STEP_INDEX], RANDOM_NVFP4, attrs->site);
    for (int i = 0; i < NVFP4_BLOCK && s->row + i < rows; i++)
        for (int j = 0; j < NVFP4_BLOCK; j += 8) {
            Philox4 draw = random_octet(key, doc_id[s->row + i], positions[s->row + i], (uint32_t)((s->col + j) / 8));
            for (int k = 0; k < 8; k++) *(attrs->transposed ? &s->random[j + k][i] : &s->random[i][j + k]) = random_of_octet(&draw, k);
        }
}

static void square_store(const KernelArgs *args, const Square *s, float global, bool stochastic)
{
    const Nvfp4Attrs *attrs = args->attrs;
    const TensorType *x = &args->in[IN_X].type;
    uint8_t          *codes = args->out[OUT_CODES].data, *scales = args->out[OUT_SCALE].data;
    int64_t           length = attrs->transposed ? type_rows(x) : type_cols(x), blocks = length / NVFP4_BLOCK;
    for (int line = 0; line < s->lines; line++) {
        int64_t  row = (attrs->transposed ? s->col : s->row) + line, col = attrs->transposed ? s->row : s->col;
        int64_t  at = row * length + col;
        float    inverse = nvfp4_inverse(global, nvfp4_scale(s->scale[line]));
        uint32_t code[NVFP4_BLOCK];
        if (scales) scales[nvfp4_scale_at(row, col / NVFP4_BLOCK, blocks, attrs->tiled)] = (uint8_t)s->scale[line];
        if (!codes) continue;
        for (int i = 0; i < NVFP4_BLOCK; i++)
            code[i] = stochastic ? small_stochastic(small_e2m1(), s->v[line][i] * inverse, s->random[line][i])
                                 : nvfp4_code(s->v[line][i], inverse);
        for (int i = 0; i < NVFP4_BLOCK; i += 2) codes[(at + i) / 2] = (uint8_t)(code[i] | code[i + 1] << 4);
    }
}

/* ---- the kernel ---- */

typedef struct Quantise {
    const KernelArgs *args;
    uint32_t         *most; /* the largest magnitude of each row of squares */
    float             global;
} Quantise;

static void most_task(void *context, int64_t task, int worker)
{
    const Quantise *q = context;
    Square          s;
    (void)worker;
    q->most[task] = 0;
    for (int64_t across = 0; across < squares_across(&q->args->in[IN_X].type); across++) {
        square_load(q->args, task, across, &s);
        uint32_t most = square_most(&s);
        q->most[task] = most > q->most[task] ? most : q->most[task];
    }
}

static void quantise_task(void *context, int64_t task, int worker)
{
    const Quantise   *q = context;
    const Nvfp4Attrs *attrs = q->args->attrs;
    Square            s;
    (void)worker;
    for (int64_t across = 0; across < squares_across(&q->args->in[IN_X].type); across++) {
        square_load(q->args, task, across, &s);
        square_scales(&s, attrs, q->global);
        if (attrs->stochastic) square_draw(q->args, &s);
        square_store(q->args, &s, q->global, attrs->stochastic);
    }
}

static size_t nvfp4_quantise_workspace(const Node *node, int num_workers)
{
    (void)num_workers;
    return (size_t)squares_down(&node->in[IN_X]->type) * sizeof(uint32_t);
}

static size_t nvfp4_quantise_gpu_workspace(const Node *node, int sm)
{
    (void)node, (void)sm;
    return sizeof(uint32_t);
}

static Status nvfp4_quantise_cpu(const KernelArgs *args)
{
    const Nvfp4Attrs *attrs = args->attrs;
    int64_t           tasks = squares_down(&args->in[IN_X].type);
    Quantise          q = {.args = args, .most = args->workspace};
    uint32_t          most = 0;
    pool_run(args->pool, tasks, most_task, &q);
    for (int64_t i = 0; i < tasks; i++) most = q.most[i] > most ? q.most[i] : most;
    q.global = nvfp4_global(most, attrs->four_six);
    if (attrs->tiled && args->out[OUT_SCALE].data) memset(args->out[OUT_SCALE].data, 0, (size_t)type_bytes(&args->out[OUT_SCALE].type));
    pool_run(args->pool, tasks, quantise_task, &q);
    if (args->out[OUT_GLOBAL].data) *(float *)args->out[OUT_GLOBAL].data = q.global;
    return OK;
}

const OpDef op_nvfp4_quantise = {
    .id = OP_NVFP4_QUANTISE,
    .name = "nvfp4_quantise",
    .synopsis = "codes = e2m1 codes of x / (scale global), scale = max |x| / 6 / global of each 16 elements along a row, global "
                "= max |x| / 2688 of x",
    .num_in = 4,
    .num_out = 3,
    .min_in = 1,
    .flags = OP_RANDOM,
    .attrs_size = sizeof(Nvfp4Attrs),
    .attrs = nvfp4_quantise_attrs,
    .infer = nvfp4_quantise_infer,
    .cost = nvfp4_quantise_cost,
    .workspace = nvfp4_quantise_workspace,
    .gpu_workspace = nvfp4_quantise_gpu_workspace,
    .cpu = {{DT_SET_FLOAT,
             nvfp4_quantise_cpu,
             "reference",
             {{.out = 1u << OUT_CODES, .dtypes = DT_SET(DT_E2M1)}, {.out = 1u << OUT_SCALE, .dtypes = DT_SET(DT_E4M3)}}}},
    .samples = "[1,16]\n"
               "[2,19,80]\n"
               "[33,1056] {four_six=true}\n"
               "[32,144] {two_d=true}\n"
               "[48,80] {transposed=true, two_d=true, four_six=true}\n"
               /* with the inputs that stochastic rounding reads */
               "[2,9,48], i64[4] below=99, i32[2,9] below=9, i32[2,9] below=99 {stochastic=true, site=9}\n"
               "[2,24,37], i64[4] below=99, i32[2,24] below=9, i32[2,24] below=99"
               "  {transposed=true, stochastic=true, hadamard=true, site=9}\n"
               "[2,24,48], i64[4] below=99, i32[2,24] below=9, i32[2,24] below=99"
               "  {two_d=true, four_six=true, stochastic=true, hadamard=true, site=-1}\n"
               "[2,67,80] {four_six=true, tiled=true}\n"
               "[144,64] {two_d=true, tiled=true}\n"
               "[2,24,150], i64[4] below=99, i32[2,24] below=9, i32[2,24] below=99"
               "  {transposed=true, stochastic=true, hadamard=true, tiled=true, site=9}\n",
    .large = "[4096,1024]\n"
             "[1024,3072] {two_d=true}\n"
             "[1024,3072] {transposed=true, two_d=true, four_six=true}\n"
             "[2,1024,1024], i64[4] below=99, i32[2,1024] below=9, i32[2,1024] below=99 {stochastic=true, site=9}\n"
             "[2,1024,1000], i64[4] below=99, i32[2,1024] below=9, i32[2,1024] below=99"
             "  {transposed=true, stochastic=true, hadamard=true, site=9}\n",
};
