/* Prefill and decode: logits of every position against transformers in fp64, whether computed in one chunk, several, or token by
 * token from the KV cache. */
#include "family.h"

static void run_rows(Family *f, ProgramKind kind, const int32_t *ids, int chunk, int position, const int32_t *row)
{
    int32_t tokens[FAMILY_TOKENS], positions[FAMILY_TOKENS];
    for (int b = 0; b < FAMILY_B; b++) {
        for (int t = 0; t < chunk; t++) {
            /* What lies behind the text is padding that no true token sees. */
            tokens[b * chunk + t] = position + t < FAMILY_T ? ids[b * FAMILY_T + position + t] : 0;
            positions[b * chunk + t] = position + t;
        }
    }
    int64_t step[STEP_COUNT] = {[STEP_POSITION] = position};
    EXPECT_OK(session_write(f->session, "tokens", tokens, (size_t)(FAMILY_B * chunk) * 4));
    EXPECT_OK(session_write(f->session, "positions", positions, (size_t)(FAMILY_B * chunk) * 4));
    EXPECT_OK(session_write(f->session, "step", step, sizeof step));
    if (row) EXPECT_OK(session_write(f->session, "row", row, FAMILY_B * 4));
    EXPECT_OK(session_run(f->session, kind));
}

static void check_logits(Family *f, ProgramKind kind, const float *want, int position)
{
    float got[FAMILY_B * FAMILY_V];
    EXPECT_OK(session_output(f->session, kind, "logits", got, sizeof got));
    for (int b = 0; b < FAMILY_B; b++) {
        double error = max_error(got + b * FAMILY_V, want + ((size_t)b * FAMILY_T + (size_t)position) * FAMILY_V, FAMILY_V);
        if (!(error <= 1e-5)) test_fail(__FILE__, __LINE__, "%s: logits at %d: error %.3g", f->dir, position, error);
    }
}

static void check_family(const char *name, int chunk, uint32_t no_fuse)
{
    Family         f;
    CompileOptions options = compile_defaults();
    options.programs = 1u << PROGRAM_PREFILL | 1u << PROGRAM_DECODE;
    options.cache_batch = FAMILY_B;
    options.cache_len = 32;
    options.prefill_chunk = chunk;
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
            run_rows(&f, PROGRAM_PREFILL, ids, chunk, position, row);
            check_logits(&f, PROGRAM_PREFILL, want, position + t);
        }
    }
    /* Again from the 10th token, one by one: the cache holds the others. */
    for (int position = 10; position < FAMILY_T; position++) {
        run_rows(&f, PROGRAM_DECODE, ids, 1, position, NULL);
        check_logits(&f, PROGRAM_DECODE, want, position);
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

TEST_MAIN(TEST(one_chunk_matches_the_reference), TEST(several_chunks_match), TEST(without_fusions_too))
