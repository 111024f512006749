/* Input: a template, NUL, the variables as JSON. Parses and renders them; errors are fine, crashes and leaks are not. If the variables have
 * messages, they are also rendered with the memo, once as they are and once with their texts reversed; the results must agree. */
#include "text/template/memo.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void turn_texts_round(JsonValue *messages)
{
    for (uint32_t i = 0; i < messages->count; i++)
        for (uint32_t k = 0; messages->items[i].type == JSON_OBJECT && k < messages->items[i].count; k++) {
            JsonMember *member = &messages->items[i].members[k];
            if (member->value.type != JSON_STRING || str_equal(member->key, "role")) continue;
            char *text = (char *)member->value.string.data;
            for (size_t a = 0, b = member->value.string.len; a + 1 < b; a++, b--) {
                char c = text[a];
                if ((unsigned char)c > 127 || (unsigned char)text[b - 1] > 127) break; /* characters of several bytes stay whole */
                text[a] = text[b - 1];
                text[b - 1] = c;
            }
        }
}

static void check_memo(const Template *tmpl, TemplateMemo *memo, const JsonValue *messages, Arena *arena)
{
    TemplateInput  input = {.messages = messages, .now_unix = 1700000000};
    TemplateOutput whole;
    TemplateParts  parts;
    size_t         at = 0;
    if (!template_memo_start(memo, messages) || !template_memo_render(memo, messages->count, false, arena, &parts)) return;
    CHECK(template_render(tmpl, &input, &whole) == OK);
    CHECK(parts.len == whole.text.len && parts.num_spans == whole.num_spans);
    for (uint32_t i = 0; i < parts.num_parts; at += parts.parts[i++].len)
        CHECK(parts.parts[i].len == 0 || memcmp(whole.text.data + at, parts.parts[i].data, parts.parts[i].len) == 0);
    for (size_t i = 0; i < parts.num_spans; i++)
        CHECK(parts.spans[i].begin == whole.spans[i].begin && parts.spans[i].end == whole.spans[i].end);
    template_output_deinit(&whole);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *nul = size ? memchr(data, 0, size) : NULL;
    size_t         len = nul ? (size_t)(nul - data) : size;
    Arena          arena = {0};
    JsonValue      variables;
    Template      *tmpl;
    TemplateInput  input = {.now_unix = 1700000000, .max_steps = 5000};
    if (nul && json_parse(&arena, "json", (const char *)nul + 1, size - len - 1, &variables) == OK && variables.type == JSON_OBJECT)
        input.variables = &variables;
    if (template_parse("fuzz", (const char *)data, len, &tmpl) == OK) {
        TemplateOutput out;
        if (template_render(tmpl, &input, &out) == OK) template_output_deinit(&out);
        JsonValue *messages = input.variables ? (JsonValue *)json_get(&variables, "messages") : NULL;
        if (messages && messages->type == JSON_ARRAY && messages->count > 0) {
            TemplateMemo *memo = template_memo_create(tmpl, 1700000000);
            check_memo(tmpl, memo, messages, &arena);
            turn_texts_round(messages);
            check_memo(tmpl, memo, messages, &arena);
            template_memo_destroy(memo);
        }
        template_destroy(tmpl);
    }
    arena_deinit(&arena);
    return 0;
}
