/* surogate bench decoder: how fast ids are chosen with a bare head matrix. */
#include "cli/bench_decoder.h"

#include "measure/head_bench.h"

#include <string.h>

static const char *const strategies[] = {
    [HEAD_GREEDY] = "greedy", [HEAD_BY_TEMPERATURE] = "temperature", [HEAD_BY_TOP_K] = "top_k", [HEAD_BY_TOP_P] = "top_p"};

typedef struct DecoderBench {
    int64_t     vocab, dim, batch, batches, threads;
    const char *dtype, *hidden, *strategy, *device;
} DecoderBench;

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
    const DTypeSet floats = DT_SET_DECODE;
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
            "surogate bench decoder: a matrix of %lld x %lld: expected 1 to 2147483647 each", (long long)bench->vocab,
            (long long)bench->dim);
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

static Status bench(const DecoderBench *decoder, bool json)
{
    HeadBenchOptions options;
    HeadTimes        times;
    StrBuf           out = {0};
    TRY(read_options(decoder, &options));
    TRY(head_bench_run(&options, &times));
    (json ? print_json : print_text)(decoder, &times, &out);
    Status status = cli_print(&out);
    strbuf_deinit(&out);
    return status;
}

Status cli_bench_decoder(CliArgs *args)
{
    DecoderBench b = {
        .vocab = 50257, .dim = 2560, .batch = 1, .batches = 200, .dtype = "fp32", .hidden = "fp32", .strategy = "greedy", .device = "auto"};
    bool       json = false, done;
    const Flag flags[] = {
        {"--vocab", FLAG_INT, &b.vocab, "N", "rows of the matrix (50257)"},
        {"--dim", FLAG_INT, &b.dim, "N", "its columns (2560)"},
        {"--batch", FLAG_INT, &b.batch, "N", "hidden states at once (1)"},
        {"--batches", FLAG_INT, &b.batches, "N", "how many to time (200)"},
        {"--dtype", FLAG_TEXT, &b.dtype, "NAME", "what the matrix is kept in: fp32, bf16, fp16 or int8 (fp32)"},
        {"--hidden", FLAG_TEXT, &b.hidden, "NAME", "what hidden states come in: fp32, bf16 or fp16 (fp32)"},
        {"--strategy", FLAG_TEXT, &b.strategy, "NAME",
         "greedy, temperature, top_k or top_p: temperature 0.8, top-k 50, top-p 0.9 (greedy)"},
        {"--json", FLAG_SWITCH, &json, NULL, "as one JSON object"},
        {"--device", FLAG_TEXT, &b.device, "NAME", "auto, cpu, cuda, or several that divide the matrix: cuda:0,1 (auto)"},
        {"--threads", FLAG_INT, &b.threads, "N", "CPU threads; 0: all (0)"},
    };
    args->command = "bench decoder";
    args->arguments = "";
    args->help = "how fast ids are chosen over a matrix of random numbers, beside the time that moving it takes";
    args->argc--, args->argv++;
    TRY(cli_parse(args, flags, sizeof flags / sizeof *flags, false, &done));
    if (done) return OK;
    TRY(cli_want_words(args, 0));
    return bench(&b, json);
}
