/* surogate bench run.yaml: how fast a run's steps are. surogate bench ops run.yaml: and what their time goes to, op by op. surogate bench
 * decoder: how fast ids are chosen over a bare matrix. */
#include "cli/bench_decoder.h"

#include "base/json.h"
#include "measure/step_bench.h"
#include "ops/ops.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* All launches of one op by one kernel. */
typedef struct OpSum {
    const char *op, *kernel;
    int         launches; /* of a step */
    double      seconds, limit_seconds, flops, bytes;
} OpSum;

typedef struct OpSums {
    OpSum *items;
    int    count;
    double seconds, overhead;
} OpSums;

static OpSum *sum_of(Arena *arena, OpSums *sums, const Launch *launch)
{
    for (int i = 0; i < sums->count; i++)
        if (strcmp(sums->items[i].op, launch->node->op->name) == 0 && strcmp(sums->items[i].kernel, launch->kernel.name) == 0)
            return &sums->items[i];
    OpSum *items = arena_array(arena, OpSum, sums->count + 1);
    if (sums->count) memcpy(items, sums->items, sizeof *items * (size_t)sums->count);
    sums->items = items;
    OpSum *sum = &items[sums->count++];
    *sum = (OpSum){.op = launch->node->op->name, .kernel = launch->kernel.name};
    return sum;
}

static Status sum_program(Arena *arena, StepBench *bench, const Program *program, OpSums *sums)
{
    const Plan *plan = step_bench_plan(bench);
    int         times = step_bench_times(bench, program);
    if (!times) return OK;
    double *seconds = arena_array(arena, double, program->num_launches + 1);
    TRY(step_bench_profile(bench, program, seconds, &sums->overhead));
    for (int i = 0; i < program->num_launches; i++) {
        const Launch *launch = &program->launches[i];
        OpSum        *sum = sum_of(arena, sums, launch);
        sum->launches += times;
        sum->seconds += times * seconds[i];
        sum->limit_seconds += times * launch_limit_seconds(&plan->facts, launch, step_bench_document_share(bench));
        sum->flops += times * step_bench_flops(bench, launch);
        sum->bytes += times * launch_cost(launch).bytes;
        sums->seconds += times * seconds[i];
    }
    return OK;
}

static int by_seconds(const void *a, const void *b)
{
    double x = ((const OpSum *)a)->seconds, y = ((const OpSum *)b)->seconds;
    return (x < y) - (x > y);
}

static void print_sums(const OpSums *sums, const StepTimes *times, StrBuf *out)
{
    strbuf_puts(out, "\nop                   kernel       launches         ms       %     TFLOP/s      GB/s    of its limit\n");
    for (int i = 0; i < sums->count; i++) {
        const OpSum *s = &sums->items[i];
        strbuf_printf(out, "%-20s %-12s %8d %10.3f %7.1f %11.2f %9.1f", s->op, s->kernel, s->launches, 1e3 * s->seconds,
                      100 * s->seconds / sums->seconds, s->flops / s->seconds * 1e-12, s->bytes / s->seconds * 1e-9);
        if (s->limit_seconds > 0) strbuf_printf(out, " %13.0f %%", 100 * s->limit_seconds / s->seconds);
        strbuf_putc(out, '\n');
    }
    strbuf_printf(out, "%-33s %8s %10.3f: %.1f %% of the step's %.3f ms\n", "in all", "", 1e3 * sums->seconds,
                  100 * sums->seconds / times->median, 1e3 * times->median);
    if (sums->overhead > 0) strbuf_printf(out, "(measuring took %.2f us a launch, taken off)\n", 1e6 * sums->overhead);
}

static void print_sums_json(const OpSums *sums, StrBuf *out)
{
    strbuf_printf(out, ", \"ops_ms\": %.4f, \"ops\": [", 1e3 * sums->seconds);
    for (int i = 0; i < sums->count; i++) {
        const OpSum *s = &sums->items[i];
        strbuf_printf(
            out,
            "%s{\"op\": \"%s\", \"kernel\": \"%s\", \"launches\": %d, \"ms\": %.4f, \"limit_ms\": %.4f, \"gflop\": %.4f, \"mbytes\": %.4f}",
            i ? ", " : "", s->op, s->kernel, s->launches, 1e3 * s->seconds, 1e3 * s->limit_seconds, s->flops * 1e-9, s->bytes * 1e-6);
    }
    strbuf_puts(out, "]");
}

/* What contexts and libraries take, by rank, in GiB; nothing where it isn't known. */
static void print_beside(const StepTimes *t, int64_t ranks, const char *before, const char *behind, StrBuf *out)
{
    if (!t->beside[0]) return;
    strbuf_puts(out, before);
    for (int64_t r = 0; r < ranks; r++) strbuf_printf(out, "%s%.3f", r ? ", " : "", (double)t->beside[r] / (1 << 30));
    strbuf_puts(out, behind);
}

/* NaN and infinities are no numbers of JSON. */
static void put_loss(StrBuf *out, const char *name, double loss)
{
    strbuf_printf(out, ", \"%s\": ", name);
    if (isfinite(loss))
        strbuf_printf(out, "%.5f", loss);
    else
        strbuf_puts(out, "null");
}

static void print_times(const Config *config, const StepTimes *t, bool json, StrBuf *out)
{
    double memory = (double)t->bytes / (1 << 30);
    if (json) {
        strbuf_puts(out, "{\"model\": ");
        json_write_string(out, config->model, strlen(config->model));
        strbuf_puts(out, ", \"device\": ");
        json_write_string(out, t->device, strlen(t->device));
        strbuf_printf(
            out,
            ", \"batch\": %lld, \"accumulation\": %lld, \"sequence_len\": %lld, \"packed\": %s, \"tokens_per_second\": %.1f, "
            "\"step_ms\": %.4f, \"best_ms\": %.4f, \"first_ms\": %.4f, \"idle_percent\": %.3f, \"create_s\": %.3f, \"tflops\": %.3f, \"memory_gib\": %.3f, "
            "\"gpus\": %lld",
            (long long)config->per_device_train_batch_size, (long long)config->gradient_accumulation_steps, (long long)t->sequence_len,
            config->sample_packing ? "true" : "false", (double)t->tokens / t->median, 1e3 * t->median, 1e3 * t->best, 1e3 * t->first,
            100 * t->idle, t->create_seconds, t->flops / t->median * 1e-12, memory, (long long)config->gpus);
        put_loss(out, "first_loss", t->first_loss);
        put_loss(out, "loss", t->loss);
        print_beside(t, config->gpus, ", \"context_gib\": [", "]", out);
        if (config->gpus > 1) strbuf_printf(out, ", \"comm_ms\": %.4f, \"exposed_ms\": %.4f", 1e3 * t->comm, 1e3 * t->exposed);
        return;
    }
    char ranks[48] = "";
    if (config->gpus > 1) snprintf(ranks, sizeof ranks, " on each of %lld ranks", (long long)config->gpus);
    strbuf_printf(
        out,
        "device        %s\nstep          %lld x %lld sequences of %lld tokens%s%s\nspeed         %.0f tokens/s (read, all of them "
        "trained), %.3f TFLOP/s\n",
        t->device, (long long)config->gradient_accumulation_steps, (long long)config->per_device_train_batch_size,
        (long long)t->sequence_len, config->sample_packing ? ", several documents each" : "", ranks, (double)t->tokens / t->median,
        t->flops / t->median * 1e-12);
    strbuf_printf(out,
                  "time          %.3f ms (best %.3f, first %.3f); between steps the device idles %.2f %% of it\nmemory        %.2f GiB\n",
                  1e3 * t->median, 1e3 * t->best, 1e3 * t->first, 100 * t->idle, memory);
    print_beside(t, config->gpus, "context and libraries beside it: ", " GiB\n", out);
    if (config->gpus > 1)
        strbuf_printf(out, "communication %.3f ms alone, of which a step waits for %.3f ms\n", 1e3 * t->comm, 1e3 * t->exposed);
    if (t->fp8_bound > 0)
        strbuf_printf(out, "bound         %.3f ms: expected of bf16, less what FP8's rate takes off the products\n", 1e3 * t->fp8_bound);
}

static Status bench_one(Arena *arena, const Config *config, int steps, bool ops, bool json)
{
    StepBench *bench;
    StepTimes  times;
    OpSums     sums = {0};
    StrBuf     out = {0};
    TRY(step_bench_create(config, &bench));
    Status      status = step_bench_run(bench, steps, &times);
    const Plan *plan = step_bench_plan(bench);
    for (int i = 0; i < plan->num_programs && ops && status == OK; i++) status = sum_program(arena, bench, &plan->programs[i], &sums);
    if (status == OK) {
        print_times(config, &times, json, &out);
        if (sums.count) qsort(sums.items, (size_t)sums.count, sizeof *sums.items, by_seconds);
        if (ops && json) print_sums_json(&sums, &out);
        if (ops && !json) print_sums(&sums, &times, &out);
        if (json) strbuf_puts(&out, "}\n");
        status = cli_print(&out);
    }
    step_bench_destroy(bench);
    strbuf_deinit(&out);
    return status;
}

/* Whole steps of all ranks together. */
static Status bench_ranks(const Config *config, int steps, bool json)
{
    StepTimes times;
    StrBuf    out = {0};
    TRY(step_bench_ranks(config, steps, &times));
    print_times(config, &times, json, &out);
    if (json) strbuf_puts(&out, "}\n");
    Status status = cli_print(&out);
    strbuf_deinit(&out);
    return status;
}

static Status bench_run(CliArgs *args, int64_t steps, bool json)
{
    Config config;
    Arena  arena = {0};
    FAIL_IF(steps < 1 || steps > 100000, ERR_INVALID, "surogate bench: --steps %lld: expected 1 to 100000", (long long)steps);
    bool ops = args->num_words > 0 && strcmp(args->words[0], "ops") == 0;
    if (ops) args->words++, args->num_words--;
    TRY(cli_config(args, &config));
    if (ops) config.gpus = 1; /* launches of several ranks wait for each other */
    Status status = config.gpus > 1 ? bench_ranks(&config, (int)steps, json) : bench_one(&arena, &config, (int)steps, ops, json);
    arena_deinit(&arena);
    config_deinit(&config);
    return status;
}

Status cmd_bench(CliArgs *args)
{
    int64_t            steps = 10;
    bool               json = false, done;
    const DecoderBench defaults = bench_decoder_defaults();
    DecoderBench       decoder = defaults;
    const Flag         flags[] = {
                {"--steps", FLAG_INT, &steps, "N", "steps to time after the first (10)"},
                {"--vocab", FLAG_INT, &decoder.vocab, "N", "decoder: rows of the matrix (50257)"},
                {"--dim", FLAG_INT, &decoder.dim, "N", "decoder: columns (2560)"},
                {"--batch", FLAG_INT, &decoder.batch, "N", "decoder: hidden states at once (1)"},
                {"--batches", FLAG_INT, &decoder.batches, "N", "decoder: how many to time (200)"},
                {"--dtype", FLAG_TEXT, &decoder.dtype, "NAME", "decoder: what the matrix is kept in: fp32, bf16, fp16, int8 (fp32)"},
                {"--hidden", FLAG_TEXT, &decoder.hidden, "NAME", "decoder: what hidden states come in: fp32, bf16, fp16 (fp32)"},
                {"--strategy", FLAG_TEXT, &decoder.strategy, "NAME", "decoder: greedy, temperature, top_k, top_p (greedy)"},
                {"--device", FLAG_TEXT, &decoder.device, "NAME", "decoder: auto, cpu or cuda (auto)"},
                {"--threads", FLAG_INT, &decoder.threads, "N", "decoder: of the CPU (all cores)"},
                {"--json", FLAG_SWITCH, &json, NULL, "as one JSON object"},
    };
    TRY(cli_parse(args, flags, sizeof flags / sizeof flags[0], true, &done));
    if (done) return OK;
    if (args->num_words == 1 && strcmp(args->words[0], "decoder") == 0) return bench_decoder(&decoder, json);
    FAIL_IF(
        memcmp(&decoder, &defaults, sizeof decoder) != 0, ERR_INVALID,
        "surogate bench: --vocab, --dim, --batch, --batches, --dtype, --hidden, --strategy, --device and --threads are of bench decoder; "
        "a run has keys, such as device=cpu");
    return bench_run(args, steps, json);
}
