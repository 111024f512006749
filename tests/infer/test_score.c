/* Scores of rows with random lengths, many in a batch: equal to the evaluation of each row alone. */
#include "infer/evaluate.h"
#include "infer/score.h"

#include "base/philox.h"
#include "test.h"

enum { ROWS = 40, MOST = 120 };

/* Draws rows of 1 to MOST token ids, as lines of JSON. */
static void draw_rows(int64_t vocab, uint32_t seed, StrBuf *out)
{
    for (uint32_t row = 0; row < ROWS; row++) {
        uint32_t count = 1 + philox4x32(row, 0, 0, 0, seed).v[0] % MOST;
        for (uint32_t t = 0; t < count; t++)
            strbuf_printf(out, "%s%u", t ? ", " : "{\"ids\": [", philox4x32(t, row, 0, 1, seed).v[0] % (uint32_t)vocab);
        strbuf_puts(out, "]}\n");
    }
}

static void score(InferModel *infer, Str text, Scores *out)
{
    EXPECT_OK(scores_read(infer, "rows", text, 0, out));
    EXPECT_OK(scores_run(infer, out));
}

static void compare_row(InferModel *infer, const char *family, const Scores *scores, size_t index)
{
    const ScoreRow *row = &scores->rows[index];
    const float    *logprobs = scores->logprobs + row->first;
    float           losses[MOST];
    double          sum = 0;
    EXPECT(isnan(logprobs[0]));
    if (row->num < 2) return;
    EXPECT_OK(evaluate_start(infer, row->num, 0));
    EXPECT_OK(evaluate_ids(infer, scores->ids.data + row->first, row->num, losses));
    for (size_t i = 1; i < row->num; i++) {
        double want = -(double)losses[i - 1];
        sum += want;
        if (!(fabs((double)logprobs[i] - want) <= 1e-6 * fmax(1, fabs(want))))
            test_fail(__FILE__, __LINE__, "%s: ln p of token %zu of row %zu (%zu) is %.9g, expected %.9g", family, i, index, row->num,
                      (double)logprobs[i], want);
    }
    EXPECT_NEAR(row->sum, sum, 1e-6 * fabs(sum));
}

static void scores_are_what_eval_finds(void)
{
    static const char *const families[] = {"qwen3", "llama", "gemma2", "gemma3", "gpt2", "phi3", "qwen2_window"};
    for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
        InferModel infer;
        Scores     scores;
        StrBuf     text = {0};
        char       dir[128];
        snprintf(dir, sizeof dir, "tests/fixtures/families/%s", families[f]);
        EXPECT_OK(infer_open(&infer, dir, NULL, "cpu", 2));
        infer.options.model_dtype = infer.options.master_dtype = DT_F32;
        draw_rows(infer.model->vocab_size, 3 + (uint32_t)f, &text);
        score(&infer, (Str){text.data, text.len}, &scores);
        EXPECT_INT(scores.num_rows, ROWS);
        for (size_t i = 0; i < scores.num_rows; i++) compare_row(&infer, families[f], &scores, i);
        scores_deinit(&scores);
        strbuf_deinit(&text);
        infer_close(&infer);
    }
}

/* A row's scores have the same bits alone. */
static void a_row_s_scores_are_those_of_it_alone(void)
{
    InferModel infer;
    Scores     scores;
    StrBuf     text = {0};
    EXPECT_OK(infer_open(&infer, "tests/fixtures/families/gemma2", NULL, "cpu", 2));
    draw_rows(infer.model->vocab_size, 11, &text);
    score(&infer, (Str){text.data, text.len}, &scores);
    const char *line = strbuf_cstr(&text);
    for (size_t i = 0; i < scores.num_rows; i++) {
        const ScoreRow *row = &scores.rows[i];
        const char     *end = strchr(line, '\n') + 1;
        Scores          alone;
        score(&infer, (Str){line, (size_t)(end - line)}, &alone);
        EXPECT(alone.ids.len == row->num && memcmp(alone.logprobs, scores.logprobs + row->first, row->num * sizeof(float)) == 0);
        scores_deinit(&alone);
        line = end;
    }
    scores_deinit(&scores);
    strbuf_deinit(&text);
    infer_close(&infer);
}

TEST_MAIN(TEST(scores_are_what_eval_finds), TEST(a_row_s_scores_are_those_of_it_alone))
