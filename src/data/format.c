/* Detects a dataset's layout from its first row; reads rows of texts, instructions and token ids. Messages: format_messages.c. */
#include "data/format.h"

#include "data/columns.h"
#include "data/format_internal.h"

#include <stdio.h>
#include <string.h>

static const JsonValue *field(const JsonValue *row, const char *name)
{
    return name ? json_get(row, name) : NULL;
}

static bool is_type(const JsonValue *row, const char *name, JsonType type)
{
    const JsonValue *value = field(row, name);
    return value && value->type == type;
}

/* The field's value. A text that is JSON is parsed, because cells of .csv files hold lists and numbers as text. */
static const JsonValue *parsed_field(Arena *arena, const JsonValue *row, const char *name)
{
    const JsonValue *value = field(row, name);
    return value ? format_parsed(arena, value) : NULL;
}

/* ---- detection ---- */

/* Does the run file name this field itself? `usual`: the key's default, which doesn't count. */
static bool is_named(const char *name, const char *usual)
{
    return name && strcmp(name, usual) != 0;
}

static void describe(RowFormat *format, const char *what, const char *fields)
{
    snprintf(format->description, sizeof format->description, "%s (%s)", what, fields);
}

/* The first message of the list in a field, in the arena. NULL: the list is empty (*out_is_list is true), or the field isn't a list of
 * messages. */
static const JsonValue *first_message(Arena *arena, const JsonValue *value, bool *out_is_list)
{
    const JsonValue *messages = format_message_list(arena, value);
    *out_is_list = messages && (messages->count == 0 || messages->items[0].type == JSON_OBJECT);
    return *out_is_list && messages->count ? &messages->items[0] : NULL;
}

static bool take_messages(RowFormat *out, const DatasetOptions *options, const JsonValue *row, const char *name)
{
    Arena            arena = {0};
    bool             is_list;
    const JsonValue *first = first_message(&arena, json_get(row, name), &is_list);
    const char      *role = options->role_property ? options->role_property : is_type(first, "from", JSON_STRING) ? "from" : "role";
    const char      *content = options->content_property              ? options->content_property
                               : is_type(first, "value", JSON_STRING) ? "value"
                                                                      : "content";
    arena_deinit(&arena);
    if (!is_list) return false;
    char fields[160];
    snprintf(fields, sizeof fields, "%s: %.40s[].%.40s/%.40s", strcmp(role, "from") == 0 ? "ShareGPT" : "messages", name, role, content);
    out->type = DATASET_CONVERSATION;
    out->messages_field = name;
    out->tools_field = options->tools_field ? options->tools_field : "tools";
    describe(out, "conversation", fields);
    return true;
}

/* Takes TRL's rows: "prompt" is a list of messages; "completion" is a list of messages too, or the text of one. */
static bool take_completion(RowFormat *out, const DatasetOptions *options, const JsonValue *row)
{
    Arena            arena = {0};
    bool             is_list, is_answer;
    const JsonValue *completion = field(row, "completion"), *asked = first_message(&arena, field(row, "prompt"), &is_list);
    (void)first_message(&arena, completion, &is_answer);
    is_answer |= completion && completion->type == JSON_STRING;
    bool is_it = asked && is_answer && take_messages(out, options, row, "prompt");
    arena_deinit(&arena);
    if (!is_it) return false;
    out->completion_field = "completion";
    describe(out, "conversation", "messages: prompt[] + completion[]");
    return true;
}

static bool detect_conversation(RowFormat *out, const DatasetOptions *options, const JsonValue *row)
{
    static const char *const names[] = {"messages", "conversations", "conversation", "chat", "dialogue"};
    if (options->messages_field && take_messages(out, options, row, options->messages_field)) return true;
    if (is_named(options->messages_field, "messages")) return false;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (take_messages(out, options, row, names[i])) return true;
    return take_completion(out, options, row);
}

static bool detect_instruction(RowFormat *out, const DatasetOptions *options, const JsonValue *row)
{
    static const char *const pairs[][3] = {
        {"instruction", "output", "Alpaca"}, {"instruction", "response", "Dolly"},
        {"instruction", "answer", NULL},     {"instruction", "completion", NULL},
        {"question", "answer", NULL},        {"question", "response", NULL},
        {"prompt", "completion", NULL},      {"prompt", "response", NULL},
        {"prompt", "output", NULL},          {"query", "response", NULL},
        {"query", "answer", NULL},           {"input", "output", NULL},
    };
    const char *question = options->instruction_field, *answer = options->output_field, *name = NULL;
    if (!(is_type(row, question, JSON_STRING) && field(row, answer))) {
        const char *asked = is_named(question, "instruction") ? question : NULL, *given = is_named(answer, "output") ? answer : NULL;
        question = NULL;
        for (size_t i = 0; i < sizeof pairs / sizeof pairs[0] && !question; i++) {
            const char *left = asked ? asked : pairs[i][0], *right = given ? given : pairs[i][1];
            if (!is_type(row, left, JSON_STRING) || !(given ? field(row, right) != NULL : is_type(row, right, JSON_STRING))) continue;
            question = left;
            answer = right;
            name = asked || given ? NULL : pairs[i][2];
        }
    }
    if (!question) return false;
    out->type = DATASET_INSTRUCTION;
    out->instruction_field = question;
    out->output_field = answer;
    out->input_field = field(row, options->input_field) ? options->input_field : field(row, "context") ? "context" : "input";
    if (strcmp(out->input_field, question) == 0) out->input_field = NULL;
    out->tools_field = options->tools_field ? options->tools_field : "tools";
    char fields[200];
    snprintf(fields, sizeof fields, "%s%s%.40s%s%.40s -> %.40s", name ? name : "", name ? ": " : "", question,
             field(row, out->input_field) ? " + " : "", field(row, out->input_field) ? out->input_field : "", answer);
    describe(out, "instruction", fields);
    return true;
}

static bool detect_text(RowFormat *out, const DatasetOptions *options, const JsonValue *row)
{
    const char *name = is_type(row, options->text_field, JSON_STRING) ? options->text_field
                       : is_named(options->text_field, "text")        ? NULL
                       : is_type(row, "text", JSON_STRING)            ? "text"
                       : is_type(row, "content", JSON_STRING)         ? "content"
                                                                      : NULL;
    if (!name) return false;
    out->type = DATASET_TEXT;
    out->text_field = name;
    describe(out, "text", name);
    return true;
}

/* Detects rows of token ids, as Hugging Face's trainers (input_ids, labels) and `surogate score` (ids, prompt_tokens) write them. */
static bool detect_tokens(RowFormat *out, const JsonValue *row)
{
    static const char *const names[] = {"input_ids", "ids"};
    Arena                    arena = {0};
    for (size_t i = 0; i < sizeof names / sizeof names[0] && !out->ids_field; i++) {
        const JsonValue *ids = parsed_field(&arena, row, names[i]);
        if (ids && ids->type == JSON_ARRAY && ids->count && ids->items[0].type == JSON_INT) out->ids_field = names[i];
    }
    arena_deinit(&arena);
    if (!out->ids_field) return false;
    out->type = DATASET_TOKENS;
    describe(out, "tokens", out->ids_field);
    return true;
}

static void put_fields(const JsonValue *row, StrBuf *out)
{
    for (uint32_t i = 0; i < row->count && out->len < 300; i++)
        strbuf_printf(out, "%s%s (%s)", i ? ", " : "", row->members[i].key.data, json_type_name(row->members[i].value.type));
    if (!out->len) strbuf_puts(out, "no fields");
}

/* Hints for a row that fits no layout: the usual mistakes. */
static void put_hint(const JsonValue *row, StrBuf *out)
{
    static const char *const answers[] = {"output", "response", "answer", "completion"};
    for (size_t i = 0; i < sizeof answers / sizeof answers[0]; i++) {
        const JsonValue *answer = field(row, answers[i]);
        if (answer && answer->type != JSON_STRING)
            strbuf_printf(out, "; an answer must be a text, \"%s\" is %s", answers[i], json_type_name(answer->type));
    }
    if (field(row, "chosen") && field(row, "rejected"))
        strbuf_puts(out, "; preference data (chosen, rejected) isn't supported; its chosen answers alone can be trained on where they are "
                         "messages: messages_field: chosen");
    if (row->count == 1 && strchr(row->members[0].key.data, ';')) strbuf_puts(out, "; columns of a .csv are separated by ',', not ';'");
}

static Status fail_unknown(const DatasetOptions *options, const JsonValue *row)
{
    static const char *const wants[] = {
        [DATASET_AUTO] = "messages, a question and an answer, a text, or token ids (input_ids or ids)",
        [DATASET_TEXT] = "a text (set text_field)",
        [DATASET_INSTRUCTION] = "a question and an answer (set instruction_field and output_field)",
        [DATASET_CONVERSATION] = "a list of messages (set messages_field)",
        [DATASET_TOKENS] = "a list of token ids under input_ids or ids",
    };
    StrBuf names = {0};
    put_fields(row, &names);
    put_hint(row, &names);
    Status status = status_fail(ERR_INVALID, "want %s; the row has %s", wants[options->type], names.data);
    strbuf_deinit(&names);
    return status;
}

Status format_fail_missing(const char *key, const char *name, const JsonValue *row)
{
    StrBuf names = {0};
    put_fields(row, &names);
    Status status = status_fail(ERR_INVALID, "%s is \"%s\", which the row doesn't have; it has %s", key, name, names.data);
    strbuf_deinit(&names);
    return status;
}

/* Checks that the row has every field that the run file names for the row's type. *type: the run file's type; DATASET_AUTO becomes the type
 * of the first named field. */
static Status check_named(const DatasetOptions *options, const JsonValue *row, DatasetType *type)
{
    const struct {
        const char *key, *name, *usual;
        DatasetType type;
    } fields[] = {
        {"messages_field", options->messages_field, "messages", DATASET_CONVERSATION},
        {"instruction_field", options->instruction_field, "instruction", DATASET_INSTRUCTION},
        {"output_field", options->output_field, "output", DATASET_INSTRUCTION},
        {"input_field", options->input_field, "input", DATASET_INSTRUCTION},
        {"text_field", options->text_field, "text", DATASET_TEXT},
    };
    *type = options->type;
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        if (!is_named(fields[i].name, fields[i].usual) || (options->type != DATASET_AUTO && options->type != fields[i].type)) continue;
        if (*type == DATASET_AUTO) *type = fields[i].type;
        if (field(row, fields[i].name)) continue;
        return format_fail_missing(fields[i].key, fields[i].name, row);
    }
    return OK;
}

static const char *const placeholders[4] = {"{system}", "{instruction}", "{input}", "{output}"};

/* Checks that every placeholder, {a_word}, is a known one; other brackets are plain text. */
static Status check_placeholders(const char *key, const char *format)
{
    for (const char *at = format; at && (at = strchr(at, '{')); at++) {
        size_t len = 1 + strspn(at + 1, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
        bool   is_known = len == 1 || at[len] != '}';
        for (int i = 0; i < 4; i++) is_known |= strlen(placeholders[i]) == len + 1 && strncmp(at, placeholders[i], len + 1) == 0;
        FAIL_IF(!is_known, ERR_INVALID, "%s: %.*s is none of {system}, {instruction}, {input}, {output}", key, (int)len + 1, at);
    }
    return OK;
}

static Status check_prompts(const DatasetOptions *options)
{
    FAIL_IF(options->system_prompt_type == SYSTEM_PROMPT_FIXED && !options->system_prompt, ERR_INVALID,
            "system_prompt_type is fixed, system_prompt isn't set: set it, or take out system_prompt_type");
    TRY(check_placeholders("prompt_format", options->prompt_format));
    return check_placeholders("prompt_format_no_input", options->prompt_format_no_input);
}

static Status detect(const DatasetOptions *options, DatasetType type, const JsonValue *row, RowFormat *out)
{
    if ((type == DATASET_AUTO || type == DATASET_CONVERSATION) && detect_conversation(out, options, row)) return OK;
    if ((type == DATASET_AUTO || type == DATASET_INSTRUCTION) && detect_instruction(out, options, row)) return OK;
    if ((type == DATASET_AUTO || type == DATASET_TEXT) && detect_text(out, options, row)) return OK;
    if ((type == DATASET_AUTO || type == DATASET_TOKENS) && detect_tokens(out, row)) return OK;
    return fail_unknown(options, row);
}

/* Sets *out to the row. A row that is a list of messages becomes an object with that list in the field `name`; *member is that field's
 * memory. */
static Status as_object(const JsonValue *row, bool may_be_talk, const char *name, JsonMember *member, JsonValue *out)
{
    *out = *row;
    if (row->type == JSON_OBJECT) return OK;
    bool is_talk = row->type == JSON_ARRAY && row->count && row->items[0].type == JSON_OBJECT && may_be_talk;
    FAIL_IF(!is_talk, ERR_INVALID, "a row is an object of fields, or a list of messages; this is %s", json_type_name(row->type));
    *member = (JsonMember){str_of(name), *row};
    *out = (JsonValue){.type = JSON_OBJECT, .count = 1, .members = member};
    return OK;
}

Status format_detect(const DatasetOptions *options, const JsonValue *given, RowFormat *out)
{
    JsonMember       member;
    JsonValue        object;
    const JsonValue *row = &object;
    *out = (RowFormat){0};
    bool may_be_talk = options->type == DATASET_AUTO || options->type == DATASET_CONVERSATION;
    TRY(as_object(given, may_be_talk, options->messages_field ? options->messages_field : "messages", &member, &object));
    bool is_field = options->system_prompt_type == SYSTEM_PROMPT_FIELD ||
                    (options->system_prompt_type == SYSTEM_PROMPT_DEFAULT && options->system_prompt_field);
    if (is_field) out->system_field = options->system_prompt_field ? options->system_prompt_field : "system";
    DatasetType type;
    TRY(check_named(options, row, &type));
    TRY(check_prompts(options));
    TRY(detect(options, type, row, out));
    TRY(columns_detect(options, row, out));
    bool is_asked = is_field && options->system_prompt_field && out->type != DATASET_TEXT;
    return is_asked && !field(row, out->system_field) ? format_fail_missing("system_prompt_field", out->system_field, row) : OK;
}

/* ---- rows ---- */

/* A field as text: "" if it is null or absent; numbers and booleans as JSON. */
static Status text_of(Arena *arena, const JsonValue *row, const char *name, bool is_needed, Str *out)
{
    const JsonValue *value = field(row, name);
    *out = (Str){"", 0};
    FAIL_IF(is_needed && !value, ERR_INVALID, "field \"%s\" is missing", name);
    if (!value || value->type == JSON_NULL) {
        FAIL_IF(is_needed, ERR_INVALID, "field \"%s\" is null, want a text", name);
        return OK;
    }
    FAIL_IF(value->type == JSON_ARRAY || value->type == JSON_OBJECT, ERR_INVALID, "field \"%s\" is %s, want a text", name,
            json_type_name(value->type));
    if (value->type == JSON_STRING) {
        *out = value->string;
        return OK;
    }
    StrBuf text = {0};
    json_write(&text, value, -1);
    *out = (Str){arena_strndup(arena, strbuf_cstr(&text), text.len), text.len};
    strbuf_deinit(&text);
    return OK;
}

/* Finds the system prompt. SYSTEM_PROMPT_NONE: none. SYSTEM_PROMPT_FIXED: the run file's prompt. Otherwise the row's field, which the run
 * file names, or "system"; if it is empty, the run file's prompt. If the run file gives neither a field nor a prompt, also OpenOrca's field
 * "system_prompt". */
static Status system_of(Arena *arena, const DatasetOptions *options, const RowFormat *format, const JsonValue *row, SystemPrompt *out)
{
    const char *name = format->system_field ? format->system_field : "system", *question = format->instruction_field;
    bool        is_question = !format->system_field && question && strcmp(question, name) == 0;
    *out = (SystemPrompt){.text = {"", 0}};
    if (options->system_prompt_type == SYSTEM_PROMPT_NONE) return OK;
    if (options->system_prompt_type != SYSTEM_PROMPT_FIXED && !is_question) TRY(text_of(arena, row, out->field = name, false, &out->text));
    if (out->text.len > 0) return OK;
    *out = (SystemPrompt){.text = str_of(options->system_prompt ? options->system_prompt : "")};
    name = "system_prompt";
    bool has_other = !format->system_field && !options->system_prompt && is_type(row, name, JSON_STRING);
    if (has_other && !(question && strcmp(question, name) == 0)) *out = (SystemPrompt){field(row, name)->string, name};
    return OK;
}

/* Appends `format` with `values` in its placeholders; if it lacks {output}, the output is appended. *prompt_bytes: the bytes before the
 * output. ERR_INVALID: the row has text for a placeholder that `format` lacks. */
static Status fill_format(StrBuf *out, const char *format, const Str values[4], size_t *prompt_bytes)
{
    bool has_output = false;
    for (int i = 0; i < 3; i++)
        FAIL_IF(values[i].len > 0 && !strstr(format, placeholders[i]), ERR_INVALID,
                "the row has text for %s, which its prompt format lacks: %.60s", placeholders[i], format);
    while (*format) {
        int    found = -1;
        size_t plain = strcspn(format, "{");
        for (int i = 0; plain == 0 && i < 4; i++)
            if (strncmp(format, placeholders[i], strlen(placeholders[i])) == 0) found = i;
        if (found < 0) {
            plain += plain == 0; /* a bracket that is plain text */
            strbuf_append(out, format, plain);
            format += plain;
            continue;
        }
        if (found == 3 && !has_output) *prompt_bytes = out->len;
        has_output |= found == 3;
        strbuf_append(out, values[found].data, values[found].len);
        format += strlen(placeholders[found]);
    }
    if (!has_output) {
        *prompt_bytes = out->len;
        strbuf_append(out, values[3].data, values[3].len);
    }
    return OK;
}

/* The text that the Stanford Alpaca models were tuned on. */
#define ALPACA_TASK "Below is an instruction that describes a task"
#define ALPACA_ASK "Write a response that appropriately completes the request.\n\n### Instruction:\n{instruction}\n\n"
static const char alpaca_format[] =
    ALPACA_TASK ", paired with an input that provides further context. " ALPACA_ASK "### Input:\n{input}\n\n### Response:\n{output}";
static const char alpaca_format_no_input[] = ALPACA_TASK ". " ALPACA_ASK "### Response:\n{output}";

static Status instruction_text(Arena *arena, const DatasetOptions *options, const Str values[4], Sample *out)
{
    const char *format = options->prompt_format ? options->prompt_format : alpaca_format;
    if (values[2].len == 0)
        format = options->prompt_format_no_input ? options->prompt_format_no_input
                 : options->prompt_format        ? options->prompt_format
                                                 : alpaca_format_no_input;
    StrBuf text = {0};
    Status status = fill_format(&text, format, values, &out->prompt_bytes);
    out->text = (Str){arena_strndup(arena, strbuf_cstr(&text), text.len), text.len};
    strbuf_deinit(&text);
    return status;
}

/* Appends the earlier turns of an Alpaca row: a list of [question, answer]. */
static Status push_history(MessageList *list, const JsonValue *history)
{
    for (uint32_t i = 0; history && history->type == JSON_ARRAY && i < history->count; i++) {
        const JsonValue *turn = &history->items[i];
        FAIL_IF(turn->type != JSON_ARRAY || turn->count != 2 || turn->items[0].type != JSON_STRING || turn->items[1].type != JSON_STRING,
                ERR_INVALID, "field \"history\": turn %u isn't a list of two texts, [question, answer]", i + 1);
        message_push(list, "user", turn->items[0].string);
        message_push(list, "assistant", turn->items[1].string);
    }
    return OK;
}

static Str two_paragraphs(Arena *arena, Str first, Str second)
{
    StrBuf text = {0};
    strbuf_append(&text, first.data, first.len);
    strbuf_puts(&text, "\n\n");
    strbuf_append(&text, second.data, second.len);
    Str out = {arena_strndup(arena, strbuf_cstr(&text), text.len), text.len};
    strbuf_deinit(&text);
    return out;
}

/* Is the value a list of tools, or JSON text of one? A column "tools" of instructions may hold anything else, which is ignored. */
static bool holds_tools(Arena *arena, const JsonValue *value)
{
    const JsonValue *tools = value ? format_parsed(arena, value) : NULL;
    return tools && tools->type == JSON_ARRAY && tools->count > 0 && format_parsed(arena, &tools->items[0])->type == JSON_OBJECT;
}

static Status instruction_messages(Arena *arena, const RowFormat *format, const JsonValue *row, const TemplateTraits *tmpl, Str values[4],
                                   Sample *out)
{
    const JsonValue *history = field(row, "history");
    if (values[2].len > 0) values[1] = two_paragraphs(arena, values[1], values[2]);
    MessageList list = {.arena = arena};
    if (values[0].len > 0) message_push(&list, "system", values[0]);
    TRY(push_history(&list, history));
    if (history && history->type == JSON_ARRAY) sample_reads(out, "history");
    message_push(&list, "user", values[1]);
    message_push(&list, "assistant", values[3]);
    if (holds_tools(arena, field(row, format->tools_field))) TRY(format_tools(arena, row, format->tools_field, tmpl, out));
    return message_list_finish(&list, out);
}

static Status format_instruction(Arena *arena, const DatasetOptions *options, const RowFormat *format, const JsonValue *row,
                                 const TemplateTraits *tmpl, Sample *out)
{
    const JsonValue *history = field(row, "history");
    bool             is_text = options->prompt_format || !tmpl;
    SystemPrompt     system;

    Str values[4]; /* system, instruction, input, output */
    TRY(system_of(arena, options, format, row, &system));
    values[0] = system.text;
    TRY(text_of(arena, row, format->instruction_field, true, &values[1]));
    TRY(text_of(arena, row, format->input_field, false, &values[2]));
    TRY(text_of(arena, row, format->output_field, true, &values[3]));
    const char *const fields[] = {system.field, format->instruction_field, format->input_field, format->output_field};
    for (size_t i = 0; i < 4; i++) sample_reads(out, fields[i]);
    FAIL_IF(values[3].len == 0, ERR_INVALID, "field \"%s\" is empty, nothing to learn", format->output_field);
    FAIL_IF(is_text && history && history->type == JSON_ARRAY && history->count > 0, ERR_INVALID,
            "field \"history\" holds earlier turns, which need a chat template, not a prompt format; set chat_template: chatml, or a "
            "file's path");
    return is_text ? instruction_text(arena, options, values, out) : instruction_messages(arena, format, row, tmpl, values, out);
}

/* A field that is a list of whole numbers, or JSON text of one. ERR_INVALID: the field is missing, or is something else. */
static Status list_of(Arena *arena, const JsonValue *row, const char *name, const JsonValue **out)
{
    const JsonValue *list = parsed_field(arena, row, name);
    FAIL_IF(!list || list->type != JSON_ARRAY, ERR_INVALID, "field \"%s\" is %s; expected a list of token ids", name,
            list ? json_type_name(list->type) : "missing");
    for (uint32_t i = 0; i < list->count; i++)
        FAIL_IF(list->items[i].type != JSON_INT, ERR_INVALID, "field \"%s\": item %u is %s; expected a token id", name, i,
                json_type_name(list->items[i].type));
    *out = list;
    return OK;
}

/* Applies a mask of the row, 0 where a token isn't trained: out->labels become LABEL_IGNORE there. No mask, or an empty one: no change. */
static Status take_mask(Arena *arena, const JsonValue *row, const char *name, Sample *out)
{
    const JsonValue *mask = parsed_field(arena, row, name), *labels = out->labels ? out->labels : out->ids;
    if (says_nothing(mask)) return OK;
    sample_reads(out, name);
    FAIL_IF(mask->type != JSON_ARRAY || mask->count != labels->count, ERR_INVALID,
            "field \"%s\": expected a list of %u numbers, one for each id: 1 where it is trained, else 0", name, labels->count);
    JsonValue *masked = arena_new(arena, JsonValue);
    *masked = *labels;
    masked->items = arena_array(arena, JsonValue, mask->count);
    for (uint32_t i = 0; i < mask->count; i++) {
        const JsonValue *at = &mask->items[i];
        FAIL_IF(at->type != JSON_INT || at->integer < 0 || at->integer > 1, ERR_INVALID,
                "field \"%s\": item %u is no 1, for a token that is trained, nor 0", name, i);
        masked->items[i] = at->integer ? labels->items[i] : (JsonValue){.type = JSON_INT, .integer = LABEL_IGNORE};
    }
    out->labels = masked;
    return OK;
}

Status format_ids(Arena *arena, const JsonValue *row, const char *name, Sample *out)
{
    /* the first two are TRL's names, the last one is the field that `surogate inspect --json` writes */
    static const char *const masks[] = {"completion_mask", "assistant_masks", "mask"};
    static const char        labels[] = "labels", prompt[] = "prompt_tokens";
    const JsonValue         *num = parsed_field(arena, row, prompt);
    sample_reads(out, name);
    TRY(list_of(arena, row, name, &out->ids));
    FAIL_IF(!out->ids->count, ERR_INVALID, "field \"%s\" is empty, nothing to learn", name);
    if (!says_nothing(parsed_field(arena, row, labels))) {
        sample_reads(out, labels);
        TRY(list_of(arena, row, labels, &out->labels));
        FAIL_IF(out->labels->count != out->ids->count, ERR_INVALID, "field \"labels\" has %u items, \"%s\" %u; expected as many",
                out->labels->count, name, out->ids->count);
    }
    for (size_t i = 0; i < sizeof masks / sizeof masks[0]; i++) TRY(take_mask(arena, row, masks[i], out));
    if (says_nothing(num)) return OK;
    sample_reads(out, prompt);
    FAIL_IF(num->type != JSON_INT || num->integer < 0 || num->integer > out->ids->count, ERR_INVALID,
            "field \"prompt_tokens\": expected how many of the %u ids are the prompt's", out->ids->count);
    out->prompt_ids = num->integer;
    return OK;
}

static Status format_object(Arena *arena, const DatasetOptions *options, const RowFormat *format, const JsonValue *row,
                            const TemplateTraits *tmpl, Sample *out)
{
    if (format->type == DATASET_TEXT) {
        sample_reads(out, format->text_field);
        return text_of(arena, row, format->text_field, true, &out->text);
    }
    if (format->type == DATASET_TOKENS) return format_ids(arena, row, format->ids_field, out);
    if (format->type == DATASET_INSTRUCTION) return format_instruction(arena, options, format, row, tmpl, out);
    FAIL_IF(!tmpl, ERR_NOT_FOUND, /* the error is the run's, not this row's */
            "conversations need a chat template, the model folder has none; set chat_template: chatml, or a file's path");
    SystemPrompt system;
    TRY(system_of(arena, options, format, row, &system));
    return format_messages(arena, options, format, row, tmpl, system, out);
}

Status format_row(Arena *arena, const DatasetOptions *options, const RowFormat *format, const JsonValue *row, const TemplateTraits *tmpl,
                  Sample *out)
{
    JsonMember *member = row->type == JSON_ARRAY ? arena_new(arena, JsonMember) : NULL;
    JsonValue   object;
    *out = (Sample){0};
    TRY(as_object(row, format->type == DATASET_CONVERSATION, format->messages_field, member, &object));
    TRY(format_object(arena, options, format, &object, tmpl, out));
    for (int i = 0; i < options->num_inputs; i++) sample_reads(out, options->inputs[i].column);
    note_unused(format->unused, NULL, &object, out->fields, out->num_fields);
    return OK;
}
