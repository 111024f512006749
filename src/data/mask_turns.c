/* Turns by marks, by shortcuts, by prefixes, or by what changes.
 *
 * Prefixes: the rendering of messages 0..i-1 with the generation prompt is how the whole rendering starts: there turn i begins.
 * It ends where the rendering of messages 0..i ends, if the whole starts so too.
 * What changes: templates that rewrite earlier turns (Qwen3 drops their thinking) or end the conversation with more than a turn
 * (Phi-3.5) fail that. Then message i is where the whole differs from renderings with another content in its place, and what
 * the template puts around plain answers (mask_probe.c) is looked for before and behind it.
 * Either way a turn ends behind the stop of its message, without the blanks that follow.
 *
 * Two shortcuts. One rendering instead of two a turn does, when what opens a turn (the generation prompt) stands in the text
 * exactly once for each assistant message, with that message's content right behind it. And where a prefix shows that a turn begins
 * but not where it ends, its content with a stop right behind it does.
 * Renderings come from the memo where it has them. Those share the texts of the messages, so that comparing a prefix looks
 * at the parts and not at what is in them. */
#include "data/mask_turns.h"

#include <string.h>

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
    *out = (Rendering){0};
    if (context->memo && template_memo_render(context->memo, count, add_prompt, context->arena, &out->text)) return OK;
    JsonValue     messages = *sample->messages;
    TemplateInput input = {
        .messages = &messages, .tools = sample->tools, .add_generation_prompt = add_prompt, .now_unix = context->rules->now_unix};
    messages.count = count;
    TRY(template_render(context->rules->tmpl, &input, &out->output));
    Str *part = arena_new(context->arena, Str);
    *part = (Str){strbuf_cstr(&out->output.text), out->output.text.len};
    out->text =
        (TemplateParts){.parts = part, .num_parts = 1, .len = part->len, .spans = out->output.spans, .num_spans = out->output.num_spans};
    return OK;
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

static void add_span(TurnList *turns, size_t begin, size_t end)
{
    turns->spans[turns->count++] = (TurnSpan){.begin_byte = begin, .end_byte = end};
}

/* ---- where a turn ends ---- */

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

Str turns_trim_end(Str text)
{
    while (text.len > 0 && is_blank(text.data[text.len - 1])) text.len--;
    return text;
}

static Str trimmed(Str text)
{
    while (text.len > 0 && is_blank(text.data[0])) {
        text.data++;
        text.len--;
    }
    return turns_trim_end(text);
}

bool turns_is_stop(const Tokenizer *tokenizer, int32_t id)
{
    return tokenizer_is_special(tokenizer, id) || (id >= 0 && id == tokenizer_eos_id(tokenizer));
}

static bool starts(Str text, Str prefix)
{
    return prefix.len > 0 && text.len >= prefix.len && memcmp(text.data, prefix.data, prefix.len) == 0;
}

static bool ends(Str text, Str suffix)
{
    return suffix.len > 0 && text.len >= suffix.len && memcmp(text.data + text.len - suffix.len, suffix.data, suffix.len) == 0;
}

static Str text_between(Str text, size_t begin, size_t end)
{
    return (Str){text.data + begin, end - begin};
}

/* What may end a turn: what the template ends plain answers with, EOS. */
static void stops_of(const MaskRules *rules, Str out[2])
{
    const char *eos = tokenizer_id_to_token(rules->tokenizer, tokenizer_eos_id(rules->tokenizer));
    out[0] = (Str){rules->stop.data, rules->stop.len};
    out[1] = str_of(eos ? eos : "");
}

/* The place behind the stop that begins at `at`; `at` where none does. */
static size_t behind_stop(const MaskRules *rules, Str text, size_t at)
{
    Str stops[2];
    stops_of(rules, stops);
    for (int k = 0; k < 2; k++)
        if (starts(text_between(text, at, text.len), stops[k])) return at + stops[k].len;
    return at;
}

static bool ends_with_stop(const MaskRules *rules, Str turn)
{
    Str stops[2];
    stops_of(rules, stops);
    return ends(turn, stops[0]) || ends(turn, stops[1]);
}

static Str content_of(const JsonValue *message)
{
    const JsonValue *content = json_get(message, "content");
    return content && content->type == JSON_STRING ? content->string : (Str){0};
}

/* Message i fills the text from `begin` to `end`: the place behind its stop, else behind its content. */
static size_t end_of_turn(const TurnContext *context, uint32_t i, Str text, size_t begin, size_t end)
{
    const MaskRules *rules = context->rules;
    Str              tail = {rules->tail.data, rules->tail.len}, content = content_of(&context->sample->messages->items[i]);
    Str              turn = turns_trim_end(text_between(text, begin, end));
    bool             is_last = i + 1 == context->sample->messages->count;
    if (is_last && ends(turn, tail)) turn = turns_trim_end((Str){turn.data, turn.len - tail.len});
    if (ends_with_stop(rules, turn)) return begin + turn.len;
    size_t at = begin + turn.len, blanks = content.len - turns_trim_end(content).len;
    bool   has_blanks = ends(turn, turns_trim_end(content)) &&
                      starts(text_between(text, at, end), text_between(content, content.len - blanks, content.len));
    return behind_stop(rules, text, has_blanks ? at + blanks : at); /* blanks at the end of the content are the content's */
}

/* ---- turns that teach less than they look; the shortcut lets none of them pass ---- */

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

static Status turns_by_marks(const TurnContext *context, const TemplateParts *whole, Str text, TurnList *turns)
{
    const Sample *sample = context->sample;
    bool          has_one_each = whole->num_spans == context->num_assistants;
    bool          is_simple = context->rules->train_on == TRAIN_ON_ASSISTANT;
    for (uint32_t i = 0; i < sample->messages->count; i++) is_simple &= !sample->train || sample->train[i] < 0;
    FAIL_IF(!has_one_each && !is_simple, ERR_INVALID,
            "the template marks %zu generations for %u assistant messages, so that single turns can't be chosen", whole->num_spans,
            context->num_assistants);
    uint32_t message = 0;
    for (size_t k = 0; k < whole->num_spans; k++, message++) {
        while (has_one_each && !context->is_assistant[message]) message++;
        if (!is_simple && !context->is_trained[message]) continue;
        size_t begin = whole->spans[k].begin, end = whole->spans[k].end;
        bool   is_open = !ends_with_stop(context->rules, turns_trim_end(text_between(text, begin, end)));
        add_span(turns, begin, is_open ? behind_stop(context->rules, text, end) : end);
    }
    return OK;
}

/* ---- shortcuts ---- */

static bool stands_at(const char *at, const char *end, Str text)
{
    return (size_t)(end - at) >= text.len && (text.len == 0 || memcmp(at, text.data, text.len) == 0);
}

/* An answer's content as it stands at a place of the text: as it is, or as templates that trim or leave out thinking have it.
 * NULL data: it doesn't, or there is nothing in it. */
static Str content_at(const JsonValue *message, const char *at, const char *end)
{
    Str body = content_of(message);
    if (!body.data || json_get(message, "tool_calls")) return (Str){0};
    if (!stands_at(at, end, body)) body = trimmed(body);
    if (!stands_at(at, end, body)) body = trimmed(content_behind_thinking(body));
    return trimmed(body).len > 0 && stands_at(at, end, body) ? body : (Str){0};
}

/* A turn's end, when its content stands at `begin` with a stop right behind it; else `begin`. */
static size_t plain_end(const TurnContext *context, uint32_t i, Str text, size_t begin)
{
    Str    body = content_at(&context->sample->messages->items[i], text.data + begin, text.data + text.len);
    size_t at = begin + body.len, end = behind_stop(context->rules, text, at);
    return body.data && end > at ? end : begin;
}

/* With one look over the text; false when anything is unlike the plain case. */
static bool turns_by_opening(const TurnContext *context, Str text, TurnList *turns)
{
    const MaskRules *rules = context->rules;
    const Sample    *sample = context->sample;
    Str              opening = {rules->opening.data, rules->opening.len};
    const char      *at = text.data, *end = text.data + text.len;
    if (opening.len == 0 || !trains_only_assistants(context)) return false;
    for (uint32_t i = 0; i < sample->messages->count; i++) {
        if (!context->is_assistant[i]) continue;
        const char *open = str_search((Str){at, (size_t)(end - at)}, opening);
        if (!open) return false;
        const char *begin = open + opening.len;
        Str         body = content_at(&sample->messages->items[i], begin, end);
        if (!body.data) return false;
        at = begin + body.len;
        /* an opening that starts inside a content would have been taken for a turn by the prefixes */
        size_t look = (size_t)(end - begin) < body.len + opening.len - 1 ? (size_t)(end - begin) : body.len + opening.len - 1;
        if (str_search((Str){begin, look}, opening)) return false;
        size_t stop = behind_stop(context->rules, text, (size_t)(at - text.data));
        if (context->is_trained[i] && stop == (size_t)(at - text.data)) return false;
        if (context->is_trained[i]) add_span(turns, (size_t)(begin - text.data), stop);
    }
    return !str_search((Str){at, (size_t)(end - at)}, opening); /* else one more than there are turns */
}

/* ---- what changes ---- */

typedef struct Turn {
    size_t begin, end;
    bool   begins, ends; /* known */
} Turn;

/* The whole conversation with this content in the place of message i. */
static Status render_other(const TurnContext *context, uint32_t i, const char *content, TemplateOutput *out)
{
    const Sample    *sample = context->sample;
    JsonMember       members[2] = {{{"content", 7}, {.type = JSON_STRING, .string = str_of(content)}}};
    const JsonValue *role = json_get(&sample->messages->items[i], "role");
    JsonValue        messages = *sample->messages, *items = arena_array(context->arena, JsonValue, messages.count);
    TemplateInput    input = {.messages = &messages, .tools = sample->tools, .now_unix = context->rules->now_unix};
    memcpy(items, messages.items, messages.count * sizeof *items);
    if (role) members[1] = (JsonMember){{"role", 4}, *role};
    items[i] = (JsonValue){.type = JSON_OBJECT, .count = role ? 2 : 1, .members = members};
    messages.items = items;
    return template_render(context->rules->tmpl, &input, out);
}

/* Where the text is message i's content, as rendered: what differs from two renderings with contents that have neither their
 * first nor their last letter in common. false: they can't be had, or don't tell. */
static bool find_content(const TurnContext *context, uint32_t i, Str text, size_t *out_begin, size_t *out_end)
{
    static const char *const others[] = {"Qqq", "xxX"};
    size_t                   begin = text.len, rest = text.len;
    for (int k = 0; k < 2; k++) {
        TemplateOutput out = {0};
        Status         status = render_other(context, i, others[k], &out);
        size_t         most = out.text.len < text.len ? out.text.len : text.len, alike = 0, alike_end = 0;
        while (alike < most && out.text.data[alike] == text.data[alike]) alike++;
        while (alike_end < most && out.text.data[out.text.len - 1 - alike_end] == text.data[text.len - 1 - alike_end]) alike_end++;
        template_output_deinit(&out);
        if (status != OK) {
            status_clear();
            return false;
        }
        begin = alike < begin ? alike : begin;
        rest = alike_end < rest ? alike_end : rest;
    }
    *out_begin = begin;
    *out_end = text.len - rest;
    return begin <= *out_end;
}

/* The last place of `what` in `text`, or NULL. */
static const char *find_last(Str text, Str what)
{
    const char *last = NULL;
    for (const char *at; (at = str_search(text, what)); text = text_between(text, (size_t)(at + 1 - text.data), text.len)) last = at;
    return last;
}

/* An answer's header stands right before its content, or before something that belongs to the answer: then it comes behind the
 * message before it. */
static bool find_header(const TurnContext *context, uint32_t i, Str text, size_t content, size_t *out_begin)
{
    const MaskRules *rules = context->rules;
    Str              header = {rules->header.data, rules->header.len}, open = {rules->header.data, rules->header_open};
    size_t           begin, end;
    if (!context->is_assistant[i] || !rules->has_header || (i == 0 && open.len == 0)) return false;
    *out_begin = content - (header.len - open.len);
    if (header.len == 0 || ends((Str){text.data, content}, header)) return true;
    const char *at = open.len ? find_last((Str){text.data, content}, open) : NULL;
    if (!at || (i > 0 && !find_content(context, i - 1, text, &begin, &end))) return false;
    *out_begin = (size_t)(at - text.data) + open.len;
    return i == 0 || at >= text.data + end;
}

/* Settles what prefixes left open. The turn before it ends at `from`. */
static Status turn_by_change(const TurnContext *context, uint32_t i, Str text, size_t from, Turn *turn)
{
    size_t begin, end;
    bool   is_found = find_content(context, i, text, &begin, &end) && begin >= from;
    FAIL_IF(!turn->begins && !(is_found && find_header(context, i, text, begin, &turn->begin)), ERR_INVALID,
            i == 0 ? "message %u is an answer, and the template doesn't show where it begins; use a template with {%% generation %%}, or "
                     "mark it \"train\": false"
                   : "the template renders what stands before message %u differently once it is there, so that its tokens can't be "
                     "told apart; use a template with {%% generation %%}",
            i + 1);
    if (!turn->ends) turn->end = is_found ? behind_stop(context->rules, text, end) : 0;
    FAIL_IF(turn->end < turn->begin, ERR_INVALID,
            "the template renders message %u differently once more follows; use a template with {%% generation %%}", i + 1);
    return OK;
}

/* ---- prefixes ---- */

/* Does the text start with the other? Parts that are one and the same place need no look. */
static bool starts_with(const TemplateParts *text, const TemplateParts *prefix)
{
    Str      a = {0}, b = {0};
    uint32_t i = 0, k = 0;
    if (prefix->len > text->len) return false;
    for (;;) {
        while (b.len == 0 && k < prefix->num_parts) b = prefix->parts[k++];
        if (b.len == 0) return true;
        while (a.len == 0) a = text->parts[i++]; /* not at its end: it is as long as the prefix */
        size_t len = a.len < b.len ? a.len : b.len;
        if (a.data != b.data && memcmp(a.data, b.data, len) != 0) return false;
        a = (Str){a.data + len, a.len - len};
        b = (Str){b.data + len, b.len - len};
    }
}

/* Where message i's turn begins and ends by the renderings without and with it. */
static Turn turn_by_prefixes(const TurnContext *context, uint32_t i, const TemplateParts *whole)
{
    Rendering before = {0}, with = {0};
    bool      has_before = i == 0 || render(context, i, context->is_assistant[i], &before) == OK;
    bool      has_with = render(context, i + 1, false, &with) == OK;
    Turn      turn = {.begin = before.text.len, .end = with.text.len};
    status_clear(); /* a template that can't render a part of a conversation */
    turn.begins = has_before && starts_with(whole, &before.text);
    turn.ends = has_with && turn.end >= turn.begin && starts_with(whole, &with.text);
    rendering_deinit(&before);
    rendering_deinit(&with);
    return turn;
}

/* The first message is an answer: no prefix shows where it begins, but the first opening does. */
static void look_for_greeting(const TurnContext *context, Str text, Turn *turn)
{
    Str         opening = {context->rules->opening.data, context->rules->opening.len};
    const char *open = opening.len ? str_search((Str){text.data, turn->ends ? turn->end : text.len}, opening) : NULL;
    turn->begins = open != NULL;
    if (open) turn->begin = (size_t)(open - text.data) + opening.len;
}

static Status turns_by_rendering(const TurnContext *context, const TemplateParts *whole, Str text, TurnList *turns)
{
    turns->count = 0;
    for (uint32_t i = 0; i < context->sample->messages->count; i++) {
        if (!context->is_trained[i]) continue;
        Turn   turn = turn_by_prefixes(context, i, whole);
        size_t from = turns->count ? turns->spans[turns->count - 1].end_byte : 0;
        bool   is_greeting = i == 0 && context->is_assistant[0], may_be_plain = turn.begins && !turn.ends && !is_greeting;
        size_t plain = may_be_plain && !context->rules->forbids_shortcuts ? plain_end(context, i, text, turn.begin) : turn.begin;
        if (plain > turn.begin) {
            add_span(turns, turn.begin, plain);
            continue;
        }
        if (is_greeting) look_for_greeting(context, text, &turn);
        if (!turn.begins || !turn.ends) TRY(turn_by_change(context, i, text, from, &turn));
        add_span(turns, turn.begin, end_of_turn(context, i, text, turn.begin, turn.end));
    }
    return OK;
}

static Status find_turns(TurnContext *context, const TemplateParts *whole, Str text, TurnList *turns)
{
    bool has_shortcuts = !context->rules->forbids_shortcuts;
    settle_messages(context);
    if (whole->num_spans > 0) {
        TRY(turns_by_marks(context, whole, text, turns));
    } else {
        if (has_shortcuts && turns_by_opening(context, text, turns)) return OK; /* in it are none that teach less */
        TRY(turns_by_rendering(context, whole, text, turns));
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
    *out = (TurnList){.spans = arena_array(context->arena, TurnSpan, most), .is_all = context->rules->train_on == TRAIN_ON_ALL};
    Str    all = {text->data + begin, whole.text.len};
    Status status = content_look(sample, &context->rules->traits, &whole.text, all, &out->num_unprinted);
    if (status == OK && !out->is_all) status = find_turns(context, &whole.text, all, out); /* else no need to know */
    rendering_deinit(&whole);
    return status;
}
