/* Turns by marks, by shortcuts, or by prefixes.
 *
 * Prefixes: the rendering of messages 0..i-1 with the generation prompt must be how the whole rendering starts: there turn
 * i begins. It ends where the rendering of messages 0..i ends, if the whole starts so too; templates that rewrite earlier
 * turns (Qwen3 drops their thinking) fail that, and then the turn ends at its first EOS.
 * Two shortcuts. Renderings that the memo has need no comparison where it knows how they stand to each other. And one rendering
 * instead of two a turn does, when what opens a turn (the generation prompt) stands in the text exactly once for each
 * assistant message, with that message's content right behind it.
 * Renderings come from the memo where it has them. Those share the texts of the messages, so that comparing a prefix looks
 * at the parts and not at what is in them. */
#include "data/mask_turns.h"

#include <assert.h>
#include <string.h>
#include <wchar.h>

/* A rendering; parts are in the row's arena or in `output`. */
typedef struct Rendering {
    TemplateParts  text;
    TemplateOutput output; /* of template_render */
} Rendering;

static void rendering_deinit(Rendering *rendering)
{
    template_output_deinit(&rendering->output);
}

/* What template_render puts together on the way is freed at once, so that many renders of one row don't add up. */
static Status render(const TurnContext *context, uint32_t count, bool add_prompt, Rendering *out)
{
    const Sample *sample = context->sample;
    *out = (Rendering){ 0 };
    if (context->memo && template_memo_render(context->memo, count, add_prompt, context->arena, &out->text)) return OK;
    JsonValue     messages = *sample->messages;
    TemplateInput input = { .messages = &messages, .tools = sample->tools, .add_generation_prompt = add_prompt,
                            .now_unix = context->rules->now_unix };
    messages.count = count;
    TRY(template_render(context->rules->tmpl, &input, &out->output));
    Str *part = arena_new(context->arena, Str);
    *part = (Str){ strbuf_cstr(&out->output.text), out->output.text.len };
    out->text = (TemplateParts){ .parts = part, .num_parts = 1, .len = part->len, .spans = out->output.spans,
                                 .num_spans = out->output.num_spans };
    return OK;
}

void turns_probe(MaskRules *rules)
{
    JsonMember     members[2] = { { { "role", 4 }, { .type = JSON_STRING, .string = { "user", 4 } } },
                                  { { "content", 7 }, { .type = JSON_STRING, .string = { "a", 1 } } } };
    JsonValue      message = { .type = JSON_OBJECT, .count = 2, .members = members };
    JsonValue      messages = { .type = JSON_ARRAY, .count = 1, .items = &message };
    TemplateInput  input = { .messages = &messages, .now_unix = rules->now_unix };
    TemplateOutput plain = { 0 }, prompted = { 0 };
    Status         status = template_render(rules->tmpl, &input, &plain);
    input.add_generation_prompt = true;
    if (status == OK) status = template_render(rules->tmpl, &input, &prompted);
    bool is_prefix = status == OK && plain.text.len < prompted.text.len && plain.text.len > 0 &&
                     memcmp(plain.text.data, prompted.text.data, plain.text.len) == 0;
    if (is_prefix) strbuf_append(&rules->opening, prompted.text.data + plain.text.len, prompted.text.len - plain.text.len);
    status_clear(); /* a template that can't render this has no shortcut */
    template_output_deinit(&plain);
    template_output_deinit(&prompted);
}

/* Who speaks, and which messages are trained: by flag, else by rule. */
static void settle_messages(TurnContext *context)
{
    const Sample *sample = context->sample;
    bool          is_last = true;
    context->is_assistant = arena_array(context->arena, bool, sample->messages->count);
    context->is_trained = arena_array(context->arena, bool, sample->messages->count);
    for (uint32_t i = sample->messages->count; i-- > 0;) {
        const JsonValue *role = json_get(&sample->messages->items[i], "role");
        bool             is_assistant = role && role->type == JSON_STRING && str_equal(role->string, "assistant");
        bool             by_rule = is_assistant && (context->rules->train_on != TRAIN_ON_LAST_TURN || is_last);
        context->is_assistant[i] = is_assistant;
        context->is_trained[i] = sample->train && sample->train[i] >= 0 ? sample->train[i] : by_rule;
        context->num_assistants += is_assistant;
        is_last &= !is_assistant;
    }
}

static bool trains_only_assistants(const TurnContext *context)
{
    for (uint32_t i = 0; i < context->sample->messages->count; i++)
        if (context->is_trained[i] && !context->is_assistant[i]) return false;
    return true;
}

static void add_span(TurnList *turns, size_t begin, size_t end, bool ends_at_stop)
{
    turns->spans[turns->count++] = (TurnSpan){ .begin_byte = begin, .end_byte = end, .ends_at_stop = ends_at_stop };
}

/* A turn that ends at its stop token ends before the next one. */
static void bound_turns(TurnList *turns)
{
    for (uint32_t k = 0; k + 1 < turns->count; k++)
        if (turns->spans[k].ends_at_stop) turns->spans[k].end_byte = turns->spans[k + 1].begin_byte;
}

/* ---- turns that teach less than they look; the shortcut lets none of them pass ---- */

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static Str trimmed(Str text)
{
    while (text.len > 0 && is_blank(text.data[0])) {
        text.data++;
        text.len--;
    }
    while (text.len > 0 && is_blank(text.data[text.len - 1])) text.len--;
    return text;
}

static bool is_nothing(const JsonValue *message, const char *key)
{
    const JsonValue *value = json_get(message, key);
    if (!value || value->type == JSON_NULL) return true;
    if (value->type == JSON_ARRAY) return value->count == 0;
    return value->type == JSON_STRING && trimmed(value->string).len == 0;
}

/* A template that prints calls prints their names. */
static bool prints_calls(const JsonValue *message, const char *text, size_t len)
{
    const JsonValue *calls = json_get(message, "tool_calls");
    for (uint32_t i = 0; i < calls->count; i++) {
        const JsonValue *function = json_get(&calls->items[i], "function"), *name = function ? json_get(function, "name") : NULL;
        if (!name || name->type != JSON_STRING || name->string.len == 0) continue;
        if (!memmem(text, len, name->string.data, name->string.len)) return false;
    }
    return true;
}

static void look_at_turn(const MaskRules *rules, TurnSpan *span, const JsonValue *message, Str text)
{
    const char *reasoning = rules->traits.reasoning_key;
    if (!is_nothing(message, "tool_calls"))
        span->lacks_calls = !prints_calls(message, text.data + span->begin_byte, span->end_byte - span->begin_byte);
    else
        span->is_empty = is_nothing(message, "content") && (!reasoning || is_nothing(message, reasoning));
}

/* Where every trained message has its turn. */
static void look_at_turns(const TurnContext *context, Str text, TurnList *turns)
{
    const JsonValue *messages = context->sample->messages;
    uint32_t         count = 0;
    for (uint32_t i = 0; i < messages->count; i++) count += context->is_trained[i];
    if (count != turns->count) return;
    for (uint32_t i = 0, k = 0; i < messages->count; i++) {
        if (context->is_trained[i] && context->is_assistant[i]) look_at_turn(context->rules, &turns->spans[k], &messages->items[i], text);
        k += context->is_trained[i];
    }
}

/* ---- marks ---- */

static Status turns_by_marks(const TurnContext *context, const TemplateParts *whole, TurnList *turns)
{
    const Sample *sample = context->sample;
    bool          has_one_each = whole->num_spans == context->num_assistants;
    bool          is_simple = context->rules->train_on == TRAIN_ON_ASSISTANT;
    for (uint32_t i = 0; i < sample->messages->count; i++) is_simple &= !sample->train || sample->train[i] < 0;
    FAIL_IF(!has_one_each && !is_simple, ERR_INVALID,
            "the template marks %zu generations for %u assistant messages, so that single turns can't be chosen",
            whole->num_spans, context->num_assistants);
    uint32_t message = 0;
    for (size_t k = 0; k < whole->num_spans; k++, message++) {
        while (has_one_each && !context->is_assistant[message]) message++;
        if (is_simple || context->is_trained[message]) add_span(turns, whole->spans[k].begin, whole->spans[k].end, false);
    }
    return OK;
}

/* ---- shortcuts ---- */

static bool stands_at(const char *at, const char *end, Str text)
{
    return (size_t)(end - at) >= text.len && memcmp(at, text.data, text.len) == 0;
}

/* An answer's content as it stands at a place of the text: as it is, or as templates that trim leave it. NULL data: it doesn't,
 * or there is nothing in it. */
static Str content_at(const JsonValue *message, const char *at, const char *end)
{
    const JsonValue *content = json_get(message, "content");
    if (!content || content->type != JSON_STRING || json_get(message, "tool_calls")) return (Str){ 0 };
    Str body = content->string;
    if (!stands_at(at, end, body)) body = trimmed(body);
    return trimmed(body).len > 0 && stands_at(at, end, body) ? body : (Str){ 0 };
}

/* Would turns_by_opening fail on a text whose assistants' turns all begin where `turns` says? */
static bool lacks_content(const TurnContext *context, Str text, const TurnList *turns)
{
    const Sample *sample = context->sample;
    Str           opening = { context->rules->opening.data, context->rules->opening.len };
    const char   *end = text.data + text.len;
    bool          lacks = opening.len == 0;
    uint32_t      k = 0;
    for (uint32_t i = 0; i < sample->messages->count; i++) {
        if (!context->is_assistant[i]) continue;
        if (!context->is_trained[i]) return false;
        const char *begin = text.data + turns->spans[k++].begin_byte;
        if ((size_t)(begin - text.data) < opening.len || !stands_at(begin - opening.len, end, opening)) return false;
        lacks |= !content_at(&sample->messages->items[i], begin, end).data;
    }
    return lacks && k == turns->count;
}

/* By prefixes, of which the memo knows how they stand to the whole; false when one isn't known or doesn't fit, or when the
 * other shortcut, which knows best where a turn ends, may find the turns. */
static bool turns_by_memo(const TurnContext *context, const TemplateParts *whole, Str text, TurnList *turns)
{
    const Sample *sample = context->sample;
    bool          has_eos = tokenizer_eos_id(context->rules->tokenizer) >= 0;
    if (!whole->path) return false;
    for (uint32_t i = 0; i < sample->messages->count; i++) {
        if (!context->is_trained[i]) continue;
        bool   opens = context->is_assistant[i], begins = true, ends;
        size_t begin = 0, end;
        if (i == 0 && opens) return false;
        if (i > 0 && !template_memo_prefix(context->memo, whole, i, opens, &begins, &begin)) return false;
        if (!begins || !template_memo_prefix(context->memo, whole, i + 1, false, &ends, &end)) return false;
        ends &= end >= begin;
        if (!ends && !(opens && has_eos)) return false;
        add_span(turns, begin, ends ? end : whole->len, !ends);
    }
    bound_turns(turns);
    return lacks_content(context, text, turns);
}

/* With one look over the text; false when anything is unlike the plain case. */
static bool turns_by_opening(const TurnContext *context, Str text, TurnList *turns)
{
    const MaskRules *rules = context->rules;
    const Sample    *sample = context->sample;
    Str              opening = { rules->opening.data, rules->opening.len };
    const char      *at = text.data, *end = text.data + text.len;
    if (opening.len == 0 || !trains_only_assistants(context)) return false;
    for (uint32_t i = 0; i < sample->messages->count; i++) {
        if (!context->is_assistant[i]) continue;
        const char *open = str_search((Str){ at, (size_t)(end - at) }, opening);
        if (!open) return false;
        const char *begin = open + opening.len;
        Str         body = content_at(&sample->messages->items[i], begin, end);
        if (!body.data) return false;
        at = begin + body.len;
        /* an opening that starts inside a content would have been taken for a turn by the prefixes */
        size_t look = (size_t)(end - begin) < body.len + opening.len - 1 ? (size_t)(end - begin) : body.len + opening.len - 1;
        if (str_search((Str){ begin, look }, opening)) return false;
        if (context->is_trained[i]) add_span(turns, (size_t)(begin - text.data), (size_t)(at - text.data), false);
    }
    if (str_search((Str){ at, (size_t)(end - at) }, opening)) return false; /* one more than there are turns */
    /* each turn must be followed by its stop token: it is what the prefixes would give */
    for (uint32_t k = 0; k < turns->count; k++) {
        TurnSpan   *span = &turns->spans[k];
        const char *stop = tokenizer_id_to_token(rules->tokenizer, tokenizer_eos_id(rules->tokenizer));
        size_t      len = stop ? strlen(stop) : 0;
        if (len == 0 || text.len - span->end_byte < len || memcmp(text.data + span->end_byte, stop, len) != 0) return false;
        span->end_byte += len;
    }
    return true;
}

/* ---- prefixes ---- */

/* Does the text start with the other? Parts that are one and the same place need no look. */
static bool starts_with(const TemplateParts *text, const TemplateParts *prefix)
{
    Str      a = { 0 }, b = { 0 };
    uint32_t i = 0, k = 0;
    if (prefix->len > text->len) return false;
    for (;;) {
        while (b.len == 0 && k < prefix->num_parts) b = prefix->parts[k++];
        if (b.len == 0) return true;
        while (a.len == 0) a = text->parts[i++]; /* not at its end: it is as long as the prefix */
        size_t len = a.len < b.len ? a.len : b.len;
        if (a.data != b.data && memcmp(a.data, b.data, len) != 0) return false;
        a = (Str){ a.data + len, a.len - len };
        b = (Str){ b.data + len, b.len - len };
    }
}

static Status add_turn(const TurnContext *context, uint32_t i, const TemplateParts *whole, const TemplateParts *before,
                       const TemplateParts *with, TurnList *turns)
{
    bool opens = context->is_assistant[i];
    bool end_fits = with && starts_with(whole, with) && with->len >= before->len;
    FAIL_IF(!starts_with(whole, before), ERR_INVALID,
            "the template renders what stands before message %u differently once it is there, so that its tokens can't be "
            "told apart; use train_on: last_turn, or a template with {%% generation %%}", i + 1);
    bool has_eos = tokenizer_eos_id(context->rules->tokenizer) >= 0;
    FAIL_IF(!end_fits && !(opens && has_eos), ERR_INVALID,
            "the template renders message %u differently once more follows; use a template with {%% generation %%}", i + 1);
    add_span(turns, before->len, end_fits ? with->len : whole->len, !end_fits);
    return OK;
}

static Status turn_by_prefixes(const TurnContext *context, uint32_t i, const TemplateParts *whole, TurnList *turns)
{
    Rendering before = { 0 }, with = { 0 };
    bool      opens = context->is_assistant[i];
    Status status = i == 0 ? OK : render(context, i, opens, &before);
    if (status != OK) return status_prefix(status, "rendering what stands before message %u", i + 1);
    bool has_with = render(context, i + 1, false, &with) == OK;
    status_clear();
    status = add_turn(context, i, whole, &before.text, has_with ? &with.text : NULL, turns);
    rendering_deinit(&before);
    rendering_deinit(&with);
    return status;
}

/* The first message is an answer: no prefix shows where it begins, but the first opening does. */
static Status greeting_turn(const TurnContext *context, const TemplateParts *whole, Str text, TurnList *turns)
{
    Str       opening = { context->rules->opening.data, context->rules->opening.len };
    Rendering with = { 0 };
    bool      end_fits = render(context, 1, false, &with) == OK && starts_with(whole, &with.text);
    size_t    end = end_fits ? with.text.len : text.len;
    rendering_deinit(&with);
    status_clear();
    const char *open = opening.len ? str_search((Str){ text.data, end }, opening) : NULL;
    FAIL_IF(!open || (!end_fits && tokenizer_eos_id(context->rules->tokenizer) < 0), ERR_INVALID,
            "message 1 is an answer, and the template doesn't show where it begins; use a template with {%% generation %%}, or mark it \"train\": false");
    add_span(turns, (size_t)(open - text.data) + opening.len, end, !end_fits);
    return OK;
}

static Status turns_by_prefixes(const TurnContext *context, const TemplateParts *whole, Str text, TurnList *turns)
{
    turns->count = 0;
    for (uint32_t i = 0; i < context->sample->messages->count; i++)
        if (context->is_trained[i]) {
            bool is_greeting = i == 0 && context->is_assistant[0];
            TRY(is_greeting ? greeting_turn(context, whole, text, turns) : turn_by_prefixes(context, i, whole, turns));
        }
    bound_turns(turns);
    return OK;
}

Status turns_find_stop(const MaskRules *rules, const TokenIds *ids, TurnSpan *span)
{
    int32_t eos = tokenizer_eos_id(rules->tokenizer);
    static_assert(sizeof(wchar_t) == sizeof(int32_t), "wmemchr searches tokens");
    const int32_t *stop = span->first < span->end ? wmemchr(ids->data + span->first, eos, span->end - span->first) : NULL;
    if (stop) {
        span->end = (size_t)(stop - ids->data) + 1;
        return OK;
    }
    FAIL(ERR_INVALID, "an assistant's turn has no stop token (%s) before the next one; use a template with {%% generation %%}",
         tokenizer_id_to_token(rules->tokenizer, eos));
}

static Status find_turns(TurnContext *context, const TemplateParts *whole, Str text, TurnList *turns)
{
    bool has_shortcuts = !context->rules->forbids_shortcuts;
    settle_messages(context);
    if (whole->num_spans > 0) {
        TRY(turns_by_marks(context, whole, turns));
    } else if (!has_shortcuts || !turns_by_memo(context, whole, text, turns)) {
        turns->count = 0;
        if (has_shortcuts && turns_by_opening(context, text, turns)) return OK; /* in it are none that teach less */
        TRY(turns_by_prefixes(context, whole, text, turns));
    }
    look_at_turns(context, text, turns);
    return OK;
}

Status turns_render(TurnContext *context, StrBuf *text, TurnList *out)
{
    const Sample *sample = context->sample;
    Rendering     whole;
    TRY(render(context, sample->messages->count, false, &whole));
    size_t begin = text->len;
    strbuf_reserve(text, whole.text.len);
    for (uint32_t i = 0; i < whole.text.num_parts; i++) strbuf_append(text, whole.text.parts[i].data, whole.text.parts[i].len);
    uint32_t most = sample->messages->count + (uint32_t)whole.text.num_spans;
    *out = (TurnList){ .spans = arena_array(context->arena, TurnSpan, most), .is_all = context->rules->train_on == TRAIN_ON_ALL };
    Str    all = { text->data + begin, whole.text.len };
    Status status = content_look(sample, &context->rules->traits, &whole.text, all, &out->num_unprinted);
    if (status == OK && !out->is_all) status = find_turns(context, &whole.text, all, out); /* else no need to know */
    rendering_deinit(&whole);
    return status;
}
