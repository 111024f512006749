/* The settings of generate_file: everything that a sample depends on. Models and prompts are represented by hashes. */
#include "infer/generate_file.h"

#include "base/hash.h"
#include "base/json.h"

#include <string.h>

enum { LOOKED_AT = 4096 }; /* bytes hashed of each tensor: enough, since training changes all tensors */

static uint64_t hash_tensor(const StTensor *tensor, uint64_t hash)
{
    hash = hash_bytes(tensor->name, strlen(tensor->name), hash);
    for (int i = 0; tensor->made && i < tensor->made->num_parts; i++) hash = hash_tensor(&tensor->made->parts[i], hash);
    return tensor->data ? hash_bytes(tensor->data, tensor->bytes < LOOKED_AT ? tensor->bytes : LOOKED_AT, hash) : hash;
}

static uint64_t hash_weights(const StFile *weights, uint64_t hash)
{
    for (size_t i = 0; weights && i < st_count(weights); i++) hash = hash_tensor(st_at(weights, i), hash);
    return hash;
}

static uint64_t hash_model(const InferModel *infer)
{
    uint64_t hash = infer->tokenizer ? tokenizer_hash(infer->tokenizer) : 0; /* 0 without a tokenizer: prompts may be ids */
    hash = hash_bytes(infer->model->config_text.data, infer->model->config_text.len, hash);
    hash = hash_bytes(infer->eos, (size_t)infer->num_eos * sizeof *infer->eos, hash);
    return hash_weights(infer->model->weights, hash);
}

static uint64_t hash_adapter(const PeftAdapter *adapter)
{
    StFile  *tensors;
    uint64_t hash = 0;
    StrBuf   config = {0};
    json_write(&config, &adapter->config, -1);
    if (peft_open_tensors(adapter->dir, &tensors) == OK) {
        hash = hash_weights(tensors, hash_bytes(config.data, config.len, 1)); /* the config is hashed because only it contains alpha */
        st_close(tensors);
    }
    strbuf_deinit(&config);
    status_clear(); /* errors are ignored: loading the adapter reports them better */
    return hash;
}

static void put_key(StrBuf *out, const char *key)
{
    strbuf_printf(out, "%s\"%s\": ", out->len ? ",\n  " : "{\n  ", key);
}

static void put_hash(StrBuf *out, const char *key, uint64_t hash)
{
    put_key(out, key);
    strbuf_printf(out, "\"%016llx\"", (unsigned long long)hash);
}

static void put_text(StrBuf *out, const char *key, const char *text)
{
    put_key(out, key);
    json_write_string(out, text, strlen(text));
}

static void put_int(StrBuf *out, const char *key, int64_t value)
{
    put_key(out, key);
    strbuf_printf(out, "%lld", (long long)value);
}

static void put_bool(StrBuf *out, const char *key, bool value)
{
    put_key(out, key);
    strbuf_puts(out, value ? "true" : "false");
}

static void put_double(StrBuf *out, const char *key, double value)
{
    put_key(out, key);
    json_write_double(out, value);
}

/* Names of the adapters, each with its hash. */
static void put_adapters(StrBuf *out, const InferModel *infer)
{
    put_key(out, "adapters");
    for (int i = 0; i < infer->num_row_adapters; i++) {
        const RowAdapter *adapter = &infer->row_adapters[i];
        strbuf_puts(out, i ? ", " : "[");
        json_write_string(out, adapter->name, strlen(adapter->name));
        strbuf_printf(out, ", \"%016llx\"", (unsigned long long)hash_adapter(&adapter->peft));
    }
    strbuf_puts(out, "]");
}

static void put_stops(StrBuf *out, const StrList *stops)
{
    put_key(out, "stop");
    for (size_t i = 0; i < stops->count; i++) {
        strbuf_puts(out, i ? ", " : "[");
        json_write_string(out, stops->items[i], strlen(stops->items[i]));
    }
    strbuf_puts(out, stops->count ? "]" : "[]");
}

static void put_biases(StrBuf *out, const SampleOptions *s)
{
    put_key(out, "logit_bias");
    strbuf_putc(out, '[');
    for (int i = 0; i < s->num_biases; i++) {
        strbuf_printf(out, "%s[%d, ", i ? ", " : "", s->bias_ids[i]);
        json_write_double(out, (double)s->biases[i]); /* -inf, a ban, becomes null */
        strbuf_putc(out, ']');
    }
    strbuf_putc(out, ']');
}

void generate_file_settings(const InferModel *infer, const PromptFile *prompts, const GenerateFileJob *job, int64_t rows, StrBuf *out)
{
    const RowsJob       *r = &job->rows;
    const SampleOptions *s = &r->sample;
    put_hash(out, "prompts_hash", prompts->hash);
    put_hash(out, "model_hash", hash_model(infer));
    if (infer->has_adapter) put_hash(out, "adapter_hash", hash_adapter(&infer->adapter));
    if (infer->num_row_adapters) put_adapters(out, infer);
    put_text(out, "dtype", dtype_info(infer->options.model_dtype)->name);
    if (job->format) put_text(out, "qlora", job->format);
    if (infer->options.fp8_cache) put_text(out, "kv", "fp8");
    if (infer->options.split_k) put_text(out, "split_k", "yes");
    if (job->recipe) put_text(out, "recipe", job->recipe);
    put_text(out, "device", infer->device->api->name);
    put_int(out, "rows", rows);
    put_int(out, "n", r->num);
    put_int(out, "max_tokens", r->max_tokens);
    put_double(out, "temperature", s->temperature);
    put_int(out, "top_k", s->top_k);
    put_double(out, "top_p", s->top_p);
    put_double(out, "min_p", s->min_p);
    put_double(out, "repetition_penalty", s->repetition);
    put_double(out, "presence_penalty", s->presence);
    put_double(out, "frequency_penalty", s->frequency);
    put_biases(out, s);
    put_int(out, "seed", (int64_t)s->seed);
    put_bool(out, "ignore_eos", r->ignore_eos);
    if (r->logprobs >= 0) put_int(out, "logprobs", r->logprobs);
    put_stops(out, r->stops);
    strbuf_puts(out, "\n}\n");
}
