/* See run_record.h. */
#include "train/run_record.h"

#include "files/file.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { MAX_RECORD_BYTES = 16 << 20 };

/* Keys that change no weight. */
static const char *const free_keys[] = {
    "output_dir", "run_name", "dataset_cache_dir", "save_steps", "save_total_limit", "resume_from_checkpoint", "max_shard_size",
    "eval_steps", "per_device_eval_batch_size", "eval_max_batches", "logging_steps", "generate_samples", "sample_prompts",
    "sample_max_tokens", "sample_temperature", "device", "threads", "memory_limit", "merge_adapter", "on_divergence",
    "recompute_block", "recompute_att", "recompute_ffn", "recompute_qkv", "recompute_swiglu", "recompute_rmsnorm",
};

static bool is_free(const char *line, size_t len)
{
    for (size_t i = 0; i < sizeof free_keys / sizeof *free_keys; i++) {
        size_t n = strlen(free_keys[i]);
        if (len > n && strncmp(line, free_keys[i], n) == 0 && line[n] == ':') return true;
    }
    return false;
}

void run_record_make(const Config *config, const HfModel *model, RunRecord *out)
{
    StrBuf all = { 0 };
    *out = (RunRecord){ 0 };
    config_print(config, &all);
    bool keep = true;
    for (const char *line = strbuf_cstr(&all); *line;) {
        size_t len = strcspn(line, "\n");
        len += line[len] == '\n';
        if (*line != ' ' && *line != '-') keep = *line != '#' && *line != '\n' && !is_free(line, len); /* else it goes on with the key above */
        if (keep) strbuf_append(&out->settings, line, len);
        line += len;
    }
    out->hash = hash_bytes(model->config_text.data, model->config_text.len, hash_bytes(out->settings.data, out->settings.len, 0));
    strbuf_deinit(&all);
}

void run_record_deinit(RunRecord *record)
{
    strbuf_deinit(&record->settings);
}

static void first_difference(const char *before, const char *now, StrBuf *out)
{
    while (*before && *now) {
        size_t a = strcspn(before, "\n"), b = strcspn(now, "\n");
        if (a != b || memcmp(before, now, a) != 0) {
            strbuf_printf(out, "there \"%.*s\", here \"%.*s\"", (int)a, before, (int)b, now);
            return;
        }
        before += a + (before[a] == '\n');
        now += b + (now[b] == '\n');
    }
    strbuf_puts(out, *before || *now ? "the settings differ" : "the model's config.json differs");
}

Status run_record_look(const char *output_dir, const RunRecord *record, RunPresence *out, bool *out_same, StrBuf *difference)
{
    Arena       arena = { 0 };
    const char *path = arena_printf(&arena, "%s/run.json", output_dir), *settings = "", *hash = "";
    Str         text;
    JsonValue   root;
    uint64_t    value = 0;
    bool        finished = false;
    *out = RUN_ABSENT;
    *out_same = true;
    if (!file_exists(path)) {
        arena_deinit(&arena);
        return OK;
    }
    Status status = file_read(&arena, path, MAX_RECORD_BYTES, &text);
    if (status == OK) status = json_parse(&arena, path, text.data, text.len, &root);
    if (status == OK && !(json_get_bool(&root, "finished", &finished) && json_get_str(&root, "settings", &settings) &&
                          json_get_str(&root, "settings_hash", &hash) && sscanf(hash, "%16" SCNx64, &value) == 1))
        status = status_fail(ERR_INVALID, "%s isn't a record of this program; name another output_dir, or remove it", path);
    if (status == OK) {
        *out = finished ? RUN_FINISHED : RUN_UNFINISHED;
        *out_same = value == record->hash;
        if (!*out_same) first_difference(settings, strbuf_cstr(&record->settings), difference);
    }
    arena_deinit(&arena);
    return status;
}

Status run_record_write(const char *output_dir, const RunRecord *record, bool finished)
{
    StrBuf text = { 0 };
    char   path[4096];
    snprintf(path, sizeof path, "%s/run.json", output_dir);
    strbuf_printf(&text, "{\n  \"version\": 1,\n  \"finished\": %s,\n  \"settings_hash\": \"%016llx\",\n  \"settings\": ", finished ? "true" : "false",
                  (unsigned long long)record->hash);
    json_write_string(&text, record->settings.data, record->settings.len);
    strbuf_puts(&text, "\n}\n");
    Status status = file_write_atomic(path, text.data, text.len);
    strbuf_deinit(&text);
    return status;
}
