/* Prefill and decode: logits of every position compared with transformers in fp64, computed in one chunk, in several, or token by token
 * with the KV cache. */
#include "family.h"

static void run_rows(Family *f, const Program *program, const int32_t *ids, int chunk, int position, const int32_t *row)
{
    int32_t tokens[FAMILY_TOKENS], positions[FAMILY_TOKENS];
    for (int b = 0; b < FAMILY_B; b++) {
        for (int t = 0; t < chunk; t++) {
            /* Tokens after the text are padding, which no token of the text attends. */
            tokens[b * chunk + t] = position + t < FAMILY_T ? ids[b * FAMILY_T + position + t] : 0;
            positions[b * chunk + t] = position + t;
        }
    }
    family_place(f, program, position);
    EXPECT_OK(session_write(f->session, "tokens", tokens, (size_t)(FAMILY_B * chunk) * 4));
    EXPECT_OK(session_write(f->session, "positions", positions, (size_t)(FAMILY_B * chunk) * 4));
    if (row) EXPECT_OK(session_write(f->session, "row", row, FAMILY_B * 4));
    EXPECT_OK(session_run(f->session, program));
}

static void check_logits(Family *f, const Program *program, const float *want, int position)
{
    float got[FAMILY_B * FAMILY_V];
    EXPECT_OK(session_output(f->session, program, "logits", got, sizeof got));
    for (int b = 0; b < FAMILY_B; b++) {
        double error = max_error(got + b * FAMILY_V, want + ((size_t)b * FAMILY_T + (size_t)position) * FAMILY_V, FAMILY_V);
        if (!(error <= 1e-5)) test_fail(__FILE__, __LINE__, "%s: logits at %d: error %.3g", f->dir, position, error);
    }
}

static void check_family(const char *name, int chunk, uint32_t no_fuse)
{
    Family         f;
    CompileOptions options = compile_defaults();
    options.cache_len = 32;
    compile_add(&options, &entry_prefill, FAMILY_B, chunk);
    compile_add(&options, &entry_decode, FAMILY_B, 1);
    options.train_base = false;
    options.no_fuse = no_fuse;
    family_open(&f, name, "config.json", &options, 2);
    family_load(&f);
    EXPECT_INT(f.plan->region_bytes[SPACE_DEVICE][REGION_GRADS], 0);
    const int32_t *ids = fixture_ints(&f, "plain.ids");
    float         *want = fixture_floats(&f, "plain.logits", NULL);
    for (int position = 0; position < FAMILY_T; position += chunk) {
        for (int t = 0; t < chunk && position + t < FAMILY_T; t++) {
            int32_t row[FAMILY_B] = {t, t};
            run_rows(&f, plan_program(f.plan, &entry_prefill), ids, chunk, position, row);
            check_logits(&f, plan_program(f.plan, &entry_prefill), want, position + t);
        }
    }
    /* Again from the 10th token on, one by one: the cache holds the tokens before. */
    for (int position = 10; position < FAMILY_T; position++) {
        run_rows(&f, plan_program(f.plan, &entry_decode), ids, 1, position, NULL);
        check_logits(&f, plan_program(f.plan, &entry_decode), want, position);
    }
    family_close(&f);
}

static void one_chunk_matches_the_reference(void)
{
    for (int i = 0; i < NUM_FAMILIES; i++) check_family(family_names[i], FAMILY_T, 0);
}

static void several_chunks_match(void)
{
    for (int i = 0; i < NUM_FAMILIES; i++) check_family(family_names[i], 7, 0);
}

static void without_fusions_too(void)
{
    for (int i = 0; i < NUM_FAMILIES; i++) check_family(family_names[i], 16, (1u << FUSION_COUNT) - 1);
}

/* ---- programs of several shapes in one session ---- */

enum { ROWS = 4, LEN = 32 };
static const ProgramSpec shapes[] = {
    {.entry = &entry_decode, .batch = 1, .seq = 1},
    {.entry = &entry_decode, .batch = ROWS, .seq = 1},
    {.entry = &entry_prefill, .batch = ROWS, .seq = 5},
    {.entry = &entry_prefill, .batch = 2, .seq = 12},
    {.entry = &entry_eval, .batch = FAMILY_B, .seq = FAMILY_T},
    {.entry = &entry_eval, .batch = 1, .seq = 8},
};
enum { NUM_SHAPES = sizeof shapes / sizeof shapes[0] };

static void open_shapes(Family *f, const ProgramSpec *specs, int count)
{
    CompileOptions options = compile_defaults();
    options.cache_len = LEN;
    options.train_base = false;
    for (int i = 0; i < count; i++) compile_add(&options, specs[i].entry, specs[i].batch, specs[i].seq);
    family_open(f, "qwen3", "config.json", &options, 2);
    family_load(f);
}

static void write_ints(Family *f, const char *name, const int32_t *values, int64_t count)
{
    EXPECT_OK(session_write(f->session, name, values, (size_t)count * sizeof *values));
}

/* Runs a program on tokens that are the same in every session; out has at most ROWS * FAMILY_V or FAMILY_TOKENS elements. */
static void run_shape(Family *f, const Program *program, int64_t position, float *out)
{
    int64_t     cells = program->spec.batch * program->spec.seq;
    int32_t     tokens[FAMILY_TOKENS], positions[FAMILY_TOKENS], zeros[FAMILY_TOKENS] = {0}, row[ROWS] = {0};
    const char *output = program->spec.entry == &entry_eval ? "losses" : "logits";
    int64_t     bytes = type_bytes(&graph_output(program->graph, output)->type);
    for (int64_t i = 0; i < cells; i++) {
        positions[i] = (int32_t)(position + i % program->spec.seq);
        tokens[i] = (int32_t)((i / program->spec.seq * 7 + positions[i] * 5 + 3) % FAMILY_V);
    }
    for (int64_t b = 0; b < program->spec.batch; b++) row[b] = (int32_t)(b % program->spec.seq);
    write_ints(f, "tokens", tokens, cells);
    write_ints(f, "positions", positions, cells);
    if (program->spec.entry == &entry_prefill) write_ints(f, "row", row, program->spec.batch);
    if (program->spec.entry == &entry_eval) write_ints(f, "labels", tokens, cells);
    if (program->spec.entry == &entry_eval) write_ints(f, "doc_start", zeros, cells);
    if (program->spec.entry->is_cached) family_place(f, program, position);
    EXPECT_OK(session_run(f->session, program));
    EXPECT_OK(session_output(f->session, program, output, out, (size_t)bytes));
}

/* Runs the text of rows 0 to batch - 1 in consecutive runs. */
static void run_text(Family *f, const Program *program, float *out)
{
    int64_t runs = program->spec.entry == &entry_eval ? 1 : FAMILY_T / program->spec.seq;
    for (int64_t i = 0; i < runs; i++) run_shape(f, program, i * program->spec.seq, out + i * ROWS * FAMILY_V);
}

static void each_shape_gives_what_it_gives_alone(void)
{
    Family f;
    size_t bytes = sizeof(float) * FAMILY_T * ROWS * FAMILY_V;
    float *together = malloc(bytes), *alone = malloc(bytes);
    open_shapes(&f, shapes, NUM_SHAPES);
    EXPECT_INT(f.plan->num_programs, NUM_SHAPES + 1); /* and the load program */
    for (int i = 0; i < NUM_SHAPES; i++) {
        Family         g;
        const Program *program = plan_program_of(f.plan, shapes[i].entry, shapes[i].batch, shapes[i].seq);
        memset(together, 0, bytes);
        memset(alone, 0, bytes);
        run_text(&f, program, together);
        open_shapes(&g, &shapes[i], 1);
        run_text(&g, plan_program(g.plan, shapes[i].entry), alone);
        EXPECT(memcmp(together, alone, bytes) == 0);
        EXPECT(together[0] != 0);
        EXPECT_STR(g.plan->programs[0].name, program_spec_name(&shapes[i]));
        family_close(&g);
    }
    EXPECT(plan_program(f.plan, &entry_decode) == &f.plan->programs[0]);
    EXPECT(plan_program(f.plan, &entry_optimizer) == NULL && plan_program_of(f.plan, &entry_decode, 2, 1) == NULL);
    EXPECT_FAILS(session_run(f.session, NULL), ERR_INTERNAL, "doesn't have");
    EXPECT_STR(f.plan->programs[1].name, "decode[4x1]");
    EXPECT_STR(f.plan->programs[1].graph->name, "decode[4x1]");
    StrBuf json = {0};
    plan_write_json(f.plan, &json);
    EXPECT(strstr(json.data, "\"decode[1x1]\": {") && strstr(json.data, "\"eval[1x8]\": {"));
    strbuf_deinit(&json);
    family_close(&f);
    free(together);
    free(alone);
}

/* Programs share lasting values, activations and scratch: each takes as many bytes as the program that needs most of it. */
static void shapes_share_all_memory(void)
{
    Family  f;
    int64_t most[REGION_COUNT] = {0}, cache = 0, inputs = 0;
    open_shapes(&f, shapes, NUM_SHAPES);
    for (int i = 0; i < NUM_SHAPES; i++) {
        Family g;
        open_shapes(&g, &shapes[i], 1);
        for (int r = 0; r < REGION_COUNT; r++)
            if (g.plan->region_bytes[SPACE_DEVICE][r] > most[r]) most[r] = g.plan->region_bytes[SPACE_DEVICE][r];
        family_close(&g);
    }
    for (int i = 0; i < f.plan->num_entries; i++) {
        const Placement *place = &f.plan->entries[i].place;
        if (place->region == REGION_INPUTS) inputs += (place->bytes + 255) / 256 * 256;
        if (place->region == REGION_CACHE) cache += (place->bytes + 255) / 256 * 256;
    }
    most[REGION_INPUTS] = inputs; /* kinds of programs have inputs of their own: all inputs add up */
    for (int r = 0; r < REGION_COUNT; r++) EXPECT_INT(f.plan->region_bytes[SPACE_DEVICE][r], most[r]);
    EXPECT_INT(f.plan->region_bytes[SPACE_DEVICE][REGION_CACHE], cache);
    family_close(&f);
}

/* A text that was begun with one program continues with another; a run of fewer rows continues the first rows. */
static void a_text_goes_on_in_another_shape(void)
{
    Family         f;
    const int32_t *ids;
    float          got[ROWS * FAMILY_V], *want;
    open_shapes(&f, shapes, NUM_SHAPES);
    ids = fixture_ints(&f, "plain.ids");
    want = fixture_floats(&f, "plain.logits", NULL);
    for (int position = 0; position < FAMILY_T; position += position < 12 ? 12 : 1) {
        bool           first = position < 12;
        const Program *program =
            first ? plan_program_of(f.plan, &entry_prefill, 2, 12) : plan_program_of(f.plan, &entry_decode, position % 2 ? 1 : ROWS, 1);
        int32_t tokens[FAMILY_TOKENS], positions[FAMILY_TOKENS], row[FAMILY_B] = {11, 11};
        for (int64_t i = 0; i < program->spec.batch * program->spec.seq; i++) {
            positions[i] = (int32_t)(position + i % program->spec.seq);
            tokens[i] = ids[i / program->spec.seq % FAMILY_B * FAMILY_T + positions[i]];
        }
        write_ints(&f, "tokens", tokens, program->spec.batch * program->spec.seq);
        write_ints(&f, "positions", positions, program->spec.batch * program->spec.seq);
        write_ints(&f, "row", row, FAMILY_B);
        family_place(&f, program, position);
        EXPECT_OK(session_run(f.session, program));
        EXPECT_OK(session_output(f.session, program, "logits", got, (size_t)program->spec.batch * FAMILY_V * sizeof *got));
        int64_t at = first ? 11 : position;
        EXPECT(max_error(got, want + at * FAMILY_V, FAMILY_V) <= 1e-5);
        if (first) EXPECT(max_error(got + FAMILY_V, want + (FAMILY_T + at) * FAMILY_V, FAMILY_V) <= 1e-5);
    }
    family_close(&f);
}

/* Programs of the same shape couldn't be told apart. */
static void a_shape_is_asked_for_once(void)
{
    Family         f;
    Plan          *plan;
    IrModule      *module;
    CompileOptions options = compile_defaults();
    size_t         len;
    JsonValue      config;
    compile_add(&options, &entry_decode, 2, 1);
    family_open(&f, "qwen3", "config.json", &options, 1);
    compile_add(&options, &entry_decode, 2, 1);
    const char *ir = ir_shipped_module("Qwen3ForCausalLM", &len);
    EXPECT_OK(ir_module_parse(&f.arena, "qwen3", ir, len, &module));
    EXPECT_OK(json_parse(&f.arena, "config.json", "{}", 2, &config));
    EXPECT_FAILS(compile_plan(&f.arena, module, &config, "config.json", &options, f.device, &plan), ERR_INTERNAL,
                 "program decode[2x1] is asked for twice");
    family_close(&f);
}

TEST_MAIN(TEST(one_chunk_matches_the_reference), TEST(several_chunks_match), TEST(without_fusions_too),
          TEST(each_shape_gives_what_it_gives_alone), TEST(shapes_share_all_memory), TEST(a_text_goes_on_in_another_shape),
          TEST(a_shape_is_asked_for_once))
