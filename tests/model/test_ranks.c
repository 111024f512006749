/* Ranks as threads, each with a plan and a session of its own: their training equals training on one rank. */
#include "base/philox.h"
#include "comm/comm.h"
#include "model/init.h"
#include "ops/attrs.h"
#include "ops/ops.h"
#include "passes/compile.h"
#include "run/order.h"
#include "run/scales.h"
#include "run/session.h"
#include "test.h"

#include <pthread.h>

enum { ROWS = 16, T = 12, TOKENS = ROWS * T, VOCAB = 256, STEPS = 20, MOST = 8 };

typedef struct Case {
    const char   *name;
    int           zero, accum, rows, layers;
    bool          lora, tied, packed;
    double        dropout;
    OptimizerKind optimizer;
    DType         dtype, master;
    bool          fp32_grads;
    bool          other_operands; /* products of a bf16 model are in fp32, of an fp32 model in bf16 */
    uint32_t      recompute;
    bool          fp8, fp4;
    const char   *qlora;
    uint32_t      offload;
    bool          unclipped;    /* no clipping, and Adam's own epsilon */
    const char   *architecture; /* NULL: LlamaForCausalLM */
} Case;

/* Result of one case with one number of ranks. */
typedef struct Result {
    double  loss[STEPS], norm[STEPS];
    float  *weights; /* trained weights, parameters in the order of names */
    float  *begun;   /* values of the trained weights before training */
    int64_t numel;
    int64_t lasting; /* bytes of a rank's weights, gradients and optimizer, without FP8 scales and their history */
} Result;

typedef struct Rank {
    const Case *test;
    Comm       *comm;
    Result     *result;
    int         world;
    Arena       arena;
    Plan       *plan;
    Session    *session;
    Device     *device;
} Rank;

static const char *architecture_of(const Case *c)
{
    return c->architecture ? c->architecture : "LlamaForCausalLM";
}

static const char *config_text(Arena *arena, const Case *c)
{
    return arena_printf(arena,
                        "{\"architectures\": [\"%s\"], \"head_dim\": 16, \"hidden_act\": \"silu\","
                        "\"hidden_size\": 64, \"initializer_range\": 0.02, \"intermediate_size\": 96, \"max_position_embeddings\": 256,"
                        "\"num_attention_heads\": 4, \"num_hidden_layers\": %d, \"num_key_value_heads\": 2, \"rms_norm_eps\": 1e-5,"
                        "\"rope_theta\": 10000.0, \"tie_word_embeddings\": %s, \"vocab_size\": %d, \"attention_bias\": false,"
                        "\"mlp_bias\": false, \"dtype\": \"float32\"}",
                        architecture_of(c), c->layers, c->tied ? "true" : "false", VOCAB);
}

static CompileOptions options_of(const Case *c, int rank, int world)
{
    static const char *const all[] = {"all-linear"};
    CompileOptions           options = compile_defaults();
    options.rank = rank;
    options.world = world;
    options.zero_level = c->zero;
    options.whole_bytes = 4096;
    options.chunk_bytes = 20000;
    options.verify = true;
    options.model_dtype = c->dtype;
    options.master_dtype = c->master;
    options.master_weights = c->master != c->dtype;
    options.fp32_grads = c->fp32_grads;
    if (c->other_operands) options.precision.forward = options.precision.backward = c->dtype == DT_F32 ? DT_BF16 : DT_F32;
    options.optimizer = c->optimizer;
    options.weight_decay = 0.1;
    /* Adam makes a whole step even for a gradient that is only rounding error, and the rounding of sums depends on the number of ranks: one
     * rank adds all its rows in one product, while each of several ranks adds its own micro-steps first, because gradients are exchanged
     * once per step. If both add the same micro-batches in the same order, everything is equal (the_sums_of_one_rank), except the rounding
     * of the norm for clipping. */
    options.adamw_epsilon = c->unclipped ? 1e-8 : 1e-4;
    if (c->unclipped) options.max_grad_norm = 0;
    options.recompute = c->recompute;
    options.offload = c->offload;
    options.piece_numel = 3000;
    if (c->lora) {
        options.lora = (LoraOptions){.enabled = true, .r = 32, .alpha = 64, .dropout = c->dropout, .num_targets = 1, .targets = all};
        options.train_base = false;
    }
    if (c->qlora) options.weight_format = weight_format_find(c->qlora);
    if (c->fp8) {
        options.precision.forward = DT_E4M3;
        options.precision.backward = DT_E5M2;
        compile_add(&options, &entry_calibrate, c->rows / world / c->accum, T);
    }
    if (c->fp4) options.precision.forward = options.precision.backward = DT_E2M1;
    compile_add_training(&options, c->rows / world / c->accum, T);
    compile_add(&options, &entry_eval, c->rows / world / c->accum, T);
    return options;
}

static Status compile_rank(Rank *r, int rank)
{
    size_t         len;
    const char    *config_at = "config", *ir = ir_shipped_module(architecture_of(r->test), &len), *text = config_text(&r->arena, r->test);
    CompileOptions options = options_of(r->test, rank, r->world);
    JsonValue      config;
    IrModule      *module;
    TRY(json_parse(&r->arena, config_at, text, strlen(text), &config));
    TRY(ir_module_parse(&r->arena, config_at, ir, len, &module));
    TRY(device_cpu_create(1, &r->device));
    return compile_plan(&r->arena, module, &config, config_at, &options, r->device, &r->plan);
}

static Status open_rank(Rank *r, int rank)
{
    TRY(compile_rank(r, rank));
    TRY(r->device->api->join(r->device, r->comm));
    TRY(session_create(r->plan, r->device, &r->session));
    TRY(init_params(r->session, 7, false, NULL));
    return r->test->lora ? init_params(r->session, 7, true, NULL) : OK;
}

/* Writes rows [first, first + count) of a step. */
static Status write_rows(Rank *r, int step, int first, int count, float inv_tokens)
{
    int32_t tokens[TOKENS], labels[TOKENS], positions[TOKENS], starts[TOKENS], ids[TOKENS];
    for (int i = 0; i < count * T; i++) {
        int row = first + i / T, t = i % T, begin = r->test->packed && t >= 5 ? 5 : 0;
        tokens[i] = (int32_t)(philox4x32((uint32_t)(row * T + t), (uint32_t)step, 0, 0, 99).v[0] % VOCAB);
        labels[i] = t % 3 == 2 && row % 2 ? IGNORE_INDEX : (tokens[i] * 5 + 3) % VOCAB;
        positions[i] = t - begin;
        starts[i] = begin;
        ids[i] = row * 2 + (begin > 0) + step * 1000;
    }
    size_t  bytes = (size_t)(count * T) * sizeof(int32_t);
    int64_t steps[STEP_COUNT] = {1234, step, 0, 0};
    float   hyper[HYPER_COUNT] = {[HYPER_LR] = 1e-3f, [HYPER_INV_TOKENS] = inv_tokens};
    const struct {
        const char *name;
        const void *data;
        size_t      bytes;
    } inputs[] = {{"tokens", tokens, bytes}, {"labels", labels, bytes},     {"positions", positions, bytes}, {"doc_start", starts, bytes},
                  {"doc_id", ids, bytes},    {"step", steps, sizeof steps}, {"hyper", hyper, sizeof hyper}};
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++)
        if (plan_find(r->plan, inputs[i].name)) TRY(session_write(r->session, inputs[i].name, inputs[i].data, inputs[i].bytes));
    return OK;
}

static float inv_tokens(void)
{
    return 1.0f / (TOKENS - ROWS / 2 * (T / 3));
}

static Status calibrate(Rank *r, int rank)
{
    int rows = r->test->rows / r->world / r->test->accum;
    for (int micro = 0; micro < r->test->accum; micro++) {
        TRY(write_rows(r, 0, (micro * r->world + rank) * rows, rows, inv_tokens()));
        TRY(session_run(r->session, plan_program(r->plan, &entry_calibrate)));
    }
    return scales_begin(r->session, r->comm, 0);
}

/* Launches on different streams never touch the same byte at the same time. */
static Status check_races(Rank *r)
{
    for (int p = 0; p < r->plan->num_programs; p++) {
        const Program *program = &r->plan->programs[p];
        Race           race;
        AccessList    *accesses = order_accesses(&r->arena, program->launches, program->num_launches);
        FAIL_IF(!order_check(&r->arena, program->launches, accesses, program->num_launches, &race), ERR_INTERNAL, "%s: %s and %s race",
                program->name, program->launches[race.first].node->op->name, program->launches[race.second].node->op->name);
    }
    return OK;
}

/* Weights are gathered in the order in which they are read: the first launch waits for no gather, the first layer only for the first
 * chunks. */
static Status check_waits(Rank *r)
{
    const Program *program = plan_micro(r->plan, 0, 1);
    int            begun = 0, count = 0;
    for (int i = 0; i < program->num_launches; i++) {
        const Launch *launch = &program->launches[i];
        bool          is_first = launch->stream == STREAM_COMPUTE && launch->node->layer == 0 && !(launch->node->flags & NODE_BACKWARD);
        count += launch->node->op == &op_gather;
        if (is_first && launch->wait[STREAM_COMM] > begun) begun = launch->wait[STREAM_COMM];
    }
    const Launch *first = program->launches;
    while (first->stream != STREAM_COMPUTE) first++;
    FAIL_IF(r->test->zero < DIVIDE_WEIGHTS && first->wait[STREAM_COMM], ERR_INTERNAL,
            "what is read first isn't gathered when the step begins");
    bool mixed = r->test->optimizer == OPTIMIZER_NORMUON; /* a chunk has matrices of as many layers as there are ranks */
    FAIL_IF(r->test->zero == 1 && !mixed && count > 4 && begun > count / 2, ERR_INTERNAL, "the first layer waits for %d of %d gathers",
            begun, count);
    return OK;
}

/* All ranks' programs have the same collectives in the same order. */
static Status check_collectives(Rank *r)
{
    uint64_t own = plan_collectives(r->plan), all[MOST];
    TRY(comm_all_gather(r->comm, &own, all, sizeof own));
    for (int i = 0; i < r->world; i++) FAIL_IF(all[i] != own, ERR_INTERNAL, "rank %d has other collectives", i);
    return OK;
}

static Status train_step(Rank *r, int rank, int step)
{
    int   rows = r->test->rows / r->world / r->test->accum;
    float inv = inv_tokens(), loss, norm2;
    for (int micro = 0; micro < r->test->accum; micro++) {
        TRY(write_rows(r, step, (micro * r->world + rank) * rows, rows, inv));
        TRY(session_run(r->session, plan_micro(r->plan, micro, r->test->accum)));
    }
    const Program *optimizer = plan_program(r->plan, &entry_optimizer);
    TRY(session_run(r->session, optimizer));
    TRY(session_output(r->session, optimizer, "loss", &loss, sizeof loss));
    TRY(session_output(r->session, optimizer, "norm2", &norm2, sizeof norm2));
    if (rank) return OK;
    r->result->loss[step] = (double)loss;
    r->result->norm[step] = sqrt((double)norm2);
    return OK;
}

/* Where a trained parameter begins in Result.weights: parameters of all buckets are sorted by name, so that the order doesn't depend on the
 * ranks. */
static int64_t place_of(const Plan *plan, const Param *param)
{
    int64_t at = 0;
    for (int i = 0; i < plan->num_trained; i++)
        if (strcmp(plan->trained_params[i]->name, param->name) < 0) at += type_numel(&plan->trained_params[i]->type);
    return at;
}

/* Reads the weights that this rank owns, from its shares. */
static Status read_owned(Rank *r, float *to)
{
    for (int b = 0; b < r->plan->num_buckets; b++) {
        const Bucket *bucket = &r->plan->buckets[b];
        for (int i = 0; i < bucket->count; i++) {
            PlanPiece own = plan_owned(r->plan, bucket, i);
            char      stored[VOCAB * 64 * sizeof(float)];
            size_t    bytes = (size_t)dtype_bytes(bucket->weight, own.numel);
            CHECK(bytes <= sizeof stored);
            TRY(session_read_range(r->session, own.value, (size_t)dtype_bytes(bucket->weight, own.at), stored, bytes));
            dtype_convert(to + place_of(r->plan, r->plan->trained_params[bucket->first + i]) + own.first, DT_F32, stored, bucket->weight,
                          own.numel);
        }
    }
    return OK;
}

/* After a gather, weights that are whole hold the shares of all ranks. */
static Status check_gathered(Rank *r)
{
    if (r->world > 1) TRY(session_run(r->session, plan_program(r->plan, &entry_gather)));
    TRY(comm_barrier(r->comm));
    for (int i = 0; i < r->plan->num_trained; i++) {
        const Param *param = r->plan->trained_params[i];
        const float *want = r->result->weights + place_of(r->plan, param);
        PlanPiece    held = plan_held(r->plan, param->name);
        char         stored[VOCAB * 64 * sizeof(float)];
        float        got[VOCAB * 64];
        TRY(session_read(r->session, held.value, stored, (size_t)dtype_bytes(param->type.dtype, held.numel)));
        dtype_convert(got, DT_F32, stored, param->type.dtype, held.numel);
        FAIL_IF(memcmp(got, want + held.first, (size_t)held.numel * sizeof *got) != 0, ERR_INTERNAL, "%s: gathered otherwise", param->name);
    }
    return OK;
}

static Status run_rank(Rank *r, int rank)
{
    TRY(open_rank(r, rank));
    const int64_t *bytes = r->plan->region_bytes[SPACE_DEVICE];
    if (!rank) r->result->lasting = bytes[REGION_WEIGHTS] + bytes[REGION_GRADS] + bytes[REGION_OPTIMIZER] - plan_scale_bytes(r->plan);
    if (!rank) {
        for (int i = 0; i < r->plan->num_trained; i++) r->result->numel += type_numel(&r->plan->trained_params[i]->type);
        r->result->weights = calloc((size_t)r->result->numel, sizeof(float));
        r->result->begun = calloc((size_t)r->result->numel, sizeof(float));
    }
    TRY(comm_barrier(r->comm));
    TRY(read_owned(r, r->result->begun));
    TRY(check_collectives(r));
    if (!rank) TRY(check_races(r));
    if (r->world > 1) TRY(check_waits(r));
    if (r->world > 1) TRY(session_run(r->session, plan_program(r->plan, &entry_gather)));
    if (r->test->fp8) TRY(calibrate(r, rank));
    for (int step = 0; step < STEPS; step++) TRY(train_step(r, rank, step));
    TRY(read_owned(r, r->result->weights));
    TRY(comm_barrier(r->comm));
    return check_gathered(r);
}

static void *rank_thread(void *context)
{
    Rank  *r = context;
    Status status = run_rank(r, comm_rank(r->comm));
    if (status != OK && status != ERR_RANK)
        test_fail(__FILE__, __LINE__, "%s: rank %d of %d: %s", r->test->name, comm_rank(r->comm), r->world, status_message());
    if (status != OK) comm_abort(r->comm, status, status_message());
    session_destroy(r->session);
    if (r->device) r->device->api->destroy(r->device);
    comm_destroy(r->comm);
    arena_deinit(&r->arena);
    return NULL;
}

static Result run_ranks(const Case *c, int world)
{
    Result    result = {0};
    Comm     *comms[MOST];
    Rank      ranks[MOST];
    pthread_t threads[MOST];
    EXPECT_OK(comm_threads_create(world, NULL, comms));
    for (int i = 0; i < world; i++) {
        ranks[i] = (Rank){.test = c, .comm = comms[i], .result = &result, .world = world};
        CHECK(pthread_create(&threads[i], NULL, rank_thread, &ranks[i]) == 0);
    }
    for (int i = 0; i < world; i++) pthread_join(threads[i], NULL);
    return result;
}

static void result_free(Result *r)
{
    free(r->weights);
    free(r->begun);
}

/* How far two runs may differ. */
typedef struct Bound {
    double loss, norm;
    double most; /* any weight's difference, as a share of the largest update; 0: not checked */
    double mean; /* weights: root mean square of the differences, relative to the root mean square of the updates */
} Bound;

static const Bound fp32 = {1e-6, 1e-5, 1e-5, 1e-5}, loose = {1e-6, 1e-5, 1e-4, 1e-4};

static void expect_same(const Case *c, int world, const Result *one, const Result *many, const Bound *bound)
{
    double update = 0, worst = 0, loss = 0, norm = 0, square = 0, difference = 0;
    EXPECT_INT(many->numel, one->numel);
    for (int64_t i = 0; i < one->numel && many->numel == one->numel; i++) {
        double u = (double)one->weights[i] - (double)one->begun[i], d = (double)one->weights[i] - (double)many->weights[i];
        update = fmax(update, fabs(u));
        worst = fmax(worst, fabs(d));
        square += u * u;
        difference += d * d;
        if (one->begun[i] != many->begun[i]) worst = INFINITY;
    }
    for (int step = 0; step < STEPS; step++) {
        loss = fmax(loss, fabs(one->loss[step] - many->loss[step]) / fabs(one->loss[step]));
        norm = fmax(norm, fabs(one->norm[step] - many->norm[step]) / one->norm[step]);
    }
    double mean = sqrt(difference / square);
    bool near = loss <= bound->loss && norm <= bound->norm && mean <= bound->mean && (!(bound->most > 0) || worst <= bound->most * update);
    if (!near)
        test_fail(__FILE__, __LINE__,
                  "%s, ZeRO-%d, %d ranks: losses differ by %.2g, norms by %.2g, weights by %.2g of the largest update, %.2g in the mean",
                  c->name, c->zero, world, loss, norm, worst / update, mean);
    EXPECT(one->loss[STEPS - 1] < one->loss[0]);
}

static void compare_from(Case c, int least_zero, int most, const Bound *bound)
{
    Result one = run_ranks(&c, 1);
    if (TEST_IS_WATCHED && most > 2) most = 2;
    for (int zero = least_zero; zero <= 3; zero++)
        for (int world = 2; world <= most; world *= 2) {
            c.zero = zero;
            Result many = run_ranks(&c, world);
            expect_same(&c, world, &one, &many, bound);
            result_free(&many);
        }
    result_free(&one);
}

static void compare(Case c, int most, const Bound *bound)
{
    compare_from(c, 1, most, bound);
}

static const Case plain = {.name = "plain", .zero = 1, .accum = 1, .rows = ROWS, .layers = 3, .dtype = DT_F32, .master = DT_F32};

static void all_parameters(void)
{
    Case c = plain;
    compare(c, 8, &fp32);
    c.accum = 2;
    c.packed = c.tied = true;
    c.name = "tied, packed, accumulated";
    compare(c, 8, &fp32);
}

static void adapters(void)
{
    Case c = plain;
    c.lora = true;
    c.dropout = 0.1;
    c.name = "lora";
    compare(c, 8, &fp32);
    c.accum = 2;
    c.packed = true;
    compare(c, 4, &fp32);
}

static void recomputed(void)
{
    Case c = plain;
    c.name = "recomputed";
    c.recompute = 1u << PART_BLOCK;
    c.tied = true;
    compare(c, 4, &fp32);
    c.lora = true;
    c.dropout = 0.1;
    compare(c, 2, &fp32);
}

/* Stochastically rounded weights draw the same random numbers wherever their elements are stored. The remaining difference comes from sums
 * in another order. */
static void types(void)
{
    const Bound rounded = {1e-4, 1e-3, 0, 0.05},
                twice = {1e-4, 2e-3, 0, 0.05}; /* sums of ranks are rounded to bf16 once more: at most 2^-9 */
    Case c = plain;
    c.name = "bf16";
    c.dtype = DT_BF16;
    c.master = DT_BF16;
    c.fp32_grads = true;
    compare(c, 4, &rounded);
    c.name = "bf16, fp32 master";
    c.master = DT_F32;
    compare(c, 4, &rounded);
    c.name = "bf16 gradients";
    c.fp32_grads = false;
    compare(c, 4, &twice);
    c.name = "bf16, products and backward pass in fp32";
    c.fp32_grads = c.other_operands = true;
    compare(c, 4, &rounded);
    c.name = "fp32, weights and products in bf16";
    c.dtype = DT_F32;
    c.master = DT_BF16;
    c.recompute = 1u << PART_BLOCK;
    compare(c, 4, &rounded);
    c.name = "fp32, adapters in bf16";
    c.lora = true;
    compare(c, 2, &rounded);
}

static void optimizers(void)
{
    const Bound rounded = {1e-5, 2e-4, 0,
                           0.01}; /* sums in another order change codes of moments: norms differ by 2e-5 to 1.1e-4, depending on the seed */
    Case        c = plain;
    c.name = "adamw_8bit";
    c.optimizer = OPTIMIZER_ADAMW_8BIT;
    compare(c, 4, &rounded);
    c.name = "normuon";
    c.optimizer = OPTIMIZER_NORMUON;
    compare(c, 8, &loose);
    c.name = "normuon of several matrices in one";
    c.architecture = "Phi3ForCausalLM";
    compare(c, 4, &loose);
}

/* Tensors kept in the host's memory are divided among ranks too. */
static void offloaded(void)
{
    Case c = plain;
    c.name = "offloaded optimizer";
    c.offload = 1u << OFFLOAD_OPTIMIZER | 1u << OFFLOAD_MASTER | 1u << OFFLOAD_RESIDUAL;
    compare(c, 4, &fp32);
    c.name = "offloaded weights";
    c.offload = 1u << OFFLOAD_WEIGHTS;
    compare_from(c, 3, 4, &fp32);
    c.name = "offloaded normuon";
    c.optimizer = OPTIMIZER_NORMUON;
    c.offload = 1u << OFFLOAD_WEIGHTS | 1u << OFFLOAD_OPTIMIZER;
    compare_from(c, 3, 4, &loose);
    c.name = "offloaded normuon and gradients";
    c.offload = 1u << OFFLOAD_GRADS | 1u << OFFLOAD_OPTIMIZER;
    c.accum = 2;
    compare_from(c, 2, 4, &loose);
    c.optimizer = OPTIMIZER_ADAMW;
    c.accum = 1;
    c.name = "offloaded base";
    c.offload = 1u << OFFLOAD_WEIGHTS;
    c.lora = true;
    compare(c, 4, &fp32);
    c.name = "offloaded codes";
    c.offload = 1u << OFFLOAD_QUANTS;
    c.qlora = "nf4";
    compare(c, 2, &fp32);
}

/* Ranks train with codes of a quantised base and with codes for products. */
static void formats(void)
{
    const Bound rounded = {1e-3, 2e-2, 0, 0.15},
                drawn = {2e-3, 6e-2, 0, 0.3}; /* FP4: the scale of a tensor is computed from one rank's rows */
    Case c = plain;
    c.lora = true;
    for (int i = 0; weight_format_at(i); i++) {
        c.name = c.qlora = weight_format_at(i)->name;
        compare(c, 4, &fp32);
    }
    c = plain;
    c.name = "fp8";
    c.fp8 = true;
    c.accum = 2;
    compare(c, 4, &rounded);
    c.name = "fp8 lora";
    c.lora = true;
    compare(c, 2, &rounded);
    c.name = "nvfp4 lora";
    c.fp8 = false;
    c.fp4 = true;
    compare(c, 2, &drawn);
}

static void expect_divided(const Case *c, int ranks, int64_t whole_bytes)
{
    Result one = run_ranks(c, 1), many = run_ranks(c, ranks);
    if (many.lasting > one.lasting / ranks + whole_bytes)
        test_fail(__FILE__, __LINE__, "%s: a rank of %d keeps %lld bytes, one keeps %lld", c->name, ranks, (long long)many.lasting,
                  (long long)one.lasting);
    result_free(&one);
    result_free(&many);
}

/* Under ZeRO-3 a rank keeps only its part of all lasting values, except norms and scales of codes. */
static void weights_and_states_are_divided(void)
{
    Case c = plain;
    c.zero = 3;
    expect_divided(&c, 4, 24 << 10);
    c.optimizer = OPTIMIZER_NORMUON;
    c.name = "normuon";
    c.layers = 4; /* one matrix of each shape for each rank */
    expect_divided(&c, 4, 36 << 10);
    c = plain;
    c.zero = 3;
    c.name = "fp8";
    c.fp8 = true;
    expect_divided(&c, 4, 24 << 10);
    c.fp8 = false;
    c.lora = true;
    for (int i = 0; weight_format_at(i); i++) {
        c.name = c.qlora = weight_format_at(i)->name;
        expect_divided(&c, 4, 24 << 10);
    }
    c.qlora = NULL;
    c.fp8 = true;
    c.name = "fp8 lora";
    expect_divided(&c, 4, 24 << 10);
    c.name = "nvfp4 lora";
    c.fp8 = false;
    c.fp4 = true;
    expect_divided(&c, 4, 24 << 10);
}

/* Bytes of activations in a rank's plan with 4 rows; *out_layer: bytes of a layer's weights; *out_ends: bytes of the larger of embedding
 * and head. */
static int64_t activation_bytes(int world, uint32_t offload, int64_t *out_layer, int64_t *out_ends)
{
    Case c = plain;
    Rank r = {.test = &c, .world = world};
    c.zero = 3;
    c.offload = offload;
    c.rows = 4 * world;
    c.layers = 8;
    EXPECT_OK(compile_rank(&r, 0));
    *out_layer = *out_ends = 0;
    for (int i = 0; i < r.plan->num_trained; i++) {
        const Param *param = r.plan->trained_params[i];
        int64_t      bytes = type_bytes(&param->type);
        if (param->layer == 1) *out_layer += bytes;
        if (param->layer < 0 && bytes > *out_ends) *out_ends = bytes;
    }
    int64_t bytes = r.plan->region_bytes[SPACE_DEVICE][REGION_ACTIVATIONS];
    r.device->api->destroy(r.device);
    arena_deinit(&r.arena);
    return bytes;
}

/* Weights and gradients of other ranks are in memory for at most two layers at a time. */
static void two_layers_are_there_at_a_time(void)
{
    int64_t layer, ends, one = activation_bytes(1, 0, &layer, &ends), four = activation_bytes(4, 0, &layer, &ends);
    EXPECT(four - one <= 2 * layer + ends);
    EXPECT(activation_bytes(1, 1u << OFFLOAD_GRADS, &layer, &ends) - one <= 2 * layer + ends + 4096); /* 4096: padding between values */
    EXPECT(activation_bytes(4, 1u << OFFLOAD_GRADS, &layer, &ends) - four <= 2 * layer / 4 + ends / 4 + 4096);
}

/* A rank keeps its share of an offloaded base in the host's memory. */
static void an_offloaded_base_leaves_the_device(void)
{
    Case c = plain;
    c.zero = 3;
    c.lora = true;
    Result here = run_ranks(&c, 2);
    c.offload = 1u << OFFLOAD_WEIGHTS;
    Result away = run_ranks(&c, 2);
    EXPECT(here.lasting - away.lasting >= 200000);
    result_free(&here);
    result_free(&away);
}

static void two_runs_are_the_same_bits(void)
{
    Case   c = plain;
    Result a = run_ranks(&c, 4), b = run_ranks(&c, 4);
    EXPECT(memcmp(a.loss, b.loss, sizeof a.loss) == 0 && memcmp(a.norm, b.norm, sizeof a.norm) == 0);
    EXPECT(memcmp(a.weights, b.weights, (size_t)a.numel * sizeof *a.weights) == 0);
    result_free(&a);
    result_free(&b);
}

/* Ranks with one micro-step each add gradients in the order in which one rank adds its micro-steps: the bits are the same. (Tied embeddings
 * add twice in a micro-step, so that one rank adds in another order.) */
static void the_sums_of_one_rank(void)
{
    for (int kind = 0; kind < 4; kind++)
        for (int world = 2; world <= (TEST_IS_WATCHED ? 2 : 8); world *= 2) {
            Case c = plain;
            c.unclipped = true;
            c.lora = kind == 1;
            c.dropout = 0.1;
            c.packed = kind == 2;
            c.optimizer = kind == 3 ? OPTIMIZER_NORMUON : OPTIMIZER_ADAMW;
            c.accum = world;
            Result one = run_ranks(&c, 1);
            c.accum = 1;
            for (c.zero = 1; c.zero <= 3; c.zero++) {
                Result many = run_ranks(&c, world);
                EXPECT(many.numel == one.numel && memcmp(one.weights, many.weights, (size_t)one.numel * sizeof(float)) == 0);
                EXPECT(memcmp(one.begun, one.weights, (size_t)one.numel * sizeof(float)) != 0);
                result_free(&many);
            }
            result_free(&one);
        }
}

/* A scale belongs to a whole weight: codes made from ranks' shares are the codes of the whole weight. */
static void codes_of_shares(void)
{
    for (int kind = 0; kind < 3; kind++) {
        Case c = plain;
        c.name = "codes of shares";
        c.fp8 = true;
        c.zero = 2;
        c.accum = kind ? 2 : 1;
        c.recompute = kind == 1 ? 1u << PART_BLOCK : 0;
        c.dtype = kind == 2 ? DT_BF16 : DT_F32;
        Result whole = run_ranks(&c, 4);
        c.zero = 3;
        c.offload = kind == 2 ? 1u << OFFLOAD_WEIGHTS : 0;
        Result shares = run_ranks(&c, 4);
        EXPECT(memcmp(whole.loss, shares.loss, sizeof whole.loss) == 0 && memcmp(whole.norm, shares.norm, sizeof whole.norm) == 0);
        EXPECT(memcmp(whole.weights, shares.weights, (size_t)whole.numel * sizeof *whole.weights) == 0);
        EXPECT(shares.lasting < whole.lasting);
        c.offload = 1u << OFFLOAD_QUANTS;
        Result away = run_ranks(&c, 4);
        EXPECT(memcmp(away.loss, shares.loss, sizeof away.loss) == 0);
        EXPECT(memcmp(away.weights, shares.weights, (size_t)away.numel * sizeof *away.weights) == 0);
        EXPECT(kind == 2 || shares.lasting - away.lasting >= 3 * (64 * (128 + 64 + 192) + 96 * 64) / 4); /* a rank's share of the codes */
        result_free(&whole);
        result_free(&shares);
        result_free(&away);
    }
}

static const Case moved_cases[] = {
    {.name = "8 bits",
     .accum = 2,
     .rows = ROWS,
     .layers = 3,
     .dtype = DT_BF16,
     .master = DT_BF16,
     .optimizer = OPTIMIZER_ADAMW_8BIT,
     .recompute = 1u << PART_BLOCK},
    {.name = "normuon",
     .accum = 1,
     .rows = ROWS,
     .layers = 3,
     .dtype = DT_BF16,
     .master = DT_F32,
     .optimizer = OPTIMIZER_NORMUON,
     .tied = true},
    {.name = "normuon of several matrices in one",
     .accum = 1,
     .rows = ROWS,
     .layers = 3,
     .dtype = DT_BF16,
     .master = DT_BF16,
     .optimizer = OPTIMIZER_NORMUON,
     .architecture = "Phi3ForCausalLM"},
    {.name = "lora", .accum = 2, .rows = ROWS, .layers = 3, .dtype = DT_BF16, .master = DT_F32, .lora = true},
    {.name = "products and backward pass in fp32",
     .accum = 1,
     .rows = ROWS,
     .layers = 3,
     .dtype = DT_BF16,
     .master = DT_F32,
     .fp32_grads = true,
     .other_operands = true},
    {.name = "weights in bf16",
     .accum = 2,
     .rows = ROWS,
     .layers = 3,
     .dtype = DT_F32,
     .master = DT_BF16,
     .fp32_grads = true,
     .recompute = 1u << PART_BLOCK},
};

/* Keeping tensors on the host changes no bit of training; divided weights may be kept there too. */
static void offload_leaves_the_bits(void)
{
    const uint32_t states = 1u << OFFLOAD_OPTIMIZER | 1u << OFFLOAD_MASTER | 1u << OFFLOAD_RESIDUAL, weights = 1u << OFFLOAD_WEIGHTS;
    for (size_t i = 0; i < sizeof moved_cases / sizeof *moved_cases; i++)
        for (int zero = 1; zero <= 3; zero++) {
            Case plain = moved_cases[i], moved;
            plain.zero = zero;
            moved = plain;
            moved.offload = zero == 3 || plain.lora ? states | weights : states;
            if (zero > 1) moved.offload |= 1u << OFFLOAD_GRADS;
            Result a = run_ranks(&plain, 2), b = run_ranks(&moved, 2);
            EXPECT(memcmp(a.loss, b.loss, sizeof a.loss) == 0 && memcmp(a.norm, b.norm, sizeof a.norm) == 0);
            EXPECT(a.numel == b.numel && memcmp(a.weights, b.weights, (size_t)a.numel * sizeof *a.weights) == 0);
            EXPECT(b.lasting < a.lasting);
            result_free(&a);
            result_free(&b);
        }
}

TEST_MAIN(TEST(all_parameters), TEST(adapters), TEST(recomputed), TEST(types), TEST(optimizers), TEST(formats), TEST(offloaded),
          TEST(weights_and_states_are_divided), TEST(two_layers_are_there_at_a_time), TEST(an_offloaded_base_leaves_the_device),
          TEST(two_runs_are_the_same_bits), TEST(the_sums_of_one_rank), TEST(codes_of_shares), TEST(offload_leaves_the_bits))
