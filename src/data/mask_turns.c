/* Finds turns by marks, by loops, by prefixes, or by change.
 *
 * Marks: {% generation %} blocks of the template. Loops: if a loop of the template printed message i by itself, and that text begins with
 * the opening of a turn, the text is turn i. Prefixes: turn i begins where the rendering of messages 0..i-1 with the generation prompt
 * ends, and it ends where the rendering of messages 0..i ends. Either counts only if the whole rendering starts with that shorter one.
 * Change: prefixes fail for templates that rewrite earlier turns (Qwen3 drops their thinking), look ahead (Gemma 4), always print a
 * generation prompt (Command-R7B), or end the conversation with more than a turn (Phi-3.5). Then message i is where the whole rendering
 * differs from renderings with another content in message i (mask_change.c). Before and after it, the text that the template puts around
 * plain answers (mask_probe.c) is searched for. In each case a turn ends after the stop of its message, without the blanks that follow.
 * Other messages that the template prints inside a turn are left out.
 *
 * Renderings are taken from the memo if it has them. */
#include "data/mask_turns.h"

#include "base/array.h"
#include "base/str.h"

#include <string.h>

void rendering_deinit(Rendering *rendering)
{
    template_output_deinit(&rendering->output);
}

/* Intermediate memory of template_render is freed at once, so that many renderings of one row don't add up. */
Status turns_render_first(const TurnContext *context, uint32_t count, bool add_prompt, Rendering *out)
{
    const Sample *sample = context->sample;
    *out = (Rendering){0};
    if (context->memo && template_memo_render(context->memo, count, add_prompt, context->arena, &out->text)) return OK;
    JsonValue     messages = *sample->messages;
    TemplateInput input = {.messages = &messages,
                           .tools = sample->tools,
                           .add_generation_prompt = add_prompt,
                           .now_unix = context->rules->now_unix,
                           .marks_turns = count == sample->messages->count};
    messages.count = count;
    TRY(template_render(context->rules->tmpl, &input, &out->output));
    Str *part = arena_new(context->arena, Str);
    *part = (Str){strbuf_cstr(&out->output.text), out->output.text.len};
    out->text =
        (TemplateParts){.parts = part, .num_parts = 1, .len = part->len, .spans = out->output.spans, .num_spans = out->output.num_spans};
    return OK;
}

Str turns_text(const JsonValue *message, const char *key)
{
    const JsonValue *text = json_get(message, key);
    return text && text->type == JSON_STRING ? text->string : (Str){0};
}

/* Sets is_assistant and is_trained. A message's own flag decides whether it is trained; without a flag, the TrainOn rule does. With
 * TRAIN_ON_ALL, is_trained marks the messages that aren't trained. */
static void settle_messages(TurnContext *context)
{
    const Sample *sample = context->sample;
    bool          is_last = true, is_all = context->rules->train_on == TRAIN_ON_ALL;
    context->is_assistant = arena_array(context->arena, bool, sample->messages->count);
    context->is_trained = arena_array(context->arena, bool, sample->messages->count);
    for (uint32_t i = sample->messages->count; i-- > 0;) {
        bool is_assistant = str_equal(turns_text(&sample->messages->items[i], "role"), "assistant");
        bool by_rule = is_assistant && (context->rules->train_on != TRAIN_ON_LAST_TURN || is_last);
        context->is_assistant[i] = is_assistant;
        context->is_trained[i] = sample->train && sample->train[i] >= 0 ? sample->train[i] != is_all : by_rule && !is_all;
        context->num_assistants += is_assistant;
        context->trains_others |= context->is_trained[i] && !is_assistant;
        is_last &= !is_assistant;
    }
}

bool turns_is_result(const TurnContext *context, uint32_t i)
{
    Str role = turns_text(&context->sample->messages->items[i], "role");
    return role.data && !context->is_assistant[i] && !str_equal(role, "user") && !str_equal(role, "system");
}

void turns_add(TurnContext *context, TurnList *turns, TurnSpan span)
{
    turns->spans = arena_room(context->arena, turns->spans, turns->count + 1, &turns->capacity, sizeof span);
    turns->spans[turns->count++] = span;
}

/* ---- where a turn ends ---- */

bool turns_is_stop(const Tokenizer *tokenizer, int32_t id)
{
    return tokenizer_is_special(tokenizer, id) || (id >= 0 && id == tokenizer_eos_id(tokenizer));
}

static bool starts(Str text, Str prefix)
{
    return prefix.len > 0 && str_starts(text, prefix);
}

static bool ends(Str text, Str suffix)
{
    return suffix.len > 0 && str_ends(text, suffix);
}

size_t turns_behind_stop(const MaskRules *rules, Str text, size_t at)
{
    for (int k = 0; k < 2; k++)
        if (starts(str_slice(text, at, text.len), rules->stops[k])) return at + rules->stops[k].len;
    return at;
}

size_t turns_stop_len(const MaskRules *rules, Str turn)
{
    return ends(turn, rules->stops[0]) ? rules->stops[0].len : ends(turn, rules->stops[1]) ? rules->stops[1].len : 0;
}

/* Message i is text [begin, end). Returns the end of its turn: after the message's stop, or after its content if it has no stop. */
static size_t end_of_turn(const TurnContext *context, uint32_t i, Str text, size_t begin, size_t end)
{
    const MaskRules *rules = context->rules;
    Str              tail = rules->tail, content = turns_text(&context->sample->messages->items[i], "content");
    Str              turn = str_trim_end(str_slice(text, begin, end));
    bool             is_last = i + 1 == context->sample->messages->count;
    if (is_last && ends(turn, tail)) turn = str_trim_end((Str){turn.data, turn.len - tail.len});
    if (turns_stop_len(rules, turn) > 0) return begin + turn.len;
    size_t at = begin + turn.len, blanks = content.len - str_trim_end(content).len;
    bool   has_blanks =
        ends(turn, str_trim_end(content)) && starts(str_slice(text, at, end), str_slice(content, content.len - blanks, content.len));
    return turns_behind_stop(rules, text, has_blanks ? at + blanks : at); /* blanks at the end of the content belong to the content */
}

/* ---- turns that teach less than they seem to ---- */

bool turns_is_nothing(const JsonValue *message, const char *key)
{
    const JsonValue *value = json_get(message, key);
    if (!value || value->type == JSON_NULL) return true;
    if (value->type == JSON_ARRAY) return value->count == 0;
    return value->type == JSON_STRING && str_trim(value->string).len == 0;
}

/* Are the calls printed? A template that prints calls prints their names. */
static bool prints_calls(const JsonValue *message, Str turn)
{
    const JsonValue *calls = json_get(message, "tool_calls");
    for (uint32_t i = 0; i < calls->count; i++) {
        const JsonValue *function = json_get(&calls->items[i], "function");
        if (function && !str_search(turn, turns_text(function, "name"))) return false;
    }
    return true;
}

static void look_at_turn(const MaskRules *rules, TurnSpan *span, const JsonValue *message, Str turn)
{
    const char *reasoning = rules->traits.reasoning_key;
    if (!turns_is_nothing(message, "tool_calls"))
        span->lacks_calls = !prints_calls(message, turn);
    else
        span->is_empty = turns_is_nothing(message, "content") && (!reasoning || turns_is_nothing(message, reasoning));
}

/* Sets lacks_calls and is_empty of each turn. If a turn has several pieces, only its first piece gets them. */
static void look_at_turns(const TurnContext *context, Str text, TurnList *turns)
{
    const JsonValue *messages = context->sample->messages;
    for (uint32_t k = 0, next; k < turns->count; k = next) {
        TurnSpan *span = &turns->spans[k];
        for (next = k + 1; turns->spans[next - 1].goes_on;) next++;
        if (span->message == NO_MESSAGE || !context->is_assistant[span->message]) continue;
        Str turn = str_slice(text, span->begin_byte, turns->spans[next - 1].end_byte);
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
        bool   is_open = turns_stop_len(context->rules, str_trim_end(str_slice(text, begin, end))) == 0;
        if (is_open) end = turns_behind_stop(context->rules, text, end);
        turns_add(context, turns, (TurnSpan){.begin_byte = begin, .end_byte = end, .message = has_one_each ? message : NO_MESSAGE});
    }
    return OK;
}

/* ---- turns found by change ---- */

/* The last occurrence of `what` in `text`, or NULL. */
static const char *find_last(Str text, Str what)
{
    const char *last = NULL;
    for (const char *at; (at = str_search(text, what)); text = str_slice(text, (size_t)(at + 1 - text.data), text.len)) last = at;
    return last;
}

/* The begin of an answer whose own text begins at `own`: after the bytes of its header that open the turn. The header may be right before
 * `own`. Or the opening bytes are further ahead, before more text of the answer; then they must be after message i - 1. If neither is
 * found, the answer begins at `own`. */
static size_t behind_header(const TurnContext *context, uint32_t i, Str text, size_t own)
{
    const MaskRules *rules = context->rules;
    Str              header = rules->header, open = {header.data, rules->header_open};
    Region           before = {0};
    if (!context->is_assistant[i] || !rules->has_header || header.len > own) return own;
    if (header.len == 0 || ends((Str){text.data, own}, header)) return own - (header.len - open.len);
    const char *at = open.len ? find_last((Str){text.data, own}, open) : NULL;
    bool        is_its_own = at && (i == 0 || (change_find(context, i - 1, text, &before) && at >= text.data + before.end));
    return is_its_own ? (size_t)(at - text.data) + open.len : own;
}

/* Finds by change the begin and end that prefixes didn't find. The previous turn ends at `from`. */
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

static bool starts_with(Str text, const TemplateParts *prefix)
{
    size_t at = 0;
    for (uint32_t k = 0; k < prefix->num_parts; at += prefix->parts[k++].len)
        if (!str_starts(str_slice(text, at, text.len), prefix->parts[k])) return false;
    return true;
}

/* Bytes at the beginning of a text that open a turn: the generation prompt, or the part of an answer's header that opens it; 0: none. */
static size_t opening_len(const MaskRules *rules, Str text)
{
    Str open = {rules->header.data, rules->header_open};
    return starts(text, rules->opening) ? rules->opening.len : starts(text, open) ? open.len : 0;
}

/* Where message i's turn begins and ends, by the renderings without and with this message. If the template has no generation prompt, or
 * prints none after results of tools, the turn's opening is searched for right after the previous messages. */
static Turn turn_by_prefixes(const TurnContext *context, uint32_t i, Str text)
{
    const MaskRules *rules = context->rules;
    Rendering        before = {0}, with = {0};
    bool             has_before = i == 0 || turns_render_first(context, i, context->is_assistant[i], &before) == OK;
    bool             is_last = i + 1 == context->sample->messages->count; /* if so, the rendering with message i is the whole text */
    bool             has_with = is_last || (!rules->always_prompts && turns_render_first(context, i + 1, false, &with) == OK);
    Turn             turn = {.begin = before.text.len, .end = is_last ? text.len : with.text.len};
    status_clear(); /* some templates can't render a part of a conversation */
    turn.begins = has_before && starts_with(text, &before.text);
    turn.ends = has_with && !rules->always_prompts && turn.end >= turn.begin && starts_with(text, &with.text);
    Str  opening = rules->opening;
    bool lacks_prompt = opening.len > 0 ? !ends((Str){text.data, turn.begin}, opening) : rules->never_prompts;
    if (turn.begins && context->is_assistant[i] && lacks_prompt) {
        size_t len = opening_len(rules, str_slice(text, turn.begin, text.len));
        turn.begins = len > 0 || opening.len > 0 || rules->header_open == 0;
        turn.begin += len;
    }
    rendering_deinit(&before);
    rendering_deinit(&with);
    return turn;
}

/* The first message is an answer: no prefix shows where it begins, but the first opening does. */
static void look_for_greeting(const TurnContext *context, Str text, Turn *turn)
{
    Str         opening = context->rules->opening;
    const char *open = opening.len ? str_search((Str){text.data, turn->ends ? turn->end : text.len}, opening) : NULL;
    turn->begins = open != NULL;
    if (open) turn->begin = (size_t)(open - text.data) + opening.len;
}

/* Shortens the last turn if the template prints more after the last message than it does in plain talks. */
static void leave_rest_out(const TurnContext *context, uint32_t i, Str text, Turn *turn)
{
    const MaskRules *rules = context->rules;
    Str said = str_slice(text, turn->begin, turn->end), content = str_trim_end(turns_text(&context->sample->messages->items[i], "content"));
    Region own;
    if (turns_stop_len(rules, said) > 0 || ends(said, rules->ending) || ends(str_trim_end(said), content)) return;
    if (change_find(context, i, text, &own) && own.end >= turn->begin && own.end < turn->end)
        turn->end = turns_behind_stop(rules, text, own.end);
}

/* The turn that a loop printed for message i without looking at other messages. It must begin with the opening of a turn. The last turn
 * extends to the text's end, and the whole generation prompt must open it. */
static bool turn_by_loop(const TurnContext *context, uint32_t i, Str text, size_t from, Turn *out)
{
    const MaskRules *rules = context->rules;
    bool             is_last = i + 1 == context->sample->messages->count;
    *out = context->turns[i];
    if (rules->forbids_shortcuts || i == 0 || !out->begins || !context->is_assistant[i]) return false;
    Str    printed = str_slice(text, out->begin, out->end);
    size_t len = opening_len(rules, printed);
    if (is_last && (rules->always_prompts || !starts(printed, rules->opening))) return false;
    if (is_last) out->end = text.len;
    out->begin += len;
    return len > 0 && out->begin >= from;
}

static Status turn_by_rendering(TurnContext *context, uint32_t i, Str text, TurnList *turns)
{
    size_t from = turns->count ? turns->spans[turns->count - 1].end_byte : 0;
    Turn   turn;
    if (!turn_by_loop(context, i, text, from, &turn)) turn = turn_by_prefixes(context, i, text);
    if (i == 0 && context->is_assistant[0]) look_for_greeting(context, text, &turn);
    bool is_alone = turn.begins && turn.ends;
    if (!is_alone) TRY(turn_by_change(context, i, text, from, &turn));
    turn.end = end_of_turn(context, i, text, turn.begin, turn.end);
    if (i + 1 == context->sample->messages->count) leave_rest_out(context, i, text, &turn);
    turns_add(context, turns, (TurnSpan){.begin_byte = turn.begin, .end_byte = turn.end, .message = i});
    return change_keep_own(context, i, is_alone, text, turns);
}

/* Sets context->turns. The turn of a message that was printed twice isn't known. */
static void take_turns(TurnContext *context, const Rendering *whole)
{
    uint32_t            count = context->sample->messages->count;
    size_t              num_turns = whole->output.num_turns;
    const TemplateTurn *turns = whole->output.turns;
    bool               *is_twice = arena_array(context->arena, bool, count);
    if (whole->text.path) turns = template_memo_turns(&whole->text, context->arena, &num_turns);
    context->turns = arena_array(context->arena, Turn, count);
    for (size_t k = 0; k < num_turns; k++) {
        Turn *turn = &context->turns[turns[k].message];
        is_twice[turns[k].message] |= turn->end > 0;
        bool is_known = !turns[k].looks_around && !is_twice[turns[k].message];
        *turn = (Turn){turns[k].span.begin, turns[k].span.end, is_known, is_known};
    }
}

static Status find_turns(TurnContext *context, const Rendering *rendering, Str text, TurnList *turns)
{
    settle_messages(context);
    if (rendering->text.num_spans > 0 && !context->trains_others) {
        TRY(turns_by_marks(context, &rendering->text, text, turns));
    } else {
        take_turns(context, rendering);
        for (uint32_t i = 0; i < context->sample->messages->count; i++)
            if (context->is_trained[i]) TRY(turn_by_rendering(context, i, text, turns));
    }
    look_at_turns(context, text, turns);
    return OK;
}

static bool has_untrained(const Sample *sample)
{
    for (uint32_t i = 0; sample->train && i < sample->messages->count; i++)
        if (sample->train[i] == 0) return true;
    return false;
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
    if (status == OK && (!out->is_all || has_untrained(sample))) status = find_turns(context, &whole, all, out); /* else all is trained */
    rendering_deinit(&whole);
    return status;
}
