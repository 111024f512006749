/* What a template puts around plain answers, from three renderings: a question, a question with the generation prompt, and a
 * talk of two turns. */
#include "data/mask_turns.h"

#include "base/str.h"

#include <string.h>

#define SAID(role, text) "{\"role\": \"" role "\", \"content\": \"" text "\"}"
static const char question[] = "[" SAID("user", "zaoneq") "]";
static const char talk[] =
    "[" SAID("user", "zaoneq") ", " SAID("assistant", "zbtwoq") ", " SAID("user", "zcthreeq") ", " SAID("assistant", "zdfourq") "]";

typedef struct Talk {
    Str whole;
    Str opening; /* all text before the first answer */
    Str asked;   /* the end of `opening`: all text after the question */
    Str middle;  /* all text after the first answer, before the second question */
    Str ending;  /* all text after the last answer */
} Talk;

Str turns_probe_text(MaskRules *rules, const char *conversation, const char *tools, bool add_prompt)
{
    JsonValue     messages, list;
    TemplateInput input = {
        .messages = &messages, .tools = tools ? &list : NULL, .add_generation_prompt = add_prompt, .now_unix = rules->now_unix};
    TemplateOutput out = {0};
    Str            text = {0};
    Status         status = json_parse(&rules->arena, "probe", conversation, strlen(conversation), &messages);
    if (status == OK && tools) status = json_parse(&rules->arena, "probe", tools, strlen(tools), &list);
    if (status == OK) status = template_render(rules->tmpl, &input, &out);
    if (status == OK) text = (Str){arena_strndup(&rules->arena, strbuf_cstr(&out.text), out.text.len), out.text.len};
    status_clear();
    template_output_deinit(&out);
    return text;
}

static bool split_talk(Str whole, Talk *out)
{
    static const char *const said[] = {"zaoneq", "zbtwoq", "zcthreeq", "zdfourq"};
    Str                      parts[4]; /* the texts before said[0], said[1], ... */
    Str                      rest = whole;
    for (size_t i = 0; i < 4; i++) {
        const char *at = str_search(rest, str_of(said[i]));
        if (!at) return false;
        parts[i] = (Str){rest.data, (size_t)(at - rest.data)};
        rest = str_slice(rest, parts[i].len + strlen(said[i]), rest.len);
    }
    Str opening = {whole.data, (size_t)(parts[1].data - whole.data) + parts[1].len};
    *out = (Talk){.whole = whole, .opening = opening, .asked = parts[1], .middle = parts[2], .ending = rest};
    return true;
}

/* The first stop token in a text, other than BOS at its begin; len 0: there is none. */
static Str first_stop(const Tokenizer *tokenizer, Str text)
{
    TokenizerScratch *scratch = tokenizer_scratch_create(tokenizer);
    TokenIds          ids = {0};
    Str               found = {text.data, 0};
    if (tokenizer_encode(tokenizer, scratch, text.data, text.len, (EncodeOptions){0}, &ids) != OK) ids.len = 0;
    for (size_t i = 0; i < ids.len && found.len == 0; i++) {
        if (!turns_is_stop(tokenizer, ids.data[i]) || (i == 0 && ids.data[i] == tokenizer_bos_id(tokenizer))) continue;
        Str         token = str_of(tokenizer_id_to_token(tokenizer, ids.data[i]));
        const char *at = str_search(text, token);
        if (at) found = (Str){at, token.len};
    }
    token_ids_deinit(&ids);
    tokenizer_scratch_destroy(scratch);
    return found;
}

/* The end of a stop whose first token ends at `len`. If EOS follows, directly or after more stop tokens, and within the first `alike`
 * bytes: after EOS. Else: `len`. */
static size_t through_eos(const Tokenizer *tokenizer, Str text, size_t len, size_t alike)
{
    const char *eos = tokenizer_id_to_token(tokenizer, tokenizer_eos_id(tokenizer));
    for (size_t at = len; eos && at < alike;) {
        Str next = first_stop(tokenizer, str_slice(text, at, alike));
        if (next.len == 0 || next.data != text.data + at) break;
        at += next.len;
        if (str_equal(next, eos)) return at;
    }
    return len;
}

/* How many of the first `alike` bytes of `text` are an answer's stop; these bytes follow every answer. The last of them may be alike only
 * by chance (<|user|>, <|endoftext|>). So the stop ends with its first stop token, or with EOS right after that token. Without a stop token
 * it ends at the last blank (and is empty if `text` begins with a blank). */
static size_t stop_len(const Tokenizer *tokenizer, Str text, size_t alike)
{
    Str    stop = first_stop(tokenizer, text);
    size_t len = (size_t)(stop.data - text.data) + stop.len;
    if (stop.len > 0 && len <= alike) return through_eos(tokenizer, text, len, alike);
    for (len = alike; len > 0 && !byte_is_blank(text.data[len - 1]);) len--;
    bool begins_blank = len > 0 && byte_is_blank(text.data[0]);
    return begins_blank ? 0 : str_trim_end((Str){text.data, len}).len;
}

/* For a template that ends the last answer with another stop token: the stop of all earlier answers. Empty if questions don't end with this
 * stop too, or if the conversation begins with it. */
static Str other_stop(const Tokenizer *tokenizer, const Talk *in)
{
    Str stop = first_stop(tokenizer, in->middle), begin = first_stop(tokenizer, in->whole);
    if (first_stop(tokenizer, in->ending).len == 0 || stop.len == 0) return (Str){0};
    size_t len = (size_t)(stop.data - in->middle.data) + stop.len;
    return str_same(begin, stop) || len > str_common(in->asked, in->middle) ? (Str){0} : (Str){in->middle.data, len};
}

/* The common beginning of `middle` and `ending` is the stop of an answer. If it is empty, the ending is the last answer's own stop, unless
 * the ending opens answers. */
static void find_stop(MaskRules *rules, const Talk *in)
{
    Str    ending = str_trim_end(in->ending);
    size_t len = str_common(in->middle, ending);
    rules->ending = ending;
    if (len < ending.len) len = stop_len(rules->tokenizer, ending, len);
    bool opens = len == 0 && str_ends(str_trim_end(in->opening), ending);
    rules->stops[0] = len > 0 || opens ? (Str){ending.data, len} : other_stop(rules->tokenizer, in);
    if (len > 0 || opens) rules->tail = str_slice(ending, len, ending.len);
}

static Str trim_begin(Str text)
{
    while (text.len > 0 && byte_is_blank(text.data[0])) text = str_slice(text, 1, text.len);
    return text;
}

/* How many bytes of an answer's header open the turn: as many as the generation prompt has, if it and the header agree apart from blanks
 * around them. The model generates the rest of the header. If they differ, or there is no prompt, the whole header opens the turn. */
static size_t open_len(Str header, Str prompt)
{
    Str bare = trim_begin(header), want = trim_begin(prompt);
    if (want.len == 0) return bare.len == 0 ? 0 : header.len;
    if (str_starts(header, prompt)) return prompt.len;
    if (str_starts(want, bare)) return header.len;
    if (!str_starts(bare, want)) want = str_trim_end(want);
    return str_starts(bare, want) ? header.len - bare.len + want.len : header.len;
}

/* `at`, or the start of the tag that `at` is inside of. So texts that differ inside a tag (<|im_start|>, <|im_end|>) differ from its start
 * on. */
static size_t before_tag(Str text, size_t at, size_t least)
{
    size_t open = at;
    while (open > least && !strchr("<>[] \n", text.data[open - 1])) open--;
    return open > least && strchr("<[", text.data[open - 1]) ? open - 1 : at;
}

/* Finds the header, the text between a question's turn and the answer's content. `plain` and `prompted` are the question alone, without
 * and with the generation prompt. */
static void find_header(MaskRules *rules, const Talk *in, Str plain, Str prompted)
{
    Str    opening = rules->opening, tail = trim_begin(rules->tail);
    size_t asked = (size_t)(in->asked.data - in->whole.data), alike = str_common(in->opening, plain);
    bool   is_alike = alike == plain.len, has_opening = opening.len > 0 && str_ends(in->opening, opening);
    rules->has_header = is_alike || has_opening || alike >= asked;
    if (!rules->has_header) return;
    size_t begin = is_alike ? alike : has_opening ? in->opening.len - opening.len : before_tag(plain, alike, asked);
    bool   asks_none = plain.len == prompted.len && str_starts(prompted, plain);
    bool   is_shared = !is_alike && !has_opening && str_starts(prompted, (Str){plain.data, begin});
    Str    header = str_slice(in->opening, begin, in->opening.len), prompt = is_shared ? str_slice(prompted, begin, prompted.len) : opening;
    if (is_shared && !asks_none && opening.len == 0) rules->opening = prompt; /* without this prompt, the end of the talk differs */
    rules->always_prompts = asks_none && (alike < plain.len || (tail.len > 0 && str_ends(str_trim_end(plain), tail)));
    rules->header_open = rules->always_prompts && is_alike ? 0 : open_len(header, prompt);
    rules->never_prompts = asks_none && !rules->always_prompts;
    rules->header = header;
}

void turns_probe(MaskRules *rules)
{
    Talk parts;
    Str  plain = turns_probe_text(rules, question, NULL, false), prompted = turns_probe_text(rules, question, NULL, true);
    bool is_asked = plain.data && prompted.data;
    if (is_asked && plain.len > 0 && str_starts(prompted, plain)) rules->opening = str_slice(prompted, plain.len, prompted.len);
    if (!split_talk(turns_probe_text(rules, talk, NULL, false), &parts)) return; /* the template can't render the talk: nothing is known */
    find_stop(rules, &parts);
    if (is_asked) find_header(rules, &parts, plain, prompted);
}
