/* Over a cache of numbers or of codes (e4m3), attention_cached gives a token the same bits whether it is run alone, in a chunk of its row
 * of any size, or beside other rows, wherever its row's pages lie: every kernel of the CPU and, where there is one, of the GPU.
 * attention_latent does so too. attention_turned gives the bits of qkv_norm_rope and attention_cached. */
#include "device/device.h"
#include "ops/attention/attention_latent.h"
#include "ops/attention/attention_turned.h"
#include "ops/case.h"
#include "ops/op_inputs.h"
#include "ops/ops.h"
#include "test.h"

enum { LEN = 330, PAGE_LEN = 32, ROW_PAGES = 12, MOST_ROWS = 3, PAGES = 1 + MOST_ROWS * ROW_PAGES, NUM_IN = 7 };

static const AttentionAttrs problems[] = {
    {.num_heads = 2, .num_kv_heads = 2, .head_dim = 16},
    {.num_heads = 8, .num_kv_heads = 2, .head_dim = 32, .window = 100},
    {.num_heads = 2, .num_kv_heads = 1, .head_dim = 64, .window = 64, .softcap = 0.8},
    {.num_heads = 36, .num_kv_heads = 2, .head_dim = 64},
    {.num_heads = 4, .num_kv_heads = 1, .head_dim = 96, .window = 129},
    {.num_heads = 4, .num_kv_heads = 2, .head_dim = 128},
    {.num_heads = 8, .num_kv_heads = 1, .head_dim = 128, .window = 1, .softcap = 2},
    {.num_heads = 4, .num_kv_heads = 2, .head_dim = 256},
    {.num_heads = 2, .num_kv_heads = 1, .head_dim = 256, .window = 70, .softcap = 0.8},
    {.num_heads = 2, .num_kv_heads = 2, .head_dim = 80, .window = 77},
    {.num_heads = 2, .num_kv_heads = 1, .head_dim = 128, .scale = -0.3},
    {.num_heads = 80, .num_kv_heads = 80, .head_dim = 64}, /* blocks of the GPU have several tiles, and none, some or all rows whole */
};

/* Settings of attention_latent. Rows are packed as for attention_cached, but nothing reads their values. */
static const LatentAttrs latents[] = {
    {.num_heads = 2, .head_dim = 10, .value_dim = 6},
    {.num_heads = 9, .head_dim = 576, .value_dim = 512, .scale = 0.07},
    {.num_heads = 33, .head_dim = 576, .value_dim = 512, .scale = 0.07},
};

/* A row of the problem: the packed q, k and v of all its tokens, and its pages. */
typedef struct Row {
    char   *qkv; /* (LEN, width) */
    int32_t pages[ROW_PAGES];
} Row;

typedef struct Problem {
    Device               *device;
    const AttentionAttrs *attrs;
    const LatentAttrs    *latent; /* NULL: the op is attention_cached */
    DType                 dtype, cached;
    bool                  rounded; /* keys and values of tokens are values that e4m3 has */
    int                   index;   /* of the kernel */
    int64_t               width, q_width, out_width, element, cached_element;
    Row                   row[MOST_ROWS];
} Problem;

/* Rows that run together: `len` tokens of each row, from the row's position in `starts` on. */
typedef struct Run {
    int64_t rows, len, starts[MOST_ROWS];
} Run;

static void convert(DType to_dtype, void *to, DType dtype, const void *from, int64_t count)
{
    float *values = malloc((size_t)count * sizeof *values);
    dtype_decode(dtype, from, count, values);
    dtype_encode(to_dtype, values, count, to);
    free(values);
}

static void round_to_e4m3(DType dtype, void *elements, int64_t count)
{
    uint8_t *codes = malloc((size_t)count);
    convert(DT_E4M3, codes, dtype, elements, count);
    convert(dtype, elements, DT_E4M3, codes, count);
    free(codes);
}

/* Normally distributed numbers, drawn once. Their count is prime, so that heads of different tokens don't hold the same numbers. */
enum { NUM_NORMALS = 1048573 };
static float normals[NUM_NORMALS];

static void draw_normals(void)
{
    for (uint32_t i = 0; i < NUM_NORMALS; i++) normals[i] = (float)draw_normal(31, i);
}

/* Memory of `count` numbers; each seed begins elsewhere in `normals`. */
static char *draw(DType dtype, int64_t seed, int64_t count)
{
    char *data = malloc((size_t)dtype_bytes(dtype, count));
    for (int64_t i = 0, at = seed * 20011, run; i < count; i += run, at = 0) {
        run = NUM_NORMALS - at < count - i ? NUM_NORMALS - at : count - i;
        dtype_encode(dtype, normals + at, run, data + dtype_bytes(dtype, i));
    }
    return data;
}

static void problem_make(Problem *p)
{
    p->width = (p->attrs->num_heads + 2 * p->attrs->num_kv_heads) * p->attrs->head_dim;
    p->q_width = p->attrs->num_heads * p->attrs->head_dim;
    p->out_width = p->latent ? p->attrs->num_heads * p->latent->value_dim : p->q_width;
    p->element = dtype_bytes(p->dtype, 1), p->cached_element = dtype_bytes(p->cached, 1);
    for (int b = 0; b < MOST_ROWS; b++) {
        p->row[b].qkv = draw(p->dtype, 31 + b, LEN * p->width);
        for (int64_t t = 0; t < LEN && p->rounded; t++)
            round_to_e4m3(p->dtype, p->row[b].qkv + (t * p->width + p->q_width) * p->element, p->width - p->q_width);
        for (int i = 0; i < ROW_PAGES; i++) p->row[b].pages[i] = 1 + (i * 7 % ROW_PAGES) * MOST_ROWS + b;
    }
}

static void problem_free(Problem *p)
{
    for (int b = 0; b < MOST_ROWS; b++) free(p->row[b].qkv);
}

/* Token t of row b; if the row has no such token, its first one. */
static const char *token(const Problem *p, int64_t b, int64_t t)
{
    return p->row[b].qkv + (t >= 0 && t < LEN ? t : 0) * p->width * p->element;
}

/* Writes keys (which 0) or values of the tokens before each row's start into the row's pages; the rest is NaN. */
static void fill_cache(const Problem *p, const Run *run, int which, char *cache)
{
    int64_t count = p->attrs->num_kv_heads * p->attrs->head_dim;
    memset(cache, 0xFF, (size_t)(PAGES * PAGE_LEN * count * p->cached_element));
    for (int64_t b = 0; b < run->rows; b++)
        for (int64_t t = 0; t < run->starts[b] && t < LEN; t++)
            convert(p->cached, cache + (p->row[b].pages[t / PAGE_LEN] * PAGE_LEN + t % PAGE_LEN) * count * p->cached_element, p->dtype,
                    token(p, b, t) + (p->q_width + which * count) * p->element, count);
}

/* Writes elements [begin, begin + count) of the new tokens' packed rows to data. */
static void fill_tokens(const Problem *p, const Run *run, int64_t begin, int64_t count, char *data)
{
    size_t bytes = (size_t)(count * p->element);
    for (int64_t b = 0; b < run->rows; b++)
        for (int64_t t = 0; t < run->len; t++, data += bytes) memcpy(data, token(p, b, run->starts[b] + t) + begin * p->element, bytes);
}

/* Fills an input with the tokens of the run. k: the index of the input in attention_cached; 1 for the new keys of attention_latent. */
static void fill_input(const Problem *p, const Run *run, int k, char *data)
{
    if (k == 0) fill_tokens(p, run, 0, p->latent ? p->q_width : p->width, data);
    if (k == 1) fill_tokens(p, run, p->q_width, p->attrs->head_dim, data);
    if (k == 3 || k == 4) fill_cache(p, run, k - 3, data);
    for (int64_t b = 0; b < run->rows && k == 5; b++) ((int32_t *)data)[b] = (int32_t)run->starts[b];
    for (int64_t b = 0; b < run->rows && k == 6; b++) memcpy(data + b * ROW_PAGES * 4, p->row[b].pages, sizeof p->row[b].pages);
}

/* The input of attention_cached with the same contents as input k of the problem's op. */
static int kind_of(const Problem *p, int k)
{
    static const int kinds[LATENT_IN] = {[LATENT_Q] = 0, [LATENT_K] = 1, [LATENT_KC] = 3, [LATENT_STARTS] = 5, [LATENT_PAGES] = 6};
    return p->latent ? kinds[k] : k;
}

static Status upload_inputs(const Problem *p, const Run *run, const TensorView *in)
{
    for (int k = 0; k < NUM_IN; k++) {
        if (!in[k].data) continue;
        size_t bytes = (size_t)type_bytes(&in[k].type);
        char  *data = malloc(bytes);
        fill_input(p, run, kind_of(p, k), data);
        Status status = p->device->api->upload(p->device, in[k].data, data, bytes);
        free(data);
        TRY(status);
    }
    return OK;
}

/* Allocates memory for the types in `in` and `out`, runs the launch on it, and copies out[0] to o. */
static Status run_launch(const Problem *p, const Run *run, Launch *launch, TensorView *in, TensorView *out, char *o)
{
    const DeviceApi *api = p->device->api;
    size_t           bytes = (size_t)type_bytes(&out[0].type);
    void            *replay = NULL;
    for (int k = 0; k < NUM_IN; k++)
        if (in[k].type.ndim) TRY(api->alloc(p->device, SPACE_DEVICE, (size_t)type_bytes(&in[k].type), &in[k].data));
    TRY(api->alloc(p->device, SPACE_DEVICE, bytes, &out[0].data));
    TRY(api->alloc(p->device, SPACE_DEVICE, launch->kernel.workspace_bytes + 1, &launch->args.workspace));
    if (p->latent)
        out[1] = in[LATENT_KC];
    else
        out[1] = in[3], out[2] = in[4];
    TRY(api->prepare(p->device, launch, 1, &replay));
    Status status = upload_inputs(p, run, in);
    if (status == OK) status = api->run(p->device, launch, 1, replay);
    if (status == OK) status = api->sync(p->device);
    if (status == OK) status = api->download(p->device, o, out[0].data, bytes);
    if (replay) api->release(p->device, replay);
    return status;
}

/* Binds kernel number p->index. */
static Status bind_kernel(const Problem *p, const Node *node, BoundKernel *out)
{
    return p->device->api->variant(p->device, node, p->index, out);
}

/* Runs the op; o (rows, len, out_width). ERR_UNSUPPORTED: the device has no kernel p->index. */
static Status run_rows(const Problem *p, const Run *run, char *o)
{
    const AttentionAttrs *a = p->attrs;
    TensorType            cache = type_make(p->cached, 4, (int64_t)PAGES, (int64_t)PAGE_LEN, a->num_kv_heads, a->head_dim);
    TensorType            starts = type_make(DT_I32, 1, run->rows), pages = type_make(DT_I32, 2, run->rows, (int64_t)ROW_PAGES);
    TensorType            q = type_make(p->dtype, 4, run->rows, run->len, a->num_heads, a->head_dim), key = q;
    TensorType            types[NUM_IN] = {type_make(p->dtype, 3, run->rows, run->len, p->width), {0}, {0}, cache, cache, starts, pages};
    TensorType            of_latent[NUM_IN] = {q, key, cache, starts, pages};
    TensorView            in[NODE_MAX_IN] = {0}, out[NODE_MAX_OUT] = {0};
    of_latent[LATENT_K].dim[2] = 1;
    if (p->latent) memcpy(types, of_latent, sizeof types);
    Arena  arena = {0};
    Graph *graph = graph_create(&arena, "case", op_table, OP_COUNT);
    Value *values[NUM_IN] = {0};
    Node  *node;
    Launch launch = {0};
    for (int k = 0; k < NUM_IN; k++)
        if (types[k].ndim) values[k] = graph_add_value(graph, VALUE_INPUT, arena_printf(&arena, "in%d", k), &types[k]);
    Status status = p->latent ? graph_add_node(graph, &op_attention_latent, p->latent, "out", values, LATENT_IN, ~0u, &node)
                              : graph_add_node(graph, &op_attention_cached, a, "out", values, NUM_IN, ~0u, &node);
    if (status == OK) status = bind_kernel(p, node, &launch.kernel);
    if (status == OK) {
        for (int k = 0; k < NUM_IN; k++) in[k].type = types[k];
        out[0].type = node->out[0]->type;
        launch.node = node;
        launch.args = (KernelArgs){
            .in = in, .out = out, .num_in = p->latent ? LATENT_IN : NUM_IN, .num_out = p->latent ? 2 : 3, .attrs = node->attrs};
        launch.args.workspace_bytes = launch.kernel.workspace_bytes;
        status = run_launch(p, run, &launch, in, out, o);
    }
    for (int k = 0; k < NUM_IN; k++)
        if (in[k].data) p->device->api->free(p->device, SPACE_DEVICE, in[k].data);
    if (out[0].data) p->device->api->free(p->device, SPACE_DEVICE, out[0].data);
    if (launch.args.workspace) p->device->api->free(p->device, SPACE_DEVICE, launch.args.workspace);
    arena_deinit(&arena);
    return status;
}

/* Row 0's tokens, first run all at once, must have the same bits in each of these runs. Other rows run along at other positions. */
static const Run runs[] = {
    {1, 1, {0}},           {1, 1, {63}},          {1, 1, {64}},       {1, 1, {329}},        {1, 2, {127}},
    {1, 40, {17}},         {1, 64, {64}},         {1, 65, {63}},      {1, 200, {130}},      {2, 1, {0, 250}},
    {3, 1, {329, 5, 200}}, {3, 1, {128, 128, 0}}, {3, 7, {60, 1, 9}}, {3, 70, {250, 3, 0}}, {2, 129, {191, 201}},
};

static bool same_bits(const Problem *p, const Run *run, const char *whole, char *o, int i)
{
    size_t row = (size_t)(p->out_width * p->element);
    if (memcmp(o, whole + (size_t)run->starts[0] * row, (size_t)run->len * row) == 0) return true;
    int64_t at = 0;
    while (o[at] == whole[run->starts[0] * (int64_t)row + at]) at++;
    test_fail(__FILE__, __LINE__, "%s, %s over %s, kernel %d, head_dim %d, window %d: run %d has other bits from token %d, head %d on",
              p->device->api->name, dtype_info(p->dtype)->name, dtype_info(p->cached)->name, p->index, (int)p->attrs->head_dim,
              (int)p->attrs->window, i, (int)(at / (int64_t)row),
              (int)(at % (int64_t)row / (p->out_width / p->attrs->num_heads * p->element)));
    return false;
}

/* A row whose positions are outside its pages gives NaN. The rows beside it give the same results as without it. The CPU refuses such rows.
 */
static void check_room(const Problem *p, const char *whole, char *o)
{
    static const Run outside[] = {{2, 1, {100, ROW_PAGES * PAGE_LEN}}, {2, 1, {100, -1}}, {2, 9, {100, ROW_PAGES * PAGE_LEN - 8}}};
    for (size_t i = 0; i < sizeof outside / sizeof outside[0]; i++) {
        int64_t count = outside[i].len * p->out_width;
        EXPECT_OK(run_rows(p, &outside[i], o));
        same_bits(p, &outside[i], whole, o, 100 + (int)i);
        for (int64_t k = count; k < 2 * count; k++) {
            float value;
            dtype_decode(p->dtype, o + k * p->element, 1, &value);
            if (isnan(value)) continue;
            test_fail(__FILE__, __LINE__, "kernel %d, head_dim %d: a row without room gives %g", p->index, (int)p->attrs->head_dim, value);
            break;
        }
    }
}

/* A cache of codes gives the same bits as a cache of numbers, if the codes stand for these numbers. */
static void check_codes(const Problem *p, const char *whole, char *o)
{
    const Run all = {1, LEN, {0}};
    Problem   numbers = *p;
    numbers.cached = p->dtype, numbers.rounded = true;
    problem_make(&numbers);
    EXPECT_OK(run_rows(&numbers, &all, o));
    same_bits(p, &all, whole, o, -1);
    problem_free(&numbers);
}

/* Checks kernel p->index. Returns false if the device has no such kernel. */
static bool check_kernel(Problem *p)
{
    const Run all = {1, LEN, {0}};
    size_t    bytes = (size_t)(LEN * p->out_width * p->element);
    char     *whole = malloc(bytes), *o = malloc(MOST_ROWS * bytes);
    bool      is_there = run_rows(p, &all, whole) == OK;
    if (!is_there && p->index == 0) test_fail(__FILE__, __LINE__, "%s: %s", p->device->api->name, status_message());
    if (!is_there) status_clear();
    for (size_t i = 0; i < sizeof runs / sizeof runs[0] && is_there; i++) {
        EXPECT_OK(run_rows(p, &runs[i], o));
        same_bits(p, &runs[i], whole, o, (int)i);
    }
    if (is_there && p->cached != p->dtype) check_codes(p, whole, o);
    if (is_there && !device_cpu_pool(p->device)) check_room(p, whole, o);
    free(whole), free(o);
    return is_there;
}

static void check_dtypes(Device *device, const AttentionAttrs *attrs, const LatentAttrs *latent)
{
    static const DType dtypes[] = {DT_F32, DT_BF16, DT_F16};
    for (int k = 0; k < 6; k++) {
        Problem p = {.device = device, .attrs = attrs, .latent = latent, .dtype = dtypes[k / 2], .cached = k % 2 ? DT_E4M3 : dtypes[k / 2]};
        problem_make(&p);
        while (check_kernel(&p) && !device_cpu_pool(device)) p.index++; /* the CPU's other kernel is the slow reference */
        problem_free(&p);
    }
}

static void check_device(Device *device)
{
    for (size_t i = 0; i < sizeof problems / sizeof problems[0]; i++) check_dtypes(device, &problems[i], NULL);
    for (size_t i = 0; i < sizeof latents / sizeof latents[0]; i++) {
        AttentionAttrs attrs = {.num_heads = latents[i].num_heads, .num_kv_heads = 1, .head_dim = latents[i].head_dim};
        check_dtypes(device, &attrs, &latents[i]);
    }
}

/* ---- one op for two ---- */

/* Runs the op on these inputs by its first kernel. */
static void run_op(Device *device, OpCase *c, const OpDef *op, const void *attrs, const TensorView *in)
{
    OpRun  run = {.device = device, .want = ~0u};
    StrBuf faults = {0};
    EXPECT_OK(op_case_of(c, op, attrs, in, false));
    EXPECT_OK(op_run(c, &run, &faults));
    if (faults.len) test_fail(__FILE__, __LINE__, "%s, %s%s", device->api->name, op->name, strbuf_cstr(&faults));
    strbuf_deinit(&faults);
}

enum { TABLE_LEN = 400, TURNED_ROWS = 3 };

/* Checks attention_turned for rows at positions 0, 70 and 329, with norms or without. */
static void check_turned(Device *device, const AttentionAttrs *a, DType dtype, DType cached, bool norms)
{
    int64_t     rows = TURNED_ROWS, d = a->head_dim, width = (a->num_heads + 2 * a->num_kv_heads) * d;
    TurnedAttrs attrs = {*a, 1e-6, 0.5};
    QkvAttrs    qkv = {a->num_heads, a->num_kv_heads, d, attrs.eps, attrs.offset, 0, 0};
    int32_t     start[TURNED_ROWS] = {0, 70, 329}, page[TURNED_ROWS * ROW_PAGES];
    TensorType  cache = type_make(cached, 4, (int64_t)PAGES, (int64_t)PAGE_LEN, a->num_kv_heads, d);
    TensorView  packed = {draw(dtype, 1, rows * width), type_make(dtype, 3, rows, (int64_t)1, width)};
    TensorView  k = {draw(cached, 2, type_numel(&cache)), cache}, v = {draw(cached, 3, type_numel(&cache)), cache};
    TensorView  wq = {norms ? draw(dtype, 4, d) : NULL, type_make(dtype, 1, d)}, wk = {norms ? draw(dtype, 5, d) : NULL, wq.type};
    TensorView  angles = {draw(DT_F32, 6, TABLE_LEN * d), type_make(DT_F32, 2, (int64_t)TABLE_LEN, d)};
    TensorView  starts = {start, type_make(DT_I32, 1, rows)}, at = {start, type_make(DT_I32, 2, rows, (int64_t)1)};
    TensorView  pages = {page, type_make(DT_I32, 2, rows, (int64_t)ROW_PAGES)};
    OpCase      turn, attend, one;
    for (int i = 0; i < TURNED_ROWS * ROW_PAGES; i++) page[i] = 1 + i * 5 % (PAGES - 1);
    run_op(device, &turn, &op_qkv_norm_rope, &qkv, (TensorView[NODE_MAX_IN]){packed, wq, wk, angles, at});
    TensorView turned = {turn.out[0].data, packed.type};
    run_op(device, &attend, &op_attention_cached, a, (TensorView[NODE_MAX_IN]){turned, {0}, {0}, k, v, starts, pages});
    run_op(device, &one, &op_attention_turned, &attrs, (TensorView[NODE_MAX_IN]){packed, k, v, starts, pages, wq, wk, angles, at});
    if (memcmp(attend.out[0].data, one.out[0].data, one.out[0].bytes) || memcmp(attend.out[1].data, one.out[1].data, one.out[1].bytes))
        test_fail(__FILE__, __LINE__, "%s: %s over %s, head_dim %d, norms %d: one op has other bits than two", device->api->name,
                  dtype_info(dtype)->name, dtype_info(cached)->name, (int)d, norms);
    op_case_free(&turn), op_case_free(&attend), op_case_free(&one);
    free(packed.data), free(k.data), free(v.data), free(wq.data), free(wk.data), free(angles.data);
}

static void check_turns(Device *device)
{
    for (size_t i = 0; i < sizeof problems / sizeof problems[0]; i++)
        for (int k = 0; k < 8; k++) {
            DType dtype = k / 4 ? DT_F16 : DT_BF16;
            check_turned(device, &problems[i], dtype, k / 2 % 2 ? DT_E4M3 : dtype, k % 2);
        }
}

static void a_token_has_the_same_bits_on_the_cpu(void)
{
    Device *cpu;
    EXPECT_OK(device_cpu_create(0, &cpu));
    draw_normals();
    check_device(cpu);
    check_turns(cpu);
    cpu->api->destroy(cpu);
}

static void a_token_has_the_same_bits_on_the_gpu(void)
{
    Device *cuda;
    if (device_cuda_create(0, &cuda) != OK) {
        status_clear();
        SKIP("no GPU");
    }
    draw_normals();
    check_device(cuda);
    check_turns(cuda);
    cuda->api->destroy(cuda);
}

TEST_MAIN(TEST(a_token_has_the_same_bits_on_the_cpu), TEST(a_token_has_the_same_bits_on_the_gpu))
