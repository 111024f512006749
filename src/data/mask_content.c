/* What a template prints of the messages it is given. */
#include "data/mask_turns.h"

#include "base/str.h"

#include <stdio.h>
#include <string.h>

/* ---- traits ---- */

#define PARTS(text) "[{\"type\": \"text\", \"text\": \"" text "\"}]"
static const char parts_probe[] =
    "[{\"role\": \"user\", \"content\": " PARTS("Alpha") "}, {\"role\": \"assistant\", \"content\": " PARTS("Omega") "}]";
#define THOUGHT "{\"type\": \"thinking\", \"thinking\": \"Theta\"}"
static const char thoughts_probe[] = "[{\"role\": \"user\", \"content\": \"Alpha\"}, {\"role\": \"assistant\", \"content\": [" THOUGHT
                                     ", {\"type\": \"text\", \"text\": \"Omega\"}]}]";
static const char developer_probe[] = "[{\"role\": \"developer\", \"content\": \"Alpha\"}, {\"role\": \"user\", \"content\": \"Omega\"}]";

/* An answer with thinking. %s: the thinking's key. */
static const char thought_probe[] =
    "[{\"role\": \"user\", \"content\": \"Alpha\"}, {\"role\": \"assistant\", \"content\": \"Omega\", \"%s\": \"Theta\"}]";

/* Does the rendering have all texts of the conversation, and no list of parts printed as Python or JSON? */
static bool prints(MaskRules *rules, const char *conversation)
{
    const char *text = turns_probe_text(rules, conversation, NULL, false).data;
    bool        has_thought = text && (!strstr(conversation, "Theta") || strstr(text, "Theta"));
    return has_thought && strstr(text, "Alpha") && strstr(text, "Omega") && !strstr(text, "'text'") && !strstr(text, "\"text\"");
}

/* Does the template render a conversation, with these tools or none, but print nothing of "Theta"? */
static bool hides(MaskRules *rules, const char *conversation, const char *tools)
{
    const char *text = turns_probe_text(rules, conversation, tools, false).data;
    return text && strstr(text, "Alpha") && !strstr(text, "Theta");
}

#define ASKED(more) "[{\"role\": \"user\", \"content\": \"Alpha\"" more "}"
#define CALLED_WITH(arguments, name, id) \
    ASKED("") \
    ", {\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"id\": \"" id \
    "\", \"type\": \"function\", \"function\": {\"name\": " \
    "\"omega\", \"arguments\": " arguments "}}]}, {\"role\": \"tool\", \"content\": \"Omega\", \"name\": \"" name \
    "\", \"tool_call_id\": \"" id "\"}]"
#define CALLED(name, id) CALLED_WITH("{}", name, id)

static bool refuses_objects(MaskRules *rules)
{
    static const char objects[] = CALLED_WITH("{}", "omega", "call12345"), texts[] = CALLED_WITH("\"{}\"", "omega", "call12345");
    return !turns_probe_text(rules, objects, NULL, false).data && turns_probe_text(rules, texts, NULL, false).data;
}

static void find_hidden(MaskRules *rules)
{
    static const char tools[] = "[{\"type\": \"function\", \"function\": {\"name\": \"Theta\", \"description\": \"Theta\", \"parameters\": "
                                "{\"type\": \"object\", \"properties\": {}}}}]";
    rules->traits.hides_tools = hides(rules, ASKED("") "]", tools);
    rules->traits.hides_names = hides(rules, ASKED(", \"name\": \"Theta\"") "]", NULL);
    rules->traits.hides_tool_names = hides(rules, CALLED("Theta", "call12345"), NULL);
    rules->traits.hides_call_ids = hides(rules, CALLED("omega", "Theta1234"), NULL);
}

void content_probe(MaskRules *rules)
{
    rules->traits.takes_parts = prints(rules, parts_probe);
    rules->traits.takes_thoughts = prints(rules, thoughts_probe);
    rules->traits.text_arguments = refuses_objects(rules);
    find_hidden(rules);
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

/* Bytes that templates print as they are, even when they escape a text or break it into lines. */
static bool is_plain(char byte)
{
    return !strchr("\"\\<>&'\n\r\t", byte); /* NUL isn't plain either: strchr finds it at the end */
}

/* The piece of a text that is used to search for it: the first run of at least 8 plain bytes, else the longest run; at most 20 bytes,
 * without spaces at its ends. */
Str content_sign(Str text)
{
    Str best = {0};
    for (size_t i = 0; i < text.len && best.len < 8;) {
        size_t begin = i;
        while (i < text.len && i - begin < 20 && is_plain(text.data[i])) i++;
        if (i - begin > best.len) best = (Str){text.data + begin, i - begin};
        i += i == begin;
    }
    while (best.len > 0 && best.data[0] == ' ') best = str_slice(best, 1, best.len);
    while (best.len > 0 && best.data[best.len - 1] == ' ') best.len--;
    return best;
}

Str content_behind_thinking(Str text)
{
    static const Str end = {"</think>", 8};
    for (const char *at; (at = str_search(text, end));) text = str_slice(text, (size_t)(at - text.data) + end.len, text.len);
    return text;
}

/* Does a part of the rendering point into this text? Looks at parts from *next on, as they are in the order of the messages. */
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

static bool is_usual(Str role)
{
    static const char *const usual[] = {"user", "assistant", "system", "tool", "developer"};
    for (size_t i = 0; i < sizeof usual / sizeof usual[0]; i++)
        if (str_equal(role, usual[i])) return true;
    return false;
}

static bool has_thought(const JsonValue *message)
{
    for (size_t i = 0; i < NUM_REASONING_KEYS && message->count > 2; i++)
        if (turns_text(message, reasoning_keys[i]).len > 0) return true;
    return false;
}

Status content_look(const Sample *sample, const TemplateTraits *traits, const TemplateParts *whole, Str text, uint32_t *out_unprinted)
{
    uint32_t next = 0;
    Str      rest = text; /* where the next content most likely is */
    *out_unprinted = 0;
    for (uint32_t i = 0; i < sample->messages->count; i++) {
        const JsonValue *message = &sample->messages->items[i];
        Str              content = turns_text(message, "content"); /* a list of parts gives an empty text */
        bool             lacks_thought = !traits->reasoning_key && has_thought(message);
        *out_unprinted += lacks_thought;
        if (content.len == 0 || is_part(whole, content, &next)) continue;
        Str sign = content_sign(content_behind_thinking(content));
        if (sign.len == 0) continue;
        const char *at = str_search(rest, sign);
        if (at) rest = str_slice(rest, (size_t)(at - rest.data), rest.len);
        if (at || str_search(text, sign)) continue;
        Str role = turns_text(message, "role");
        FAIL_IF(!is_usual(role), ERR_INVALID,
                "message %u: the template prints nothing of the role \"%s\"; want system, user, assistant or tool", i + 1,
                role.data ? role.data : "");
        *out_unprinted += !lacks_thought;
    }
    return OK;
}
