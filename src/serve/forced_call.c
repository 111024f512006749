/* See forced_call.h. */
#include "serve/forced_call.h"

#include "base/json_walk.h"
#include "base/str.h"

#include <string.h>

/* The call that is rendered to find the form. Its words occur in no template, and no template escapes them. */
#define NAME "surogate_kappa"
#define ARGUMENTS "\"lambda\""
static const char call_text[] =
    "{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"id\": \"kappa1234\", \"type\": \"function\", "
    "\"function\": {\"name\": \"" NAME "\", \"arguments\": {" ARGUMENTS ": " ARGUMENTS "}}}]}";

/* Renders the messages and one more after them. more NULL: the messages and the opening of an answer. */
static Status render(const Template *tmpl, const ChatMessages *chat, const JsonValue *more, int64_t now, Arena *arena, Str *out)
{
    JsonValue      messages = *chat->messages;
    TemplateOutput text = {0};
    messages.items = arena_array(arena, JsonValue, messages.count + 1);
    memcpy(messages.items, chat->messages->items, messages.count * sizeof *messages.items);
    if (more) messages.items[messages.count++] = *more;
    TemplateInput input = {
        .messages = &messages, .tools = chat->tools, .variables = chat->variables, .add_generation_prompt = !more, .now_unix = now};
    Status status = chat_render(tmpl, &input, &text);
    if (status == OK) *out = (Str){arena_strndup(arena, strbuf_cstr(&text.text), text.text.len), text.text.len};
    template_output_deinit(&text);
    return status;
}

/* Length in bytes of the JSON object that the text begins with; 0: the object isn't complete. */
static size_t object_len(Str text)
{
    JsonWalk walk = {0};
    for (size_t i = 0; i < text.len; i++) {
        if (!json_walk(&walk, &json_walk_free, (unsigned char)text.data[i])) return 0;
        if (json_walk_is_whole(&walk)) return i + 1;
    }
    return 0;
}

/* Finds the text before the name of the rendered call, and the text between the name and the arguments. false: no JSON object of arguments
 * follows the name, or the name occurs twice. */
static bool find_form(Str answer, Str *before, Str *between)
{
    const char *end = answer.data + answer.len, *name = memmem(answer.data, answer.len, NAME, sizeof NAME - 1);
    if (!name) return false;
    const char *behind = name + sizeof NAME - 1, *object = memchr(behind, '{', (size_t)(end - behind));
    if (!object || memmem(behind, (size_t)(end - behind), NAME, sizeof NAME - 1)) return false;
    size_t len = object_len((Str){object, (size_t)(end - object)});
    *before = (Str){answer.data, (size_t)(name - answer.data)};
    *between = (Str){behind, (size_t)(object - behind)};
    return len && memmem(object, len, ARGUMENTS, sizeof ARGUMENTS - 1);
}

static Status fail_form(void)
{
    FAIL(ERR_UNSUPPORTED,
         "a call can't be forced: the model's chat template shows none as a name with a JSON object of arguments behind it; "
         "expected \"auto\" or \"none\"");
}

static Status find_call(Arena *arena, const Template *tmpl, const ChatMessages *chat, Str *before, Str *between)
{
    int64_t   now = template_now(tmpl);
    JsonValue call;
    Str       asked, answered;
    TRY(render(tmpl, chat, NULL, now, arena, &asked));
    TRY(json_parse(arena, "a call", call_text, strlen(call_text), &call));
    if (render(tmpl, chat, &call, now, arena, &answered) != OK) {
        status_clear();
        return fail_form();
    }
    bool begins = answered.len > asked.len && str_starts(answered, asked);
    Str  answer = str_slice(answered, asked.len, answered.len);
    return begins && find_form(answer, before, between) ? OK : fail_form();
}

/* Whether every template prints the name as it is: letters, digits, _, - and . alone. */
static bool is_plain(const char *name)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
    return *name && !name[strspn(name, letters)];
}

/* With several names, the model itself writes the text between the name it chooses and the arguments. It can't write special tokens. */
static Status check_between(const Tokenizer *tokenizer, Str between)
{
    TokenizerScratch *scratch = tokenizer_scratch_create(tokenizer);
    TokenIds          ids = {0};
    bool              is_text = true;
    Status            status = tokenizer_encode(tokenizer, scratch, between.data, between.len, (EncodeOptions){0}, &ids);
    for (size_t i = 0; i < ids.len; i++) is_text &= !tokenizer_is_special(tokenizer, ids.data[i]);
    token_ids_deinit(&ids);
    tokenizer_scratch_destroy(scratch);
    TRY(status);
    FAIL_IF(
        !is_text, ERR_UNSUPPORTED,
        "the model's chat template has a special token between a call's name and its arguments: one of several functions can't be chosen; "
        "name one, as {\"type\": \"function\", \"function\": {\"name\": ...}}");
    return OK;
}

static Str join(Arena *arena, Str a, const char *b, Str c)
{
    return str_of(arena_printf(arena, "%.*s%s%.*s", (int)a.len, a.data, b, (int)c.len, c.data));
}

static Status take_names(Arena *arena, Str before, Str between, const StrList *names, ForcedCall *out)
{
    const Str none = {"", 0};
    Str       blanks = {between.data + between.len, 0};
    bool      is_one = names->count == 1;
    while (blanks.len < between.len && byte_is_blank(blanks.data[-1])) blanks = (Str){blanks.data - 1, blanks.len + 1};
    Str words = {between.data, between.len - blanks.len};
    out->names = arena_array(arena, const char *, names->count);
    out->leads = arena_array(arena, Str, names->count);
    for (size_t i = 0; i < names->count; i++) {
        FAIL_IF(!is_plain(names->items[i]), ERR_UNSUPPORTED,
                "a call of the function %.60s can't be forced: its name may have letters of ASCII, digits, _, - and .", names->items[i]);
        out->names[i] = arena_strdup(arena, names->items[i]);
        out->leads[i] = is_one ? join(arena, none, "", blanks) : join(arena, none, out->names[i], between);
    }
    out->opening = is_one ? join(arena, before, out->names[0], words) : join(arena, before, "", none);
    out->num = (int)names->count;
    return OK;
}

Status forced_call_find(Arena *arena, const Template *tmpl, const Tokenizer *tokenizer, const ChatMessages *chat, const StrList *names,
                        ForcedCall *out)
{
    Arena texts = {0};
    Str   before = {0}, between = {0};
    *out = (ForcedCall){0};
    Status status = find_call(&texts, tmpl, chat, &before, &between);
    if (status == OK && names->count > 1) status = check_between(tokenizer, between);
    if (status == OK) status = take_names(arena, before, between, names, out);
    arena_deinit(&texts);
    return status;
}

/* The longest lead that the text begins with; -1: none, or the text is the beginning of a longer lead, so it isn't settled. */
static int find_lead(const ForcedCall *forced, Str text)
{
    int found = -1;
    for (int i = 0; i < forced->num; i++) {
        Str lead = forced->leads[i];
        if (memcmp(text.data, lead.data, text.len < lead.len ? text.len : lead.len) != 0) continue;
        if (text.len < lead.len) return -1;
        if (found < 0 || lead.len > forced->leads[found].len) found = i;
    }
    return found;
}

int forced_call_read(const ForcedCall *forced, Str text, Str *out_arguments)
{
    int    found = find_lead(forced, text);
    size_t led = found < 0 ? text.len : forced->leads[found].len;
    *out_arguments = (Str){text.data + led, text.len - led};
    return forced->num == 1 ? 0 : found;
}

bool forced_call_is_whole(Str arguments)
{
    return object_len(arguments) > 0;
}
