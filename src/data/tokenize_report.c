#include "data/tokenize_report.h"

#include "base/array.h"
#include "files/file.h"

#include <stdio.h>
#include <string.h>

enum { MAX_REPORT_BYTES = 64 << 20 };

void done_shards_add(Arena *arena, DoneShards *done)
{
    done->ends = arena_room(arena, done->ends, (size_t)done->count + 1, &done->capacity, sizeof *done->ends);
    done->ends[done->count++] = done->num_rows;
}

static void put_report(const TokenizeReport *r, const DoneShards *done, StrBuf *out)
{
    strbuf_printf(out,
                  "{\n  \"shards\": %d,\n  \"rows\": %lld,\n  \"documents\": %lld,\n  \"tokens\": %lld,\n"
                  "  \"trained\": %lld,\n  \"bad_rows\": %lld,\n  \"untrained_rows\": %lld,\n  \"turns_without_stop\": %lld,\n"
                  "  \"turns_without_calls\": %lld,\n  \"empty_turns\": %lld,\n  \"unprinted_messages\": %lld,\n"
                  "  \"format\": ",
                  done->count, (long long)done->num_rows, (long long)r->num_documents, (long long)r->num_tokens, (long long)r->num_trained,
                  (long long)r->num_bad_rows, (long long)r->num_untrained, (long long)r->num_without_stop, (long long)r->num_without_calls,
                  (long long)r->num_empty, (long long)r->num_unprinted);
    json_write_string(out, r->format, strlen(r->format));
    strbuf_puts(out, ",\n  \"first_unprinted\": ");
    json_write_string(out, r->first_unprinted, strlen(r->first_unprinted));
    strbuf_puts(out, ",\n  \"examples\": [");
    for (int i = 0; i < r->num_examples; i++) {
        strbuf_puts(out, i ? ", " : "");
        json_write_string(out, r->examples[i], strlen(r->examples[i]));
    }
    strbuf_puts(out, "],\n  \"unused\": [");
    for (int i = 0; i < r->unused.count; i++) {
        strbuf_puts(out, i ? ", " : "");
        json_write_string(out, r->unused.names[i], strlen(r->unused.names[i]));
    }
    strbuf_printf(out, "],\n  \"more_unused\": %s", r->unused.has_more ? "true" : "false");
    strbuf_puts(out, ",\n  \"shard_ends\": [");
    for (int i = 0; i < done->count; i++) strbuf_printf(out, "%s%lld", i ? ", " : "", (long long)done->ends[i]);
    strbuf_puts(out, "]\n}\n");
}

Status tokenize_report_save(const char *path, const TokenizeReport *report, const DoneShards *done)
{
    StrBuf json = {0};
    put_report(report, done, &json);
    Status status = file_write_atomic(path, json.data, json.len);
    strbuf_deinit(&json);
    return status;
}

static bool get_counts(const JsonValue *json, TokenizeReport *r, DoneShards *done)
{
    return json_get_int(json, "rows", &done->num_rows) && json_get_int(json, "documents", &r->num_documents) &&
           json_get_int(json, "tokens", &r->num_tokens) && json_get_int(json, "trained", &r->num_trained) &&
           json_get_int(json, "bad_rows", &r->num_bad_rows) && json_get_int(json, "untrained_rows", &r->num_untrained) &&
           json_get_int(json, "turns_without_stop", &r->num_without_stop) &&
           json_get_int(json, "turns_without_calls", &r->num_without_calls) && json_get_int(json, "empty_turns", &r->num_empty) &&
           json_get_int(json, "unprinted_messages", &r->num_unprinted);
}

/* Reads the ends of shards, which must rise and not exceed the number of rows. */
static bool get_ends(Arena *arena, const JsonValue *json, DoneShards *done)
{
    const JsonValue *ends = json_get(json, "shard_ends");
    int64_t          shards = 0, last = 0;
    if (!ends || ends->type != JSON_ARRAY || !json_get_int(json, "shards", &shards) || shards != (int64_t)ends->count) return false;
    done->count = done->capacity = (int)shards;
    done->ends = arena_array(arena, int64_t, ends->count);
    for (uint32_t i = 0; i < ends->count; i++) {
        const JsonValue *end = &ends->items[i];
        if (end->type != JSON_INT || end->integer <= last || end->integer > done->num_rows) return false;
        done->ends[i] = last = end->integer;
    }
    return true;
}

bool tokenize_report_load(Arena *arena, const char *path, TokenizeReport *report, DoneShards *done)
{
    const char *format, *unprinted;
    Str         text;
    JsonValue   json;
    bool is_read = file_read(arena, path, MAX_REPORT_BYTES, &text) == OK && json_parse(arena, path, text.data, text.len, &json) == OK;
    status_clear();
    if (!is_read || !get_counts(&json, report, done) || !get_ends(arena, &json, done) ||
        !json_get_str(&json, "first_unprinted", &unprinted) || !json_get_str(&json, "format", &format))
        return false;
    snprintf(report->format, sizeof report->format, "%s", format);
    snprintf(report->first_unprinted, sizeof report->first_unprinted, "%s", unprinted);
    const JsonValue *examples = json_get(&json, "examples");
    for (uint32_t i = 0; examples && examples->type == JSON_ARRAY && i < examples->count && i < 5; i++)
        if (examples->items[i].type == JSON_STRING)
            snprintf(report->examples[report->num_examples++], sizeof report->examples[0], "%s", examples->items[i].string.data);
    const JsonValue *unused = json_get(&json, "unused");
    for (uint32_t i = 0; unused && unused->type == JSON_ARRAY && i < unused->count; i++)
        if (unused->items[i].type == JSON_STRING) field_set_add(&report->unused, NULL, unused->items[i].string);
    (void)json_get_bool(&json, "more_unused", &report->unused.has_more);
    return true;
}
