/* Turns found by change: where a message is in the text, and which of a turn's bytes belong to other messages.
 *
 * A message is where the text differs from renderings that have another content in this message. A template may print other messages
 * inside a turn: some look ahead and print the results of tools between an answer's calls and its content. So the turn is searched for
 * the contents of other messages. If the turn changes with one of these, only the text that it has without later messages is the
 * answer's own. */
#include "data/mask_turns.h"

#include "base/str.h"

#include <string.h>

/* ---- renderings with another content ---- */

/* A copy of the message with another content. is_bare: the copy has only role and content. */
static JsonValue with_content(Arena *arena, const JsonValue *message, bool is_bare, const char *content)
{
    JsonMember  other = {{"content", 7}, {.type = JSON_STRING, .string = str_of(content)}};
    JsonMember *members = arena_array(arena, JsonMember, message->count + 1);
    uint32_t    count = 0;
    bool        has_content = false;
    for (uint32_t k = 0; k < message->count; k++) {
        const JsonMember *member = &message->members[k];
        bool              is_content = str_equal(member->key, "content");
        has_content |= is_content;
        if (!is_bare || is_content || str_equal(member->key, "role")) members[count++] = is_content ? other : *member;
    }
    if (!has_content) members[count++] = other;
    return (JsonValue){.type = JSON_OBJECT, .count = count, .members = members};
}

static Status render(const TurnContext *context, const JsonValue *messages, TemplateOutput *out)
{
    TemplateInput input = {.messages = messages, .tools = context->sample->tools, .now_unix = context->rules->now_unix};
    return template_render(context->rules->tmpl, &input, out);
}

/* Renders the messages with another content in message i. */
static Status render_other(const TurnContext *context, const JsonValue *messages, uint32_t i, bool is_bare, const char *content,
                           TemplateOutput *out)
{
    Arena     arena = {0};
    JsonValue other = *messages, *items = arena_array(&arena, JsonValue, messages->count);
    memcpy(items, messages->items, messages->count * sizeof *items);
    items[i] = with_content(&arena, &messages->items[i], is_bare, content);
    other.items = items;
    Status status = render(context, &other, out);
    arena_deinit(&arena);
    return status;
}

/* Can the byte be inside a tag, that is between the brackets of <|im_end|>, </think> or [/INST]? */
static bool is_of_tag(char byte)
{
    return !strchr("<>[] \t\r\n\"'", byte);
}

/* Widens the region to whole tags: two renderings may have a part of a tag in common, as in <|START_TEXT|>, <|START_ACTION|>. */
static Region with_whole_tags(Str text, Region region)
{
    enum { MOST_TAG_BYTES = 64 };
    size_t begin = region.begin, end = region.end, open = region.end;
    while (begin > 0 && region.begin - begin < MOST_TAG_BYTES && is_of_tag(text.data[begin - 1])) begin--;
    if (begin > 0 && strchr("<[", text.data[begin - 1])) region.begin = begin - 1;
    while (open > region.begin && region.end - open < MOST_TAG_BYTES && is_of_tag(text.data[open - 1])) open--;
    while (end < text.len && end - region.end < MOST_TAG_BYTES && is_of_tag(text.data[end])) end++;
    bool is_open = open > region.begin && strchr("<[", text.data[open - 1]), closes = end < text.len && strchr(">]", text.data[end]);
    if (is_open && closes) region.end = end + 1;
    return region;
}

/* Finds message i in `text`, the rendering of `messages`: it is the part in which the text differs from two other renderings. In these,
 * message i has contents with different first and last letters. An answer has only its content there; other messages keep their other
 * fields, which templates may insist on. false: a rendering fails, or no part of the text differs. */
static bool find_among(const TurnContext *context, const JsonValue *messages, uint32_t i, Str text, Region *out)
{
    static const char *const others[] = {"Qqq", "xxX"};
    size_t                   begin = text.len, rest = text.len;
    for (int k = 0; k < 2; k++) {
        TemplateOutput other = {0};
        Status         status = render_other(context, messages, i, context->is_assistant[i], others[k], &other);
        size_t         alike = str_common(text, strbuf_str(&other.text)), alike_end = str_common_end(text, strbuf_str(&other.text));
        template_output_deinit(&other);
        if (status != OK) {
            status_clear();
            return false;
        }
        begin = alike < begin ? alike : begin;
        rest = alike_end < rest ? alike_end : rest;
    }
    if (begin > text.len - rest) return false;
    *out = with_whole_tags(text, (Region){begin, text.len - rest});
    return true;
}

/* A conversation with fewer messages after message i: its rendering, and where message i is in that rendering. */
typedef struct Shorter {
    TemplateOutput output;
    Region         own;
} Shorter;

/* Which messages after message i are left out. */
typedef enum Cut { CUT_ALL, CUT_RESULTS, NUM_CUTS } Cut;

/* Renders fewer messages. CUT_ALL leaves out all after message i; CUT_RESULTS leaves out the tool results directly after message i. */
static bool shorten(const TurnContext *context, uint32_t i, Cut cut, Shorter *out)
{
    const JsonValue *messages = context->sample->messages;
    Arena            arena = {0};
    uint32_t         next = cut == CUT_ALL ? messages->count : i + 1;
    JsonValue        fewer = *messages, *items = arena_array(&arena, JsonValue, messages->count);
    while (next < messages->count && turns_is_result(context, next)) next++;
    memcpy(items, messages->items, (i + 1) * sizeof *items);
    if (next < messages->count) memcpy(items + i + 1, messages->items + next, (messages->count - next) * sizeof *items);
    fewer.items = items;
    fewer.count = messages->count - (next - i - 1);
    *out = (Shorter){0};
    bool is_found = render(context, &fewer, &out->output) == OK && find_among(context, &fewer, i, strbuf_str(&out->output.text), &out->own);
    status_clear();
    arena_deinit(&arena);
    return is_found;
}

/* Is `what` in the text exactly once? */
static bool find_once(Str text, Str what, Region *out)
{
    const char *at = what.len > 0 ? str_search(text, what) : NULL;
    if (!at) return false;
    out->begin = (size_t)(at - text.data);
    out->end = out->begin + what.len;
    return !str_search(str_slice(text, out->begin + 1, text.len), what);
}

/* Finds a message whose calls are followed by results. Templates print results differently, or not at all, if the calls are missing; so
 * the calls are taken away in a shorter conversation, without the results. */
static bool find_calls(const TurnContext *context, uint32_t i, Str text, Region *out)
{
    bool is_found = false;
    for (Cut cut = 0; cut < NUM_CUTS && !is_found; cut++) {
        Shorter shorter;
        bool    is_there = shorten(context, i, cut, &shorter);
        Str     other = strbuf_str(&shorter.output.text);
        *out = shorter.own;
        is_found = is_there && (out->end <= str_common(text, other) || find_once(text, str_slice(other, out->begin, out->end), out));
        template_output_deinit(&shorter.output);
    }
    return is_found;
}

bool change_find(const TurnContext *context, uint32_t i, Str text, Region *out)
{
    const MaskRules *rules = context->rules;
    const JsonValue *messages = context->sample->messages;
    bool             is_followed = i + 1 < messages->count && turns_is_result(context, i + 1);
    bool             has_calls = is_followed && !turns_is_nothing(&messages->items[i], "tool_calls");
    Region           calls;
    has_calls = has_calls && find_calls(context, i, text, &calls);
    bool has_stop = has_calls && (rules->stops[0].len == 0 || turns_behind_stop(rules, text, calls.end) > calls.end);
    if (!has_stop && find_among(context, messages, i, text, out)) return true;
    if (has_calls) *out = calls;
    return has_calls;
}

/* ---- other messages inside of a turn ---- */

/* The piece of a message's content that is searched for to find the message. */
static Str sign_of(const JsonValue *message)
{
    const JsonValue *content = json_get(message, "content");
    for (uint32_t k = 0; content && content->type == JSON_ARRAY && k < content->count; k++) {
        Str text = turns_text(&content->items[k], "text");
        if (text.len > 0) return content_sign(text);
    }
    return content_sign(turns_text(message, "content"));
}

/* Does the turn's text change with message k? If not, the turn only contains the same words. */
static bool changes_with(const TurnContext *context, uint32_t k, Str turn)
{
    TemplateOutput other = {0};
    bool           is_same =
        render_other(context, context->sample->messages, k, false, "Qqq", &other) == OK && str_search(strbuf_str(&other.text), turn);
    status_clear();
    template_output_deinit(&other);
    return !is_same;
}

/* The first message of [begin, end), i excepted, that is printed in the turn; NO_MESSAGE: none is. */
static uint32_t find_other(const TurnContext *context, uint32_t i, uint32_t begin, uint32_t end, Str turn)
{
    for (uint32_t k = begin; k < end; k++) {
        Str sign = k == i ? (Str){0} : sign_of(&context->sample->messages->items[k]);
        if (sign.len > 0 && str_search(turn, sign) && changes_with(context, k, turn)) return k;
    }
    return NO_MESSAGE;
}

/* Does the text look like a whole block: brackets or line ends at both ends? */
static bool is_enclosed(Str text)
{
    return text.len > 1 && strchr("<[{(\n", text.data[0]) && strchr(">]})\n", text.data[text.len - 1]);
}

/* The message's content as it is printed in `text`: trimmed, and without thinking if the template leaves that out. */
static Str printed_content(const JsonValue *message, Str text)
{
    Str said = str_trim(turns_text(message, "content"));
    return str_search(text, said) ? said : str_trim(content_behind_thinking(said));
}

/* The turn is the text `own` with other text inserted: finds the insertion. If several places are possible, the insertion ends where the
 * message's content begins, or else is a whole block, or else is the last. false: the turn isn't like that. */
static bool find_between(Str turn, Str own, const JsonValue *message, Region *out)
{
    if (own.len > turn.len) return false;
    size_t alike = str_common(turn, own), alike_end = str_common_end(turn, own), len = turn.len - own.len;
    if (alike + alike_end < own.len) return false;
    Str    said = printed_content(message, own);
    size_t first = own.len - alike_end, begin = alike, last = alike;
    for (size_t at = first; at <= last; at++)
        if (is_enclosed(str_slice(turn, at, at + len))) begin = at;
    bool ends_so = said.len > 0 && str_ends(own, said);
    if (ends_so && own.len - said.len >= first && own.len - said.len <= last) begin = own.len - said.len;
    *out = (Region){begin, begin + len};
    return true;
}

/* Cuts `between`, relative to the last span, out of that span: one or two pieces are left. */
static void split_last(TurnContext *context, TurnList *turns, Region between)
{
    TurnSpan *last = &turns->spans[turns->count - 1], rest = *last;
    size_t    begin = last->begin_byte;
    rest.begin_byte = begin + between.end;
    last->end_byte = begin + between.begin;
    if (rest.begin_byte == rest.end_byte) return;
    if (between.begin == 0) {
        *last = rest;
        return;
    }
    last->goes_on = true;
    turns_add(context, turns, rest);
}

/* The text up to the end of the message's content; the whole text if the content isn't in it. */
static Str through_content(Str text, const JsonValue *message)
{
    Str         said = printed_content(message, text);
    const char *at = said.len > 0 ? str_search(text, said) : NULL;
    return at ? (Str){text.data, (size_t)(at - text.data) + said.len} : text;
}

/* Finds what is inserted in the turn but not in a shorter conversation. The template's text before the message, at most MOST_LEAD_BYTES of
 * it, is the same in both conversations. The template's text after the content may differ. */
static bool find_between_shorter(Str turn, const Shorter *shorter, const JsonValue *message, Region *out)
{
    enum { MOST_LEAD_BYTES = 256 };
    Str text = strbuf_str(&shorter->output.text);
    for (size_t lead = 0; lead <= MOST_LEAD_BYTES && lead <= shorter->own.begin && lead <= turn.len; lead++) {
        Str own = str_slice(text, shorter->own.begin - lead, shorter->own.end);
        if (memcmp(own.data, turn.data, lead) != 0) continue;
        if (find_between(turn, own, message, out) || find_between(turn, through_content(own, message), message, out)) return true;
    }
    return false;
}

Status change_keep_own(TurnContext *context, uint32_t i, bool is_alone, Str text, TurnList *turns)
{
    const TurnSpan  *span = &turns->spans[turns->count - 1];
    const JsonValue *messages = context->sample->messages;
    size_t           begin = span->begin_byte;
    Str              turn = str_slice(text, begin, span->end_byte);
    turn.len -= turns_stop_len(context->rules, turn);
    if (turn.len > 0 && str_same(str_trim(turn), printed_content(&messages->items[i], turn))) return OK; /* the turn is bare content */
    uint32_t first = i;
    while (is_alone && first > 0 && !context->is_assistant[first - 1]) first--;
    uint32_t other = find_other(context, i, is_alone ? first : 0, is_alone ? i : messages->count, turn);
    if (other == NO_MESSAGE) return OK;
    bool   is_found = false;
    Region between;
    for (Cut cut = 0; cut < NUM_CUTS && other > i && !is_found; cut++) {
        Shorter shorter;
        is_found = shorten(context, i, cut, &shorter) && find_between_shorter(turn, &shorter, &messages->items[i], &between);
        template_output_deinit(&shorter.output);
    }
    FAIL_IF(!is_found, ERR_INVALID,
            "the template prints message %u within message %u, so that what the latter says can't be told apart; use a template with {%% "
            "generation %%}",
            other + 1, i + 1);
    split_last(context, turns, between);
    return OK;
}
