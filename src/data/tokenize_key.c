/* The key is the hash of key.json's text, so that the stored text is exactly what the key depends on. */
#include "data/tokenize_key.h"

#include "base/hash.h"
#include "data/record_internal.h"
#include "data/shard.h"
#include "files/file.h"

#include <string.h>

static void put_string(StrBuf *out, const char *key, const char *value)
{
    if (!value) return;
    strbuf_puts(out, ",\n  ");
    json_write_string(out, key, strlen(key));
    strbuf_puts(out, ": ");
    json_write_string(out, value, strlen(value));
}

static void put_hash(StrBuf *out, const char *key, uint64_t hash)
{
    strbuf_printf(out, ",\n  \"%s\": \"%016llx\"", key, (unsigned long long)hash);
}

static void put_options(StrBuf *out, const DatasetOptions *o)
{
    static const char *const types[] = {"auto", "text", "instruction", "conversation", "tokens"};
    static const char *const train_on[] = {"assistant", "last_turn", "all"};
    static const char *const system[] = {"default", "none", "fixed", "field"};
    put_string(out, "type", types[o->type]);
    put_string(out, "split", o->split);
    strbuf_printf(out, ",\n  \"samples\": %lld", (long long)o->samples);
    put_string(out, "text_field", o->text_field);
    put_string(out, "instruction_field", o->instruction_field);
    put_string(out, "input_field", o->input_field);
    put_string(out, "output_field", o->output_field);
    put_string(out, "system_prompt_type", system[o->system_prompt_type]);
    put_string(out, "system_prompt", o->system_prompt);
    put_string(out, "system_prompt_field", o->system_prompt_field);
    put_string(out, "prompt_format", o->prompt_format);
    put_string(out, "prompt_format_no_input", o->prompt_format_no_input);
    put_string(out, "messages_field", o->messages_field);
    put_string(out, "tools_field", o->tools_field);
    put_string(out, "role_property", o->role_property);
    put_string(out, "content_property", o->content_property);
    put_string(out, "train_on", train_on[o->train_on]);
    for (int i = 0; i < o->num_inputs; i++) {
        strbuf_puts(out, i ? ", " : ",\n  \"inputs\": {");
        json_write_string(out, o->inputs[i].name, strlen(o->inputs[i].name));
        strbuf_puts(out, ": ");
        json_write_string(out, o->inputs[i].column, strlen(o->inputs[i].column));
        if (i == o->num_inputs - 1) strbuf_putc(out, '}');
    }
    strbuf_printf(out, ",\n  \"skip_bad_rows\": %s", o->skip_bad_rows ? "true" : "false");
}

/* Files are named without their folder: a dataset that moved keeps its key. */
static Status put_files(StrBuf *out, ThreadPool *pool, DatasetKey *key)
{
    strbuf_puts(out, ",\n  \"files\": [");
    for (int i = 0; i < key->num_paths; i++) {
        const char *path = key->paths[i], *slash = strrchr(path, '/');
        uint64_t    hash;
        int64_t     size;
        TRY(file_size(path, &size));
        TRY(file_hash_parts(pool, path, &hash));
        strbuf_puts(out, i ? ",\n    {\"name\": " : "\n    {\"name\": ");
        json_write_string(out, slash ? slash + 1 : path, strlen(slash ? slash + 1 : path));
        strbuf_printf(out, ", \"bytes\": %lld, \"xxh3_parts\": \"%016llx\"}", (long long)size, (unsigned long long)hash);
    }
    strbuf_puts(out, "\n  ]");
    return OK;
}

/* How many of the files are texts. */
static int count_texts(const DatasetKey *key)
{
    int  count = 0;
    bool is_known;
    for (int i = 0; i < key->num_paths; i++) count += file_format(key->paths[i], &is_known) == FILE_TEXT;
    return count;
}

/* Datasets of plain texts from version 4 are still valid, so their key keeps that version: a run that began with such a dataset goes on. */
static int version_of(const DatasetOptions *options, const DatasetKey *key)
{
    enum { OF_TEXTS = 4 };
    return options->type == DATASET_TEXT || count_texts(key) == key->num_paths ? OF_TEXTS : TOKENIZE_VERSION;
}

Status dataset_key(Arena *arena, const TokenizeJob *job, DatasetKey *out)
{
    *out = (DatasetKey){0};
    FAIL_IF(!job->dataset->path, ERR_INVALID, "a dataset needs a path");
    TRY(reader_find_files(arena, job->dataset->path, job->dataset->split, job->dataset->type == DATASET_TEXT, &out->file_notes, &out->paths,
                          &out->num_paths));
    StrBuf *json = &out->json;
    strbuf_printf(json, "{\n  \"version\": \"%d.%d\"", version_of(job->dataset, out), SHARD_VERSION);
    put_hash(json, "tokenizer", tokenizer_hash(job->tokenizer));
    strbuf_printf(json, ",\n  \"special\": [%d, %d, %s]", tokenizer_bos_id(job->tokenizer), tokenizer_eos_id(job->tokenizer),
                  tokenizer_adds_bos(job->tokenizer) ? "true" : "false");
    if (job->tmpl) put_hash(json, "template", template_hash(job->tmpl));
    if (job->tmpl && template_asks_time(job->tmpl)) strbuf_printf(json, ",\n  \"time\": %lld", (long long)template_now(job->tmpl));
    strbuf_printf(json, ",\n  \"shard_tokens\": %lld", (long long)job->shard_tokens);
    put_options(json, job->dataset);
    if (job->dataset->samples > 0 && count_texts(out)) /* samples count whole texts, not their parts */
        strbuf_puts(json, ",\n  \"samples_of\": \"whole texts\"");
    ThreadPool *pool;
    TRY(pool_create(job->num_threads, &pool));
    Status status = put_files(json, pool, out);
    pool_destroy(pool);
    TRY(status);
    strbuf_puts(json, "\n}\n");
    out->hash = hash_bytes(json->data, json->len, 0);
    return OK;
}

void dataset_key_deinit(DatasetKey *key)
{
    strbuf_deinit(&key->json);
    strbuf_deinit(&key->file_notes);
}
