/* surogate merge BASE_DIR ADAPTER_DIR OUT_DIR: merges, then compares logits of both forms on some tokens. */
#include "cli/cli.h"

#include "base/log.h"
#include "base/philox.h"
#include "infer/infer_model.h"
#include "model/merge.h"

#include <math.h>
#include <stdlib.h>

enum { PROBE_TOKENS = 32, PROBE_EVERY = 4 };

/* Logits (PROBE_TOKENS / PROBE_EVERY, V) of rows of one random text, in fp32. */
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
        compile_add(options, PROGRAM_PREFILL, 1, chunk);
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
        status = session_write(infer.session, "tokens", tokens, (size_t)chunk * 4);
        if (status == OK) status = session_write(infer.session, "positions", positions, (size_t)chunk * 4);
        if (status == OK) status = session_write(infer.session, "step", step, sizeof step);
        if (status == OK) status = session_write(infer.session, "row", &row, sizeof row);
        if (status == OK) status = session_run(infer.session, plan_program(infer.plan, PROGRAM_PREFILL));
        if (status == OK)
            status = session_output(infer.session, plan_program(infer.plan, PROGRAM_PREFILL), "logits", logits + rows * vocab,
                                    (size_t)vocab * 4);
    }
    infer_close(&infer);
    *out_logits = logits;
    *out_vocab = vocab * rows;
    return status;
}

static Status compare(const char *base, const char *adapter, const char *qlora, const char *merged)
{
    float  *with = NULL, *without = NULL;
    int64_t count = 0, other = 0;
    Status  status = probe(base, adapter, qlora, &with, &count);
    if (status == OK) status = probe(merged, NULL, NULL, &without, &other);
    if (status == OK && count == other) {
        double largest = 0, scale = 0;
        for (int64_t i = 0; i < count; i++) {
            largest = fmax(largest, fabs((double)with[i] - (double)without[i]));
            scale = fmax(scale, fabs((double)with[i]));
        }
        StrBuf out = {0};
        strbuf_printf(&out, "largest logit difference %.3g (largest logit %.3g)\n", largest, scale);
        status = cli_print(&out);
        strbuf_deinit(&out);
    }
    free(with);
    free(without);
    return status;
}

static Status merge(Arena *arena, const char *base, const char *adapter_dir, const char *qlora, bool quantised, const char *out)
{
    HfModel    *model;
    PeftAdapter adapter;
    Device     *device;
    bool        is_there;
    TRY(file_exists(arena_printf(arena, "%s/config.json", out), &is_there));
    FAIL_IF(is_there, ERR_INVALID, "%s already holds a model; name a new folder", out);
    TRY(hf_model_open(arena, base, &model));
    TRY(peft_open(arena, adapter_dir, &adapter));
    if (qlora) TRY(peft_parse_base_format(qlora, &adapter.base_format));
    TRY(device_cpu_create(0, &device));
    Status status = merge_adapter(model, &adapter, quantised, out, 5000000000, device_cpu_pool(device));
    device->api->destroy(device);
    hf_model_close(model);
    return status;
}

Status cmd_merge(CliArgs *args)
{
    const char *qlora = NULL;
    bool        quantised = false, done;
    const Flag  flags[] = {
         {"--qlora", FLAG_TEXT, &qlora, "FORMAT",
          "the base was quantised under the adapter: nf4, nf4_once, fp8, nvfp4 or none (as the adapter was trained)"},
         {"--quantised", FLAG_SWITCH, &quantised, NULL,
          "quantise what is merged as the base's folder is; without it the result isn't quantised"},
    };
    TRY(cli_parse(args, flags, sizeof flags / sizeof *flags, false, &done));
    if (done) return OK;
    TRY(cli_want_words(args, 3));
    TRY(merge(&args->arena, args->words[0], args->words[1], qlora, quantised, args->words[2]));
    TRY(compare(args->words[0], args->words[1], qlora, args->words[2]));
    log_info("wrote %s", args->words[2]);
    return OK;
}
