/* See prompt_file.h. */
#include "infer/prompt_file.h"

#include "base/hash.h"
#include "base/str.h"
#include "data/record.h"
#include "infer/chat.h"
#include "infer/row_adapters.h"

#include <stdlib.h>
#include <string.h>

static const char rows_help[] = "expected {\"prompt\": TEXT}, {\"messages\": [...]} or {\"ids\": [...]}";

typedef struct PromptReader {
    InferModel          *infer;
    const PromptOptions *options;
    PromptFile          *out;
    Template            *tmpl;  /* NULL until a row needs it */
    Status               fatal; /* error of the model's folder: ends reading even with skip_bad */
} PromptReader;

void prompt_file_deinit(PromptFile *file)
{
    token_ids_deinit(&file->ids);
    free(file->rows);
    arena_deinit(&file->arena);
    *file = (PromptFile){0};
}

static Status need_template(PromptReader *r)
{
    const InferModel *infer = r->infer;
    if (!infer->tokenizer) r->fatal = status_fail(ERR_NOT_FOUND, "%s has no tokenizer.json, which messages need", infer->tokenizer_dir);
    if (infer->tokenizer && !r->tmpl) r->fatal = chat_template(infer, &r->tmpl);
    return r->fatal;
}

static Status encode_messages(PromptReader *r, const JsonValue *row)
{
    ChatMessages chat;
    TRY(chat_check(row, &chat));
    TRY(need_template(r));
    chat.variables = r->options->variables;
    return chat_encode_messages(r->tmpl, r->infer->tokenizer, r->infer->scratch, &chat, &r->out->ids);
}

static Status encode_prompt(PromptReader *r, const JsonValue *prompt)
{
    InferModel *infer = r->infer;
    FAIL_IF(prompt->type != JSON_STRING, ERR_INVALID, "prompt is %s; expected a text", json_type_name(prompt->type));
    if (!r->options->ask) return infer_encode(infer, prompt->string.data, prompt->string.len, true, &r->out->ids);
    ChatPrompt question = {.system = r->options->system, .question = prompt->string, .variables = r->options->variables};
    TRY(need_template(r));
    return chat_encode(r->tmpl, infer->tokenizer, infer->scratch, &question, &r->out->ids);
}

static Status take_ids(PromptReader *r, const JsonValue *list)
{
    int64_t most = r->infer->model->vocab_size - 1;
    FAIL_IF(list->type != JSON_ARRAY, ERR_INVALID, "ids is %s; expected a list of token ids", json_type_name(list->type));
    for (uint32_t i = 0; i < list->count; i++) {
        const JsonValue *id = &list->items[i];
        FAIL_IF(id->type != JSON_INT || id->integer < 0 || id->integer > most, ERR_INVALID,
                "ids[%u] is no token id; expected a whole number from 0 to %lld", i, (long long)most);
        token_ids_push(&r->out->ids, (int32_t)id->integer);
    }
    FAIL_IF(!list->count, ERR_INVALID, "ids is an empty list; expected at least one token id to go on from");
    return OK;
}

static Status encode_field(PromptReader *r, const JsonValue *value)
{
    bool             is_object = value->type == JSON_OBJECT;
    const JsonValue *prompt = is_object ? json_get(value, "prompt") : NULL, *messages = is_object ? json_get(value, "messages") : NULL;
    const JsonValue *ids = is_object ? json_get(value, "ids") : NULL;
    int              num = (prompt != NULL) + (messages != NULL) + (ids != NULL);
    FAIL_IF(num > 1, ERR_INVALID, "the row has more than one of prompt, messages and ids; %s", rows_help);
    FAIL_IF(num == 0, ERR_INVALID, "the row has none of prompt, messages and ids; %s", rows_help);
    if (ids) return take_ids(r, ids);
    return prompt ? encode_prompt(r, prompt) : encode_messages(r, value);
}

/* name: JSON null gives no adapter. */
static Status find_adapter(const PromptReader *r, const JsonValue *name, PromptRow *row)
{
    if (!name || name->type == JSON_NULL) return OK;
    FAIL_IF(name->type != JSON_STRING, ERR_INVALID, "adapter is %s; expected a name, or null", json_type_name(name->type));
    TRY(infer_find_adapter(r->infer, name->string, &row->adapter));
    row->adapter++;
    return OK;
}

/* value: JSON null gives the default. */
static Status take_max_tokens(const JsonValue *value, PromptRow *row)
{
    if (!value || value->type == JSON_NULL) return OK;
    FAIL_IF(value->type != JSON_INT || value->integer < 1, ERR_INVALID,
            "max_tokens is no number of tokens; expected a whole number from 1 on");
    row->max_tokens = value->integer;
    return OK;
}

static Status encode_row(PromptReader *r, const JsonValue *value, PromptRow *row)
{
    const JsonValue *id = value->type == JSON_OBJECT ? json_get(value, "id") : NULL;
    int64_t          most = r->infer->model->max_positions;
    StrBuf           text = {0};
    if (id) {
        json_write(&text, id, -1);
        row->id = arena_strdup(&r->out->arena, strbuf_cstr(&text));
        strbuf_deinit(&text);
    }
    TRY(encode_field(r, value));
    TRY(find_adapter(r, json_get(value, "adapter"), row));
    TRY(take_max_tokens(json_get(value, "max_tokens"), row));
    TRY(infer_check_ids(r->infer, &r->out->ids, row->first));
    row->num = r->out->ids.len - row->first;
    FAIL_IF(!row->num, ERR_INVALID, "the prompt is empty and the tokenizer adds no BOS: give a text to go on from");
    FAIL_IF((int64_t)row->num > most, ERR_INVALID, "the prompt has %zu tokens, the model was made for %lld; shorten it, or leave it out",
            row->num, (long long)most);
    return OK;
}

static Status read_row(PromptReader *r, const Record *record)
{
    PromptFile *out = r->out;
    PromptRow  *row = &out->rows[out->num_rows++];
    Arena       arena = {0};
    JsonValue   value;
    *row = (PromptRow){.index = record->line - 1, .first = out->ids.len};
    Status status = record_parse(&arena, record, &value);
    if (status == OK) {
        status = encode_row(r, &value, row);
        if (status != OK) status = status_prefix(status, "%s:%lld", out->name, (long long)record->line);
    }
    arena_deinit(&arena);
    if (status == OK || r->fatal != OK || !r->options->skip_bad) return status;
    row->error = arena_strdup(&out->arena, status_message());
    row->num = 0;
    out->ids.len = row->first;
    status_clear();
    return OK;
}

static void sum_up(PromptFile *out)
{
    for (size_t i = 0; i < out->num_rows; i++) {
        const PromptRow *row = &out->rows[i];
        const char      *id = row->id ? row->id : "";
        int64_t          shape[] = {row->index, (int64_t)row->num, row->error != NULL};
        if ((int64_t)row->num > out->longest) out->longest = (int64_t)row->num;
        out->hash = hash_bytes(shape, sizeof shape, out->hash);
        out->hash = hash_bytes(id, strlen(id), out->hash);
        if (row->adapter) out->hash = hash_bytes(&row->adapter, sizeof row->adapter, out->hash);
        if (row->max_tokens) out->hash = hash_bytes(&row->max_tokens, sizeof row->max_tokens, out->hash);
        out->hash = hash_bytes(out->ids.data + row->first, row->num * sizeof *out->ids.data, out->hash);
    }
}

static Status read_rows(PromptReader *r, Str text)
{
    const RecordFile file = {.path = r->out->name};
    int64_t          line = 0;
    for (size_t at = 0, end; at < text.len; at = end) {
        const char *newline = memchr(text.data + at, '\n', text.len - at);
        end = newline ? (size_t)(newline - text.data) + 1 : text.len;
        Record record = {
            .kind = RECORD_JSON, .bytes = {text.data + at, end - at - (newline != NULL)}, .file = &file, .line = ++line, .column = 1};
        if (str_trim(record.bytes).len > 0) TRY(read_row(r, &record));
    }
    FAIL_IF(!r->out->num_rows, ERR_INVALID, "%s has no rows; %s on each line", r->out->name, rows_help);
    FAIL_IF(!r->out->ids.len, ERR_INVALID, "%s has no row that is fine; the first says: %s", r->out->name, r->out->rows[0].error);
    return OK;
}

Status prompt_file_read(InferModel *infer, const char *name, Str text, const PromptOptions *options, PromptFile *out)
{
    PromptReader reader = {.infer = infer, .options = options, .out = out, .fatal = OK};
    size_t       num_lines = 1;
    *out = (PromptFile){.name = name};
    for (size_t i = 0; i < text.len; i++) num_lines += text.data[i] == '\n';
    out->rows = calloc_or_end(num_lines, sizeof *out->rows);
    Status status = read_rows(&reader, text);
    if (reader.tmpl) template_destroy(reader.tmpl);
    if (status == OK) sum_up(out);
    return status;
}
