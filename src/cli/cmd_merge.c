/* surogate merge BASE_DIR ADAPTER_DIR[=WEIGHT] ... OUT_DIR: merges, then compares the logits before and after on some tokens. */
#include "cli/cli.h"

#include "base/log.h"
#include "base/philox.h"
#include "files/folder.h"
#include "infer/infer_model.h"
#include "model/merge.h"
#include "model/peft_combine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PROBE_TOKENS = 32, PROBE_EVERY = 4 };

/* Logits (PROBE_TOKENS / PROBE_EVERY, V) of every PROBE_EVERY-th position of a random text, in fp32. */
static Status probe(const char *dir, const char *adapter, const char *qlora, float **out_logits, int64_t *out_vocab)
{
    InferModel infer;
    *out_logits = NULL;
    Status  status = infer_open(&infer, dir, adapter, "cpu", 0);
    int64_t vocab = 0, chunk = 0, rows = 0;
    if (status == OK) status = infer_use_format(&infer, qlora);
    if (status == OK) {
        CompileOptions *options = &infer.options;
        options->model_dtype = options->master_dtype = DT_F32;
        options->cache_len = chunk = PROBE_TOKENS < infer.model->max_positions ? PROBE_TOKENS : infer.model->max_positions;
        compile_add(options, &entry_prefill, 1, chunk);
        status = infer_start(&infer);
        if (status == OK) vocab = infer.model->vocab_size;
    }
    int32_t tokens[PROBE_TOKENS], positions[PROBE_TOKENS];
    int64_t step[STEP_COUNT] = {0};
    for (int32_t i = 0; i < chunk && vocab; i++) {
        tokens[i] = (int32_t)(philox4x32((uint32_t)i, 0, 0, 0, 42).v[0] % (uint64_t)vocab);
        positions[i] = i;
    }
    float *logits = malloc_or_end((size_t)(vocab * PROBE_TOKENS + 1) * sizeof *logits);
    for (int32_t row = 0; row < chunk && status == OK; row += PROBE_EVERY, rows++) {
        const Program *program = plan_program(infer.plan, &entry_prefill);
        status = session_feed(infer.session, program, &(Feeds){.tokens = tokens, .positions = positions, .step = step, .row = &row});
        if (status == OK) status = session_run(infer.session, program);
        if (status == OK) status = session_output(infer.session, program, "logits", logits + rows * vocab, (size_t)vocab * 4);
    }
    infer_close(&infer);
    *out_logits = logits;
    *out_vocab = vocab * rows;
    return status;
}

static Status print_difference(const float *with, const float *without, int64_t count)
{
    double largest = 0, scale = 0;
    for (int64_t i = 0; i < count; i++) {
        FAIL_IF(!isfinite(with[i]), ERR_INVALID, "base and adapter together compute a logit of %g, so that there is nothing to merge",
                with[i]);
        FAIL_IF(!isfinite(without[i]), ERR_INVALID, "the merged model computes a logit of %g, where base and adapter compute %g",
                without[i], with[i]);
        largest = fmax(largest, fabs((double)with[i] - (double)without[i]));
        scale = fmax(scale, fabs((double)with[i]));
    }
    StrBuf out = {0};
    strbuf_printf(&out, "largest logit difference %.3g (largest logit %.3g)\n", largest, scale);
    Status status = cli_print(&out);
    strbuf_deinit(&out);
    return status;
}

static Status compare(const char *base, const char *adapter, const char *qlora, const char *merged)
{
    float  *with = NULL, *without = NULL;
    int64_t count = 0, other = 0;
    Status  status = probe(base, adapter, qlora, &with, &count);
    log_mute(true); /* notes on the base would be repeated for the merged model */
    if (status == OK) status = probe(merged, NULL, NULL, &without, &other);
    log_mute(false);
    if (status == OK && count != other)
        status = status_fail(ERR_INTERNAL, "the merged model has %lld logits, base and adapter %lld", (long long)other, (long long)count);
    if (status == OK) status = print_difference(with, without, count);
    free(with);
    free(without);
    return status;
}

/* ---- the adapters ---- */

/* Splits DIR=WEIGHT; for DIR alone *out_weight isn't changed. */
static Status split_weight(Arena *arena, const char *word, const char **out_dir, double *out_weight)
{
    const char *equals = strrchr(word, '=');
    char       *end;
    bool        is_dir;
    *out_dir = word;
    TRY(file_is_dir(word, &is_dir));
    if (is_dir || !equals) return OK;
    double weight = strtod(equals + 1, &end);
    FAIL_IF(equals == word || end == equals + 1 || *end || !isfinite(weight) || weight == 0, ERR_INVALID,
            "surogate merge: %s: expected ADAPTER_DIR=WEIGHT, a number but 0", word);
    *out_dir = arena_strndup(arena, word, (size_t)(equals - word));
    *out_weight = weight;
    return OK;
}

/* Combines several adapters, or one with a weight, into one adapter in `folder`. */
static Status combine(Arena *arena, const char *base, const char *const *dirs, const double *weights, int count, const char *qlora,
                      const char *folder)
{
    WeightedAdapter *parts = arena_array(arena, WeightedAdapter, count);
    HfModel         *model;
    TRY(hf_model_open(arena, base, &model));
    Status status = hf_model_open_weights(model);
    for (int i = 0; i < count && status == OK; i++) {
        PeftAdapter *adapter = &parts[i].adapter;
        parts[i].weight = weights[i];
        status = peft_open(arena, dirs[i], adapter);
        if (status == OK) status = peft_check_model(adapter, model);
        if (status != OK) break;
        peft_check_base(adapter, base);
        if (qlora) status = peft_parse_base_format(qlora, &adapter->base_format);
    }
    hf_model_close(model);
    return status == OK ? peft_combine(parts, count, folder) : status;
}

/* Finds the adapter to merge: the folder itself, or a combination of several written below `partial`. */
static Status choose_adapter(CliArgs *args, const char *qlora, const char *partial, const char **out_dir)
{
    int          count = (int)args->num_words - 2;
    const char **dirs = arena_array(&args->arena, const char *, count);
    double      *weights = arena_array(&args->arena, double, count);
    for (int i = 0; i < count; i++) {
        TRY(split_weight(&args->arena, args->words[i + 1], &dirs[i], &weights[i]));
        FAIL_IF(count > 1 && weights[i] == 0, ERR_INVALID,
                "surogate merge: %s: several adapters need weights, by which their changes are multiplied: ADAPTER_DIR=0.5", dirs[i]);
    }
    *out_dir = dirs[0];
    if (count == 1 && (weights[0] == 0 || weights[0] == 1)) return OK;
    *out_dir = arena_printf(&args->arena, "%s/.adapter.partial", partial);
    return combine(&args->arena, args->words[0], dirs, weights, count, qlora, *out_dir);
}

static Status merge(Arena *arena, const char *base, const char *adapter_dir, const char *qlora, bool quantised, const char *out)
{
    HfModel    *model;
    PeftAdapter adapter;
    Device     *device;
    TRY(hf_model_open(arena, base, &model));
    TRY(peft_open(arena, adapter_dir, &adapter));
    if (qlora) TRY(peft_parse_base_format(qlora, &adapter.base_format));
    TRY(device_cpu_create(0, &device));
    Status status = merge_adapter(model, &adapter, quantised, out, 5000000000, device_cpu_pool(device));
    device->api->destroy(device);
    hf_model_close(model);
    return status;
}

static Status refuse_used(Arena *arena, const char *out)
{
    bool is_model, is_adapter;
    TRY(file_exists(arena_printf(arena, "%s/config.json", out), &is_model));
    TRY(peft_is_adapter_dir(out, &is_adapter));
    FAIL_IF(is_model, ERR_INVALID, "%s already holds a model; name a new folder", out);
    FAIL_IF(is_adapter, ERR_INVALID, "%s holds an adapter; name a new folder for the merged model", out);
    return OK;
}

Status cmd_merge(CliArgs *args)
{
    FolderWriter writer;
    const char  *qlora = NULL;
    bool         quantised = false, done;
    const Flag   flags[] = {
          {"--qlora", FLAG_TEXT, &qlora, "FORMAT",
           "the base was quantised under the adapter: nf4, nf4_once, fp8, nvfp4 or none (as the adapter was trained)"},
          {"--quantised", FLAG_SWITCH, &quantised, NULL,
           "quantise what is merged as the base's folder is; without it the result isn't quantised"},
    };
    TRY(cli_parse(args, flags, sizeof flags / sizeof *flags, false, &done));
    if (done) return OK;
    if (args->num_words < 3) return cli_want_words(args, 3);
    const char *base = args->words[0], *adapter = NULL, *out = args->words[args->num_words - 1];
    TRY(refuse_used(&args->arena, out));
    TRY(folder_begin(&args->arena, out, &writer));
    Status status = choose_adapter(args, qlora, writer.partial, &adapter);
    if (status == OK) status = merge(&args->arena, base, adapter, qlora, quantised, writer.partial);
    if (status == OK) status = compare(base, adapter, qlora, writer.partial);
    if (status == OK && strncmp(adapter, writer.partial, strlen(writer.partial)) == 0) status = file_remove_tree(adapter);
    if (status != OK) return folder_abandon(&writer, status);
    TRY(folder_finish(&writer, "config.json"));
    log_info("wrote %s", out);
    return OK;
}
