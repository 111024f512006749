/* surogate bench text DIR: how fast texts are decoded, for one or more row counts, beside the time to read weights and cache. */
#include "cli/bench_text.h"

#include "cli/model_flags.h"
#include "cli/op_sums.h"
#include "measure/text_bench.h"
#include "ops/attrs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct TextArgs {
    const char *rows, *device, *dtype, *quantization, *kv;
    int64_t     prompt, tokens, context, threads, adapters;
    bool        samples, prefill, ops, json, split_k;
} TextArgs;

static void print_prefill(const TextBenchOptions *o, const TextTimes *t, bool json, StrBuf *out)
{
    double speed = (double)(o->rows * o->prompt) / t->prefill;
    strbuf_printf(out,
                  json ? "{\"rows\": %lld, \"prompt\": %lld, \"tokens_per_second\": %.1f, \"prefill_ms\": %.4f, \"forward_ms\": %.4f, "
                         "\"of_forward\": %.4f, \"memory_gib\": %.3f"
                       : "%4lld prompts of %lld tokens  %10.1f tokens/s  %.3f ms; the forward pass alone, without its head, %.3f ms: "
                         "%.3f times as long  memory %.2f GiB\n",
                  (long long)o->rows, (long long)o->prompt, speed, 1e3 * t->prefill, 1e3 * t->forward, t->prefill / t->forward,
                  (double)t->bytes / (1 << 30));
}

static void print_times(const TextBenchOptions *o, const TextTimes *t, bool json, StrBuf *out)
{
    double share = t->limit > 0 ? t->limit / t->step : 0;
    if (o->prefill) {
        print_prefill(o, t, json, out);
        return;
    }
    if (json) {
        strbuf_printf(
            out,
            "{\"rows\": %lld, \"prompt\": %lld, \"tokens\": %lld, \"tokens_per_second\": %.1f, \"step_ms\": %.4f, \"prefill_ms\": %.3f, "
            "\"weight_mbytes\": %.3f, \"cache_mbytes\": %.3f, \"limit_ms\": %.4f, \"of_limit\": %.4f, \"launches\": %d, \"memory_gib\": %.3f",
            (long long)o->rows, (long long)o->prompt, (long long)o->tokens, (double)o->rows / t->step, 1e3 * t->step, 1e3 * t->prefill,
            t->weight_bytes * 1e-6, t->cache_bytes * 1e-6, 1e3 * t->limit, share, t->launches, (double)t->bytes / (1 << 30));
        return;
    }
    strbuf_printf(
        out,
        "%4lld rows  %10.1f tokens/s  step %8.4f ms, %d launches  reads %.1f MB of weights, %.1f MB of cache: %.4f ms at %s's bandwidth, "
        "%.3f of it  prefill %.0f tokens/s\n",
        (long long)o->rows, (double)o->rows / t->step, 1e3 * t->step, t->launches, t->weight_bytes * 1e-6, t->cache_bytes * 1e-6,
        1e3 * t->limit, t->device, share, (double)(o->rows * o->prompt) / t->prefill);
}

typedef struct Summing {
    Arena  *arena;
    OpSums *sums;
} Summing;

static void sum_program(void *context, const Program *program, const double *seconds, double overhead)
{
    Summing *s = context;
    s->sums->overhead = overhead;
    for (int i = 0; i < program->num_launches; i++) {
        OpSum *sum = op_sums_of(s->arena, s->sums, &program->launches[i]);
        OpCost cost = launch_cost(&program->launches[i]);
        sum->launches++;
        sum->seconds += seconds[i];
        sum->flops += cost.flops;
        sum->bytes += cost.bytes;
        s->sums->seconds += seconds[i];
    }
}

static Status bench_rows(Arena *arena, const TextBenchOptions *options, const TextArgs *a)
{
    TextBench *bench;
    TextTimes  times;
    OpSums     sums = {0};
    StrBuf     out = {0};
    TRY(text_bench_create(options, &bench));
    Status status = text_bench_run(bench, &times);
    if (status == OK) status = text_bench_run(bench, &times); /* the first run warms up */
    if (status == OK && a->ops) status = text_bench_profile(bench, sum_program, &(Summing){arena, &sums});
    op_sums_sort(&sums);
    if (status == OK) {
        print_times(options, &times, a->json, &out);
        if (a->ops)
            (a->json ? op_sums_print_json(&sums, &out)
                     : op_sums_print(&sums, a->prefill ? times.prefill / (double)options->rows : times.step, &out));
        if (a->json) strbuf_puts(&out, "}\n");
        status = cli_print(&out);
    }
    text_bench_destroy(bench);
    strbuf_deinit(&out);
    return status;
}

/* Runs the benchmark for each row count in the list; prints a line for each. */
static Status bench_all(Arena *arena, TextBenchOptions options, const TextArgs *a)
{
    for (const char *at = a->rows; *at;) {
        char *end;
        options.rows = strtoll(at, &end, 10);
        FAIL_IF(end == at || (*end && *end != ',') || options.rows < 1 || options.rows > 4096, ERR_INVALID,
                "--rows %s: expected numbers of texts, 1 to 4096, with commas between", a->rows);
        TRY(bench_rows(arena, &options, a));
        at = *end ? end + 1 : end;
    }
    return OK;
}

Status cli_bench_text(CliArgs *args)
{
    TextArgs   a = {.rows = "1,8,64", .device = "auto", .prompt = 512, .tokens = 128};
    bool       done;
    const Flag flags[] = {
        {"--rows", FLAG_TEXT, &a.rows, "N,..", "texts at once; a line for each number (1,8,64)"},
        {"--adapters", FLAG_INT, &a.adapters, "N", "LoRA adapters of rank 16 on all linear layers, which texts have in turn (0)"},
        {"--prompt", FLAG_INT, &a.prompt, "N", "tokens of each prompt (512)"},
        {"--tokens", FLAG_INT, &a.tokens, "N", "tokens of each text that are timed (128)"},
        {"--context", FLAG_INT, &a.context, "N", "tokens that each text has room for; 0: as many as it has (0)"},
        {"--prefill", FLAG_SWITCH, &a.prefill, NULL, "how fast prompts are read, beside the model's forward pass of as many tokens"},
        {"--samples", FLAG_SWITCH, &a.samples, NULL, "draw tokens: temperature 0.8, top-k 50, top-p 0.9; else the likeliest"},
        {"--dtype", FLAG_TEXT, &a.dtype, "NAME", "fp32, bf16 or fp16 (as the model is; where that is fp16, bf16)"},
        QUANTIZATION_FLAG(&a.quantization),
        KV_FLAG(&a.kv),
        SPLIT_K_FLAG(&a.split_k),
        {"--ops", FLAG_SWITCH, &a.ops, NULL, "what a step's time, or a prompt's, goes to, op by op"},
        {"--json", FLAG_SWITCH, &a.json, NULL, "a JSON object a line"},
        {"--device", FLAG_TEXT, &a.device, "NAME", "auto, cpu or cuda (auto)"},
        {"--threads", FLAG_INT, &a.threads, "N", "CPU threads; 0: all (0)"},
    };
    args->command = "bench text";
    args->arguments = "DIR";
    args->help = "how fast texts are decoded, on random weights and prompts; of the folder only config.json is read";
    args->argc--, args->argv++;
    TRY(cli_parse(args, flags, sizeof flags / sizeof *flags, false, &done));
    if (done) return OK;
    TRY(cli_want_words(args, 1));
    TRY(cli_check_threads(a.threads));
    FAIL_IF(a.prompt < 1 || a.tokens < 1, ERR_INVALID, "--prompt %lld, --tokens %lld: expected at least 1", (long long)a.prompt,
            (long long)a.tokens);
    FAIL_IF(a.context < 0, ERR_INVALID, "--context %lld: expected 0 or more", (long long)a.context);
    DType dtype = DT_COUNT;
    if (a.dtype) TRY(compile_parse_dtype(a.dtype, &dtype));
    FAIL_IF(a.adapters < 0 || a.adapters > LORA_MOST_ADAPTERS, ERR_INVALID, "--adapters %lld: expected 0 to %d", (long long)a.adapters,
            LORA_MOST_ADAPTERS);
    TextBenchOptions options = {.model = args->words[0],
                                .adapters = (int)a.adapters,
                                .device = a.device,
                                .threads = (int)a.threads,
                                .dtype = dtype,
                                .format = a.quantization,
                                .kv = a.kv,
                                .split_k = a.split_k,
                                .prompt = a.prompt,
                                .tokens = a.prefill ? 0 : a.tokens,
                                .context = a.context,
                                .samples = a.samples,
                                .prefill = a.prefill};
    Arena            arena = {0};
    Status           status = bench_all(&arena, options, &a);
    arena_deinit(&arena);
    return status;
}
