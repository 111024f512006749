/* Turns by marks, by shortcuts, by prefixes, or by what changes.
 *
 * Prefixes: the rendering of messages 0..i-1 with the generation prompt is how the whole rendering starts: there turn i begins.
 * It ends where the rendering of messages 0..i ends, if the whole starts so too.
 * What changes: templates that rewrite earlier turns (Qwen3 drops their thinking), look ahead (Gemma 4), always print a generation
 * prompt (Command-R7B), or end the conversation with more than a turn (Phi-3.5) fail that. Then message i is where the whole differs
 * from renderings with another content in its place (mask_change.c), and what the template puts around plain answers (mask_probe.c) is
 * looked for before and behind it.
 * Either way a turn ends behind the stop of its message, without the blanks that follow. Other messages that the template prints
 * inside of a turn are left out.
 *
 * Two shortcuts. One rendering instead of two a turn does, when what opens a turn (the generation prompt) stands in the text
 * exactly once for each assistant message, with that message's content right behind it. And where a prefix shows that a turn begins
 * but not where it ends, its content with a stop right behind it does.
 * Renderings come from the memo where it has them. Those share the texts of the messages, so that comparing a prefix looks
 * at the parts and not at what is in them. */
#include "data/mask_turns.h"

#include <string.h>

void rendering_deinit(Rendering *rendering)
{
    template_output_deinit(&rendering->output);
}

/* What template_render puts together on the way is freed at once, so that many renders of one row don't add up. */
Status turns_render_first(const TurnContext *context, uint32_t count, bool add_prompt, Rendering *out)
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

bool turns_is_result(const TurnContext *context, uint32_t i)
{
    const JsonValue *role = json_get(&context->sample->messages->items[i], "role");
    bool             is_text = role && role->type == JSON_STRING;
    return is_text && !context->is_assistant[i] && !str_equal(role->string, "user") && !str_equal(role->string, "system");
}

static bool trains_only_assistants(const TurnContext *context)
{
    for (uint32_t i = 0; i < context->sample->messages->count; i++)
        if (context->is_trained[i] && !context->is_assistant[i]) return false;
    return true;
}

void turns_add(TurnContext *context, TurnList *turns, TurnSpan span)
{
    if (turns->count == turns->capacity) {
        TurnSpan *more = arena_array(context->arena, TurnSpan, turns->capacity = turns->count * 2 + 4);
        if (turns->count) memcpy(more, turns->spans, turns->count * sizeof *more);
        turns->spans = more;
    }
    turns->spans[turns->count++] = span;
}

static void add_span(TurnContext *context, TurnList *turns, uint32_t message, size_t begin, size_t end)
{
    turns_add(context, turns, (TurnSpan){.begin_byte = begin, .end_byte = end, .message = message});
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

size_t turns_behind_stop(const MaskRules *rules, Str text, size_t at)
{
    Str stops[2];
    stops_of(rules, stops);
    for (int k = 0; k < 2; k++)
        if (starts(text_between(text, at, text.len), stops[k])) return at + stops[k].len;
    return at;
}

size_t turns_stop_len(const MaskRules *rules, Str turn)
{
    Str stops[2];
    stops_of(rules, stops);
    return ends(turn, stops[0]) ? stops[0].len : ends(turn, stops[1]) ? stops[1].len : 0;
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
    if (turns_stop_len(rules, turn) > 0) return begin + turn.len;
    size_t at = begin + turn.len, blanks = content.len - turns_trim_end(content).len;
    bool   has_blanks = ends(turn, turns_trim_end(content)) &&
                      starts(text_between(text, at, end), text_between(content, content.len - blanks, content.len));
    return turns_behind_stop(rules, text, has_blanks ? at + blanks : at); /* blanks at the end of the content are the content's */
}

/* ---- turns that teach less than they look; the shortcut lets none of them pass ---- */

bool turns_is_nothing(const JsonValue *message, const char *key)
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

static void look_at_turn(const MaskRules *rules, TurnSpan *span, const JsonValue *message, Str turn)
{
    const char *reasoning = rules->traits.reasoning_key;
    if (!turns_is_nothing(message, "tool_calls"))
        span->lacks_calls = !prints_calls(message, turn.data, turn.len);
    else
        span->is_empty = turns_is_nothing(message, "content") && (!reasoning || turns_is_nothing(message, reasoning));
}

/* Of a turn in pieces, the first one tells. */
static void look_at_turns(const TurnContext *context, Str text, TurnList *turns)
{
    const JsonValue *messages = context->sample->messages;
    for (uint32_t k = 0, next; k < turns->count; k = next) {
        TurnSpan *span = &turns->spans[k];
        for (next = k + 1; turns->spans[next - 1].goes_on;) next++;
        if (span->message == NO_MESSAGE || !context->is_assistant[span->message]) continue;
        Str turn = text_between(text, span->begin_byte, turns->spans[next - 1].end_byte);
        look_at_turn(context->rules, span, &messages->items[span->message], turn);
    }
}

/* ---- marks ---- */

static Status turns_by_marks(TurnContext *context, const TemplateParts *whole, Str text, TurnList *turns)
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
        bool   is_open = turns_stop_len(context->rules, turns_trim_end(text_between(text, begin, end))) == 0;
        add_span(context, turns, has_one_each ? message : NO_MESSAGE, begin, is_open ? turns_behind_stop(context->rules, text, end) : end);
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
    size_t at = begin + body.len, end = turns_behind_stop(context->rules, text, at);
    return body.data && end > at ? end : begin;
}

/* With one look over the text; false when anything is unlike the plain case. */
static bool turns_by_opening(TurnContext *context, Str text, TurnList *turns)
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
        size_t stop = turns_behind_stop(context->rules, text, (size_t)(at - text.data));
        if (context->is_trained[i] && stop == (size_t)(at - text.data)) return false;
        if (context->is_trained[i]) add_span(context, turns, i, (size_t)(begin - text.data), stop);
    }
    return !str_search((Str){at, (size_t)(end - at)}, opening); /* else one more than there are turns */
}

/* ---- what changes ---- */

typedef struct Turn {
    size_t begin, end;
    bool   begins, ends; /* known */
} Turn;

/* The last place of `what` in `text`, or NULL. */
static const char *find_last(Str text, Str what)
{
    const char *last = NULL;
    for (const char *at; (at = str_search(text, what)); text = text_between(text, (size_t)(at + 1 - text.data), text.len)) last = at;
    return last;
}

/* Where an answer begins whose own text does so at `own`. Its header stands right before that, or before something that belongs to
 * the answer: then it comes behind the message before it. Where there is no such header, its own text is all it says. */
static size_t behind_header(const TurnContext *context, uint32_t i, Str text, size_t own)
{
    const MaskRules *rules = context->rules;
    Str              header = {rules->header.data, rules->header.len}, open = {rules->header.data, rules->header_open};
    Region           before = {0};
    if (!context->is_assistant[i] || !rules->has_header || header.len > own) return own;
    if (header.len == 0 || ends((Str){text.data, own}, header)) return own - (header.len - open.len);
    const char *at = open.len ? find_last((Str){text.data, own}, open) : NULL;
    bool        is_its_own = at && (i == 0 || (change_find(context, i - 1, text, &before) && at >= text.data + before.end));
    return is_its_own ? (size_t)(at - text.data) + open.len : own;
}

/* Settles what prefixes left open. The turn before it ends at `from`. */
static Status turn_by_change(const TurnContext *context, uint32_t i, Str text, size_t from, Turn *turn)
{
    Region own = {0};
    bool   is_found = change_find(context, i, text, &own) && own.begin >= from;
    FAIL_IF(!turn->begins && !is_found, ERR_INVALID,
            i == 0 ? "message %u is an answer, and the template doesn't show where it begins; use a template with {%% generation %%}, or "
                     "mark it \"train\": false"
                   : "the template renders what stands before message %u differently once it is there, so that its tokens can't be "
                     "told apart; use a template with {%% generation %%}",
            i + 1);
    if (!turn->begins) turn->begin = behind_header(context, i, text, own.begin);
    if (turn->begin < from) turn->begin = own.begin;
    if (!turn->ends) turn->end = is_found ? turns_behind_stop(context->rules, text, own.end) : 0;
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

/* Where message i's turn begins and ends by the renderings without and with it. What a template without a generation prompt puts
 * before every answer isn't the answer's. */
static Turn turn_by_prefixes(const TurnContext *context, uint32_t i, const TemplateParts *whole, Str text)
{
    const MaskRules *rules = context->rules;
    Rendering        before = {0}, with = {0};
    bool             has_before = i == 0 || turns_render_first(context, i, context->is_assistant[i], &before) == OK;
    bool             has_with = turns_render_first(context, i + 1, false, &with) == OK;
    Turn             turn = {.begin = before.text.len, .end = with.text.len};
    status_clear(); /* a template that can't render a part of a conversation */
    turn.begins = has_before && starts_with(whole, &before.text);
    turn.ends = has_with && !rules->always_prompts && turn.end >= turn.begin && starts_with(whole, &with.text);
    if (turn.begins && context->is_assistant[i] && rules->opening.len == 0 && rules->header_open > 0) {
        Str open = {rules->header.data, rules->header_open};
        turn.begins = starts(text_between(text, turn.begin, text.len), open);
        turn.begin += open.len;
    }
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

/* Behind the last message a template may say more than what ends plain talks. */
static void leave_rest_out(const TurnContext *context, uint32_t i, Str text, Turn *turn)
{
    const MaskRules *rules = context->rules;
    Str    said = text_between(text, turn->begin, turn->end), content = turns_trim_end(content_of(&context->sample->messages->items[i]));
    Region own;
    if (turns_stop_len(rules, said) > 0 || ends(said, (Str){rules->ending.data, rules->ending.len}) || ends(turns_trim_end(said), content))
        return;
    if (change_find(context, i, text, &own) && own.end >= turn->begin && own.end < turn->end)
        turn->end = turns_behind_stop(rules, text, own.end);
}

static Status turn_by_rendering(TurnContext *context, uint32_t i, const TemplateParts *whole, Str text, TurnList *turns)
{
    Turn   turn = turn_by_prefixes(context, i, whole, text);
    size_t from = turns->count ? turns->spans[turns->count - 1].end_byte : 0;
    bool   is_greeting = i == 0 && context->is_assistant[0], may_be_plain = turn.begins && !turn.ends && !is_greeting;
    size_t plain = may_be_plain && !context->rules->forbids_shortcuts ? plain_end(context, i, text, turn.begin) : turn.begin;
    if (plain > turn.begin) {
        add_span(context, turns, i, turn.begin, plain);
        return OK;
    }
    if (is_greeting) look_for_greeting(context, text, &turn);
    bool is_alone = turn.begins && turn.ends;
    if (!is_alone) TRY(turn_by_change(context, i, text, from, &turn));
    turn.end = end_of_turn(context, i, text, turn.begin, turn.end);
    if (i + 1 == context->sample->messages->count) leave_rest_out(context, i, text, &turn);
    add_span(context, turns, i, turn.begin, turn.end);
    return change_keep_own(context, i, is_alone, text, turns);
}

static Status turns_by_rendering(TurnContext *context, const TemplateParts *whole, Str text, TurnList *turns)
{
    turns->count = 0;
    for (uint32_t i = 0; i < context->sample->messages->count; i++)
        if (context->is_trained[i]) TRY(turn_by_rendering(context, i, whole, text, turns));
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
    TRY(turns_render_first(context, sample->messages->count, false, &whole));
    size_t begin = text->len;
    strbuf_reserve(text, whole.text.len);
    for (uint32_t i = 0; i < whole.text.num_parts; i++) strbuf_append(text, whole.text.parts[i].data, whole.text.parts[i].len);
    *out = (TurnList){.is_all = context->rules->train_on == TRAIN_ON_ALL};
    Str    all = {text->data + begin, whole.text.len};
    Status status = content_look(sample, &context->rules->traits, &whole.text, all, &out->num_unprinted);
    if (status == OK && !out->is_all) status = find_turns(context, &whole.text, all, out); /* else no need to know */
    rendering_deinit(&whole);
    return status;
}
