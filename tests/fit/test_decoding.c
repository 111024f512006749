/* How many texts are decoded at once: the largest number of rows whose plan fits. */
#include "fit/decoding.h"
#include "setup/setup.h"

#include "test.h"

static int64_t bytes_of_rows(InferModel *infer, int64_t rows, int64_t context)
{
    Plan *plan;
    Arena arena = {0};
    infer_want_decoding(infer, &(DecoderOptions){.rows = rows, .context = context});
    EXPECT_OK(setup_plan(&arena, infer->model, &infer->options, infer->device, &plan));
    int64_t bytes = setup_needed_bytes(plan);
    arena_deinit(&arena);
    return bytes;
}

static void open_on(const char *gpu, InferModel *infer)
{
    EXPECT_OK(infer_open(infer, "tests/fixtures/families/qwen3", NULL, "cpu", 1));
    infer->device->api->destroy(infer->device);
    EXPECT_OK(device_null_create(gpu, &infer->device));
}

static void the_most_rows_that_fit_are_found(void)
{
    static const int64_t contexts[] = {50000, 65536, 400000, 10000000};
    InferModel           infer;
    open_on("rtx3060", &infer);
    for (int i = 0; i < 4; i++) {
        DecodingFit fit;
        StrBuf      text = {0};
        EXPECT_OK(fit_decoding(&infer, contexts[i], &fit));
        EXPECT(fit.rows > 0 && fit.rows < FIT_MOST_ROWS);
        EXPECT(fit.all <= fit.limit && fit.cache > fit.all / 2 && fit.weights > 0);
        EXPECT_INT(bytes_of_rows(&infer, fit.rows, contexts[i]), fit.all);
        EXPECT(bytes_of_rows(&infer, fit.rows + 1, contexts[i]) > fit.limit);
        fit_print_decoding(&fit, contexts[i], &text);
        EXPECT_CONTAINS(strbuf_cstr(&text), " tokens fit (KV cache ");
        strbuf_deinit(&text);
    }
    infer_close(&infer);
}

static void none_or_all_may_fit(void)
{
    InferModel  infer;
    DecodingFit fit;
    StrBuf      text = {0};
    open_on("rtx3060", &infer);
    EXPECT_OK(fit_decoding(&infer, 64, &fit));
    EXPECT_INT(fit.rows, FIT_MOST_ROWS);
    fit_print_decoding(&fit, 64, &text);
    EXPECT_CONTAINS(strbuf_cstr(&text), "decoding   4096 rows or more of 64 tokens fit (KV cache 64.01 MiB, weights 35.");
    strbuf_clear(&text);
    EXPECT_OK(fit_decoding(&infer, 100000000, &fit));
    EXPECT(fit.rows == 0 && fit.all > fit.limit);
    fit_print_decoding(&fit, 100000000, &text);
    EXPECT_CONTAINS(strbuf_cstr(&text), "not one row of 100000000 tokens fits (KV cache ");
    strbuf_deinit(&text);
    infer_close(&infer);
}

TEST_MAIN(TEST(the_most_rows_that_fit_are_found), TEST(none_or_all_may_fit))
