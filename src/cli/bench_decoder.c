/* See bench_decoder.h. */
#include "cli/bench_decoder.h"

#include "measure/head_bench.h"

#include <string.h>

static const char *const strategies[] = {
    [HEAD_GREEDY] = "greedy", [HEAD_BY_TEMPERATURE] = "temperature", [HEAD_BY_TOP_K] = "top_k", [HEAD_BY_TOP_P] = "top_p"};

DecoderBench bench_decoder_defaults(void)
{
    return (DecoderBench){
        .vocab = 50257, .dim = 2560, .batch = 1, .batches = 200, .dtype = "fp32", .hidden = "fp32", .strategy = "greedy", .device = "auto"};
}

static Status find_dtype(const char *text, const char *flag, DTypeSet among, DType *out)
{
    const char *name = strcmp(text, "fp16") == 0 ? "f16" : strcmp(text, "int8") == 0 ? "i8" : text;
    bool        found = dtype_parse(name, out) && (DT_SET(*out) & among);
    FAIL_IF(!found, ERR_INVALID, "surogate bench decoder: %s %s: expected fp32, bf16, fp16%s", flag, text,
            among & DT_SET(DT_I8) ? " or int8" : "");
    return OK;
}

static Status read_options(const DecoderBench *bench, HeadBenchOptions *out)
{
    const DTypeSet floats = DT_SET_FLOAT | DT_SET(DT_F16);
    int            strategy;
    *out = (HeadBenchOptions){.vocab = bench->vocab,
                              .dim = bench->dim,
                              .rows = bench->batch,
                              .batches = bench->batches,
                              .device = bench->device,
                              .threads = bench->threads};
    TRY(cli_check_threads(bench->threads));
    TRY(find_dtype(bench->dtype, "--dtype", floats | DT_SET(DT_I8), &out->dtype));
    TRY(find_dtype(bench->hidden, "--hidden", floats, &out->hidden));
    TRY(find_name("strategy", bench->strategy, strategies, sizeof strategies / sizeof strategies[0], &strategy));
    out->strategy = (HeadStrategy)strategy;
    FAIL_IF(bench->vocab < 1 || bench->vocab > INT32_MAX || bench->dim < 1 || bench->dim > INT32_MAX, ERR_INVALID,
            "surogate bench decoder: a matrix of %lld x %lld: expected at least 1 x 1", (long long)bench->vocab, (long long)bench->dim);
    FAIL_IF(bench->batches < 1 || bench->batches > 1000000, ERR_INVALID, "surogate bench decoder: --batches %lld: expected 1 to 1000000",
            (long long)bench->batches);
    return OK;
}

static void print_json(const DecoderBench *b, const HeadTimes *t, StrBuf *out)
{
    strbuf_puts(out, "{\"device\": ");
    json_write_string(out, t->device, strlen(t->device));
    strbuf_printf(out,
                  ", \"vocab\": %lld, \"dim\": %lld, \"batch\": %lld, \"dtype\": \"%s\", \"hidden\": \"%s\", \"strategy\": \"%s\", "
                  "\"mean_us\": %.2f, \"sigma_us\": %.2f, \"min_us\": %.2f, \"max_us\": %.2f, \"alone_us\": %.2f, \"first_us\": %.2f, "
                  "\"bytes\": %lld, \"moved\": %lld, \"limit_us\": %.2f, \"ids\": \"%016llx\"}\n",
                  (long long)b->vocab, (long long)b->dim, (long long)b->batch, b->dtype, b->hidden, b->strategy, 1e6 * t->mean,
                  1e6 * t->sigma, 1e6 * t->least, 1e6 * t->most, 1e6 * t->alone, 1e6 * t->first, (long long)t->bytes, (long long)t->moved,
                  1e6 * t->limit, (unsigned long long)t->ids);
}

static void print_text(const DecoderBench *b, const HeadTimes *t, StrBuf *out)
{
    strbuf_printf(out, "device        %s\nmatrix        %lld x %lld, %s; %s, %lld rows of %s a batch\n", t->device, (long long)b->vocab,
                  (long long)b->dim, b->dtype, b->strategy, (long long)b->batch, b->hidden);
    strbuf_printf(out, "time          %.1f us a batch, sigma %.1f, min %.1f, max %.1f; two in flight\n", 1e6 * t->mean, 1e6 * t->sigma,
                  1e6 * t->least, 1e6 * t->most);
    strbuf_printf(out, "              %.1f us one at a time; the first %.1f us\n", 1e6 * t->alone, 1e6 * t->first);
    if (t->limit > 0)
        strbuf_printf(out, "limit         %.1f us to move %.1f MB: %.2f times that\n", 1e6 * t->limit, 1e-6 * (double)t->moved,
                      t->mean / t->limit);
    strbuf_printf(out, "speed         %.0f ids/s, %.1f GB/s\nmemory        %lld bytes\nids           %016llx\n", (double)b->batch / t->mean,
                  1e-9 * (double)t->moved / t->mean, (long long)t->bytes, (unsigned long long)t->ids);
}

Status bench_decoder(const DecoderBench *bench, bool json)
{
    HeadBenchOptions options;
    HeadTimes        times;
    StrBuf           out = {0};
    TRY(read_options(bench, &options));
    TRY(head_bench_run(&options, &times));
    (json ? print_json : print_text)(bench, &times, &out);
    Status status = cli_print(&out);
    strbuf_deinit(&out);
    return status;
}
