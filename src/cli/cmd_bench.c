/* surogate bench run.yaml: how fast a run's steps are. surogate bench ops run.yaml: also how long each op takes. surogate bench text DIR:
 * how fast texts are decoded. surogate bench decoder: how fast ids are chosen with a bare head matrix. */
#include "cli/cli.h"

#include "base/json.h"
#include "cli/bench_decoder.h"
#include "cli/bench_text.h"
#include "cli/op_sums.h"
#include "measure/step_bench.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static Status sum_program(Arena *arena, StepBench *bench, const Program *program, OpSums *sums)
{
    const Plan *plan = step_bench_plan(bench);
    int         times = step_bench_times(bench, program);
    if (!times) return OK;
    double *seconds = arena_array(arena, double, program->num_launches + 1);
    TRY(step_bench_profile(bench, program, seconds, &sums->overhead));
    for (int i = 0; i < program->num_launches; i++) {
        const Launch *launch = &program->launches[i];
        OpSum        *sum = op_sums_of(arena, sums, launch);
        sum->launches += times;
        sum->seconds += times * seconds[i];
        sum->limit_seconds += times * launch_limit_seconds(&plan->facts, launch, step_bench_document_share(bench));
        sum->flops += times * step_bench_flops(bench, launch);
        sum->bytes += times * launch_cost(launch).bytes;
        sums->seconds += times * seconds[i];
    }
    return OK;
}

/* Prints the memory of contexts and libraries in GiB, by rank; nothing if it isn't known. */
static void print_beside(const StepTimes *t, int64_t ranks, const char *before, const char *behind, StrBuf *out)
{
    if (!t->beside[0]) return;
    strbuf_puts(out, before);
    for (int64_t r = 0; r < ranks; r++) strbuf_printf(out, "%s%.3f", r ? ", " : "", (double)t->beside[r] / (1 << 30));
    strbuf_puts(out, behind);
}

/* Appends a loss, or null if it isn't finite: JSON has no NaN or infinity. */
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
        op_sums_sort(&sums);
        if (ops && json) op_sums_print_json(&sums, &out);
        if (ops && !json) op_sums_print(&sums, times.median, &out);
        if (json) strbuf_puts(&out, "}\n");
        status = cli_print(&out);
    }
    step_bench_destroy(bench);
    strbuf_deinit(&out);
    return status;
}

/* Times whole steps of all ranks. */
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

Status cmd_bench(CliArgs *args)
{
    if (args->argc && strcmp(args->argv[0], "text") == 0) return cli_bench_text(args);
    if (args->argc && strcmp(args->argv[0], "decoder") == 0) return cli_bench_decoder(args);
    int64_t    steps = 10;
    bool       json = false, done;
    const Flag flags[] = {
        {"--steps", FLAG_INT, &steps, "N", "steps to time after the first (10)"},
        {"--json", FLAG_SWITCH, &json, NULL, "as one JSON object"},
    };
    TRY(cli_parse(args, flags, 2, true, &done));
    if (done) return OK;
    FAIL_IF(steps < 1 || steps > 100000, ERR_INVALID, "surogate bench: --steps %lld: expected 1 to 100000", (long long)steps);
    bool ops = args->num_words > 0 && strcmp(args->words[0], "ops") == 0;
    if (ops) args->words++, args->num_words--;
    Config config;
    Arena  arena = {0};
    TRY(cli_config(args, &config));
    if (ops) config.gpus = 1; /* one rank alone: launches of several ranks would wait for one another */
    Status status = config.gpus > 1 ? bench_ranks(&config, (int)steps, json) : bench_one(&arena, &config, (int)steps, ops, json);
    arena_deinit(&arena);
    config_deinit(&config);
    return status;
}
