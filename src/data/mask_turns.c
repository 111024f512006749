/* Turns by marks, by a shortcut, or by prefixes.
 *
 * Prefixes: the rendering of messages 0..i-1 with the generation prompt must be how the whole rendering starts: there turn
 * i begins. It ends where the rendering of messages 0..i ends, if the whole starts so too; templates that rewrite earlier
 * turns (Qwen3 drops their thinking) fail that, and then the turn ends at its first EOS.
 * Shortcut, one rendering instead of two a turn: when what opens a turn (the generation prompt) stands in the text exactly
 * once for each assistant message, with that message's content right behind it. */
#include "data/mask_turns.h"

#include <string.h>

/* arena: NULL, so that many renders of one row don't add up, or the row's. */
static Status render_in(const MaskRules *rules, Arena *arena, const Sample *sample, uint32_t count, bool add_prompt, TemplateOutput *out)
{
    JsonValue     messages = *sample->messages;
    TemplateInput input = { .messages = &messages, .tools = sample->tools, .add_generation_prompt = add_prompt, .arena = arena };
    messages.count = count;
    return template_render(rules->tmpl, &input, out);
}

static Status render(const MaskRules *rules, const Sample *sample, uint32_t count, bool add_prompt, TemplateOutput *out)
{
    return render_in(rules, NULL, sample, count, add_prompt, out);
}

void turns_probe(MaskRules *rules)
{
    JsonMember     members[2] = { { { "role", 4 }, { .type = JSON_STRING, .string = { "user", 4 } } },
                                  { { "content", 7 }, { .type = JSON_STRING, .string = { "a", 1 } } } };
    JsonValue      message = { .type = JSON_OBJECT, .count = 2, .members = members };
    JsonValue      messages = { .type = JSON_ARRAY, .count = 1, .items = &message };
    Sample         sample = { .messages = &messages };
    TemplateOutput plain = { 0 }, prompted = { 0 };
    Status         status = render(rules, &sample, 1, false, &plain);
    if (status == OK) status = render(rules, &sample, 1, true, &prompted);
    bool is_prefix = status == OK && plain.text.len < prompted.text.len && plain.text.len > 0 &&
                     memcmp(plain.text.data, prompted.text.data, plain.text.len) == 0;
    if (is_prefix) strbuf_append(&rules->opening, prompted.text.data + plain.text.len, prompted.text.len - plain.text.len);
    status_clear(); /* a template that can't render this has no shortcut */
    template_output_deinit(&plain);
    template_output_deinit(&prompted);
}

static bool is_assistant(const JsonValue *message)
{
    const char *role;
    return json_get_str(message, "role", &role) && strcmp(role, "assistant") == 0;
}

static uint32_t count_assistants(const Sample *sample)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < sample->messages->count; i++) count += is_assistant(&sample->messages->items[i]);
    return count;
}

/* By flag, else by rule. */
static bool is_trained(const MaskRules *rules, const Sample *sample, uint32_t message)
{
    if (sample->train && sample->train[message] >= 0) return sample->train[message];
    if (!is_assistant(&sample->messages->items[message])) return false;
    if (rules->train_on != TRAIN_ON_LAST_TURN) return true;
    for (uint32_t i = message + 1; i < sample->messages->count; i++)
        if (is_assistant(&sample->messages->items[i])) return false;
    return true;
}

static bool trains_only_assistants(const MaskRules *rules, const Sample *sample)
{
    for (uint32_t i = 0; i < sample->messages->count; i++)
        if (is_trained(rules, sample, i) && !is_assistant(&sample->messages->items[i])) return false;
    return true;
}

static void add_span(TurnList *turns, size_t begin, size_t end, bool ends_at_stop)
{
    turns->spans[turns->count++] = (TurnSpan){ .begin_byte = begin, .end_byte = end, .ends_at_stop = ends_at_stop };
}

/* ---- marks ---- */

static Status turns_by_marks(const MaskRules *rules, const Sample *sample, const TemplateOutput *whole, TurnList *turns)
{
    bool has_one_each = whole->num_spans == count_assistants(sample);
    bool is_simple = rules->train_on == TRAIN_ON_ASSISTANT;
    for (uint32_t i = 0; i < sample->messages->count; i++) is_simple &= !sample->train || sample->train[i] < 0;
    FAIL_IF(!has_one_each && !is_simple, ERR_INVALID,
            "the template marks %zu generations for %u assistant messages, so that single turns can't be chosen",
            whole->num_spans, count_assistants(sample));
    uint32_t message = 0;
    for (size_t k = 0; k < whole->num_spans; k++, message++) {
        while (has_one_each && !is_assistant(&sample->messages->items[message])) message++;
        if (is_simple || is_trained(rules, sample, message)) add_span(turns, whole->spans[k].begin, whole->spans[k].end, false);
    }
    return OK;
}

/* ---- shortcut ---- */

static Str trimmed(Str text)
{
    while (text.len > 0 && strchr(" \t\r\n", text.data[0]) && text.data[0]) {
        text.data++;
        text.len--;
    }
    while (text.len > 0 && strchr(" \t\r\n", text.data[text.len - 1]) && text.data[text.len - 1]) text.len--;
    return text;
}

static bool stands_at(const char *at, const char *end, Str text)
{
    return (size_t)(end - at) >= text.len && memcmp(at, text.data, text.len) == 0;
}

/* Finds the turns with one look over the text; false when anything is unlike the plain case. */
static bool turns_by_opening(const MaskRules *rules, const Sample *sample, const StrBuf *text, TurnList *turns)
{
    Str         opening = { rules->opening.data, rules->opening.len };
    const char *at = text->data, *end = text->data + text->len;
    if (opening.len == 0 || !trains_only_assistants(rules, sample)) return false;
    for (uint32_t i = 0; i < sample->messages->count; i++) {
        const JsonValue *message = &sample->messages->items[i], *content = json_get(message, "content");
        if (!is_assistant(message)) continue;
        if (!content || content->type != JSON_STRING || json_get(message, "tool_calls")) return false;
        const char *open = at < end ? memmem(at, (size_t)(end - at), opening.data, opening.len) : NULL;
        if (!open) return false;
        const char *begin = open + opening.len;
        Str         body = content->string; /* as it is, or as templates that trim leave it */
        if (!stands_at(begin, end, body)) body = trimmed(body);
        if (body.len == 0 || !stands_at(begin, end, body)) return false;
        at = begin + body.len;
        /* an opening that starts inside a content would have been taken for a turn by the prefixes */
        size_t look = (size_t)(end - begin) < body.len + opening.len - 1 ? (size_t)(end - begin) : body.len + opening.len - 1;
        if (memmem(begin, look, opening.data, opening.len)) return false;
        if (is_trained(rules, sample, i)) add_span(turns, (size_t)(begin - text->data), (size_t)(at - text->data), false);
    }
    if (at < end && memmem(at, (size_t)(end - at), opening.data, opening.len)) return false; /* one more than there are turns */
    /* each turn must be followed by its stop token: it is what the prefixes would give */
    for (uint32_t k = 0; k < turns->count; k++) {
        TurnSpan   *span = &turns->spans[k];
        const char *stop = tokenizer_id_to_token(rules->tokenizer, tokenizer_eos_id(rules->tokenizer));
        size_t      len = stop ? strlen(stop) : 0;
        if (len == 0 || text->len - span->end_byte < len || memcmp(text->data + span->end_byte, stop, len) != 0) return false;
        span->end_byte += len;
    }
    return true;
}

/* ---- prefixes ---- */

static bool starts_with(const StrBuf *text, const StrBuf *prefix)
{
    return prefix->len <= text->len && (prefix->len == 0 || memcmp(text->data, prefix->data, prefix->len) == 0);
}

static Status turn_by_prefixes(const MaskRules *rules, const Sample *sample, uint32_t i, const StrBuf *text, TurnList *turns)
{
    TemplateOutput before = { 0 }, with = { 0 };
    bool           opens = is_assistant(&sample->messages->items[i]);
    if (i > 0 || !opens) { /* what nothing was asked for can't be trained: begin stays 0 only for a first message */
        Status status = i == 0 ? OK : render(rules, sample, i, opens, &before);
        if (status != OK) {
            template_output_deinit(&before);
            return status_prefix(status, "rendering what stands before message %u", i + 1);
        }
    } else {
        return OK;
    }
    bool   begin_fits = starts_with(text, &before.text);
    Status status = render(rules, sample, i + 1, false, &with);
    bool   end_fits = status == OK && starts_with(text, &with.text) && with.text.len >= before.text.len;
    size_t begin = before.text.len, end = with.text.len;
    template_output_deinit(&before);
    template_output_deinit(&with);
    status_clear();
    FAIL_IF(!begin_fits, ERR_INVALID,
            "the template renders what stands before message %u differently once it is there, so that its tokens can't be "
            "told apart; use train_on: last_turn, or a template with {%% generation %%}", i + 1);
    bool has_eos = tokenizer_eos_id(rules->tokenizer) >= 0;
    FAIL_IF(!end_fits && !(opens && has_eos), ERR_INVALID,
            "the template renders message %u differently once more follows; use a template with {%% generation %%}", i + 1);
    add_span(turns, begin, end_fits ? end : text->len, !end_fits);
    return OK;
}

static Status turns_by_prefixes(const MaskRules *rules, const Sample *sample, const StrBuf *text, TurnList *turns)
{
    turns->count = 0;
    for (uint32_t i = 0; i < sample->messages->count; i++)
        if (is_trained(rules, sample, i)) TRY(turn_by_prefixes(rules, sample, i, text, turns));
    for (uint32_t k = 0; k + 1 < turns->count; k++) /* a turn that ends at its stop token ends before the next one */
        if (turns->spans[k].ends_at_stop) turns->spans[k].end_byte = turns->spans[k + 1].begin_byte;
    return OK;
}

Status turns_find_stop(const MaskRules *rules, const TokenIds *ids, TurnSpan *span)
{
    int32_t eos = tokenizer_eos_id(rules->tokenizer);
    for (size_t t = span->first; t < span->end; t++)
        if (ids->data[t] == eos) {
            span->end = t + 1;
            return OK;
        }
    FAIL(ERR_INVALID, "an assistant's turn has no stop token (%s) before the next one; use a template with {%% generation %%}",
         tokenizer_id_to_token(rules->tokenizer, eos));
}

Status turns_render(const MaskRules *rules, Arena *arena, const Sample *sample, StrBuf *text, TurnList *out)
{
    TemplateOutput whole = { 0 };
    Status         status = render_in(rules, arena, sample, sample->messages->count, false, &whole);
    StrBuf         before = *text; /* the output is taken over as it is */
    *text = whole.text;
    whole.text = before;
    uint32_t most = sample->messages->count + (uint32_t)whole.num_spans;
    *out = (TurnList){ .spans = arena_array(arena, TurnSpan, most), .is_all = rules->train_on == TRAIN_ON_ALL };
    if (status == OK && !out->is_all) {
        if (whole.num_spans > 0)
            status = turns_by_marks(rules, sample, &whole, out);
        else if (!turns_by_opening(rules, sample, text, out))
            status = turns_by_prefixes(rules, sample, text, out);
    }
    template_output_deinit(&whole);
    return status;
}
