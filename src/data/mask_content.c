/* What a template prints of the messages it is given. */
#include "data/mask_turns.h"

#include <stdio.h>
#include <string.h>

/* ---- traits ---- */

#define PARTS(text) "[{\"type\": \"text\", \"text\": \"" text "\"}]"
static const char parts_probe[] =
    "[{\"role\": \"user\", \"content\": " PARTS("Alpha") "}, {\"role\": \"assistant\", \"content\": " PARTS("Omega") "}]";
static const char developer_probe[] = "[{\"role\": \"developer\", \"content\": \"Alpha\"}, {\"role\": \"user\", \"content\": \"Omega\"}]";

/* With an answer's thinking under a name. */
static const char thought_probe[] =
    "[{\"role\": \"user\", \"content\": \"Alpha\"}, {\"role\": \"assistant\", \"content\": \"Omega\", \"%s\": \"Theta\"}]";

/* Does the conversation come out with its texts, and with nothing of how lists are written down? */
static bool prints(const MaskRules *rules, const char *conversation)
{
    Arena          arena = {0};
    JsonValue      messages;
    TemplateInput  input = {.messages = &messages, .now_unix = rules->now_unix};
    TemplateOutput out = {0};
    Status         status = json_parse(&arena, "probe", conversation, strlen(conversation), &messages);
    if (status == OK) status = template_render(rules->tmpl, &input, &out);
    const char *text = status == OK ? strbuf_cstr(&out.text) : "";
    bool        has_thought = !strstr(conversation, "Theta") || strstr(text, "Theta");
    bool is_printed = has_thought && strstr(text, "Alpha") && strstr(text, "Omega") && !strstr(text, "'text'") && !strstr(text, "\"text\"");
    status_clear(); /* a template that refuses it doesn't print it */
    template_output_deinit(&out);
    arena_deinit(&arena);
    return is_printed;
}

void content_probe(MaskRules *rules)
{
    rules->traits.takes_parts = prints(rules, parts_probe);
    rules->traits.prints_developer = prints(rules, developer_probe);
    for (size_t i = 0; i < NUM_REASONING_KEYS && !rules->traits.reasoning_key; i++) {
        char conversation[sizeof thought_probe + 32];
        snprintf(conversation, sizeof conversation, thought_probe, reasoning_keys[i]);
        if (prints(rules, conversation)) rules->traits.reasoning_key = reasoning_keys[i];
    }
}

const TemplateTraits *mask_rules_traits(const MaskRules *rules)
{
    return rules->tmpl ? &rules->traits : NULL;
}

/* ---- contents that aren't printed ---- */

/* Bytes that templates print as they are, also when they escape a text or break it into lines. */
static bool is_plain(char byte)
{
    return !strchr("\"\\<>&'\n\r\t", byte); /* 0 too is none */
}

/* Some of the text by which it is found: the first run of at least 8 plain bytes, else the longest; at most 20 of them. */
Str content_sign(Str text)
{
    Str best = {0};
    for (size_t i = 0; i < text.len && best.len < 8;) {
        size_t begin = i;
        while (i < text.len && i - begin < 20 && is_plain(text.data[i])) i++;
        if (i - begin > best.len) best = (Str){text.data + begin, i - begin};
        i += i == begin;
    }
    while (best.len > 0 && best.data[0] == ' ') best = (Str){best.data + 1, best.len - 1};
    while (best.len > 0 && best.data[best.len - 1] == ' ') best.len--;
    return best;
}

Str content_behind_thinking(Str text)
{
    static const Str end = {"</think>", 8};
    for (const char *at; (at = str_search(text, end));) text = (Str){at + end.len, text.len - (size_t)(at + end.len - text.data)};
    return text;
}

/* Is a part a piece of the text itself? Parts are looked at from *next on, in the order of the messages. */
static bool is_part(const TemplateParts *whole, Str text, uint32_t *next)
{
    for (uint32_t k = *next; k < whole->num_parts; k++) {
        const Str *part = &whole->parts[k];
        if (part->len == 0 || part->data < text.data || part->data >= text.data + text.len) continue;
        *next = k + 1;
        return true;
    }
    return false;
}

static bool is_usual(const JsonValue *role)
{
    static const char *const usual[] = {"user", "assistant", "system", "tool", "developer"};
    for (size_t i = 0; role && role->type == JSON_STRING && i < sizeof usual / sizeof usual[0]; i++)
        if (str_equal(role->string, usual[i])) return true;
    return false;
}

static bool has_thought(const JsonValue *message)
{
    for (size_t i = 0; i < NUM_REASONING_KEYS && message->count > 2; i++) {
        const JsonValue *thought = json_get(message, reasoning_keys[i]);
        if (thought && thought->type == JSON_STRING && thought->string.len > 0) return true;
    }
    return false;
}

Status content_look(const Sample *sample, const TemplateTraits *traits, const TemplateParts *whole, Str text, uint32_t *out_unprinted)
{
    uint32_t next = 0;
    Str      rest = text; /* where the next one most likely stands */
    *out_unprinted = 0;
    for (uint32_t i = 0; i < sample->messages->count; i++) {
        const JsonValue *message = &sample->messages->items[i], *content = json_get(message, "content");
        bool             lacks_thought = !traits->reasoning_key && has_thought(message);
        *out_unprinted += lacks_thought;
        if (!content || content->type != JSON_STRING || content->string.len == 0) continue; /* a list: of a template that takes parts */
        if (is_part(whole, content->string, &next)) continue;
        Str sign = content_sign(content_behind_thinking(content->string));
        if (sign.len == 0) continue;
        const char *at = str_search(rest, sign);
        if (at) rest = (Str){at, rest.len - (size_t)(at - rest.data)};
        if (at || str_search(text, sign)) continue;
        const JsonValue *role = json_get(message, "role");
        FAIL_IF(!is_usual(role), ERR_INVALID,
                "message %u: the template prints nothing of the role \"%s\"; want system, user, assistant or tool", i + 1,
                role && role->type == JSON_STRING ? role->string.data : "");
        *out_unprinted += !lacks_thought;
    }
    return OK;
}
