/* What a template puts around plain answers, from three renderings: a question, a question with the generation prompt, and a
 * talk of two turns. */
#include "data/mask_turns.h"

#include <string.h>

#define SAID(role, text) "{\"role\": \"" role "\", \"content\": \"" text "\"}"
static const char question[] = "[" SAID("user", "zaoneq") "]";
static const char talk[] =
    "[" SAID("user", "zaoneq") ", " SAID("assistant", "zbtwoq") ", " SAID("user", "zcthreeq") ", " SAID("assistant", "zdfourq") "]";

typedef struct Talk {
    Str whole;
    Str opening; /* before the first answer */
    Str asked;   /* of that, what stands behind the question */
    Str middle;  /* behind the first answer, before the second question */
    Str ending;  /* behind the last answer */
} Talk;

static Status render(const MaskRules *rules, const char *conversation, bool add_prompt, TemplateOutput *out)
{
    Arena         arena = {0};
    JsonValue     messages;
    TemplateInput input = {.messages = &messages, .add_generation_prompt = add_prompt, .now_unix = rules->now_unix};
    Status        status = json_parse(&arena, "probe", conversation, strlen(conversation), &messages);
    if (status == OK) status = template_render(rules->tmpl, &input, out);
    arena_deinit(&arena);
    return status;
}

static Str text_of(const TemplateOutput *out)
{
    return (Str){strbuf_cstr(&out->text), out->text.len};
}

static size_t common_len(Str a, Str b)
{
    size_t n = 0;
    while (n < a.len && n < b.len && a.data[n] == b.data[n]) n++;
    return n;
}

static bool starts_with(Str text, Str prefix)
{
    return common_len(text, prefix) == prefix.len;
}

static bool ends_with(Str text, Str suffix)
{
    return text.len >= suffix.len && (suffix.len == 0 || memcmp(text.data + text.len - suffix.len, suffix.data, suffix.len) == 0);
}

static void put(StrBuf *out, Str text, size_t begin, size_t end)
{
    if (end > begin) strbuf_append(out, text.data + begin, end - begin);
}

static bool split_talk(Str whole, Talk *out)
{
    static const char *const said[] = {"zaoneq", "zbtwoq", "zcthreeq", "zdfourq"};
    Str                      parts[4]; /* before what is said */
    Str                      rest = whole;
    for (size_t i = 0; i < 4; i++) {
        const char *at = str_search(rest, str_of(said[i]));
        if (!at) return false;
        parts[i] = (Str){rest.data, (size_t)(at - rest.data)};
        rest = (Str){at + strlen(said[i]), rest.len - parts[i].len - strlen(said[i])};
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

/* The end of a stop: EOS, where it stands at `len` or behind stop tokens there, all before `alike`. */
static size_t through_eos(const Tokenizer *tokenizer, Str text, size_t len, size_t alike)
{
    const char *eos = tokenizer_id_to_token(tokenizer, tokenizer_eos_id(tokenizer));
    for (size_t at = len; eos && at < alike;) {
        Str next = first_stop(tokenizer, (Str){text.data + at, alike - at});
        if (next.len == 0 || next.data != text.data + at) break;
        at += next.len;
        if (str_equal(next, eos)) return at;
    }
    return len;
}

/* Of what stands behind every answer, the first `alike` bytes of `text`: how much of it ends answers. The last bytes may be
 * alike by chance (<|user|>, <|endoftext|>): what counts goes to its first stop token, with EOS right behind it, or, where it has
 * none, to a blank. */
static size_t stop_len(const Tokenizer *tokenizer, Str text, size_t alike)
{
    Str    stop = first_stop(tokenizer, text);
    size_t len = (size_t)(stop.data - text.data) + stop.len;
    if (stop.len > 0 && len <= alike) return through_eos(tokenizer, text, len, alike);
    for (len = alike; len > 0 && turns_trim_end((Str){text.data, len}).len == len;) len--;
    bool begins_blank = len > 0 && turns_trim_end((Str){text.data, 1}).len == 0;
    return begins_blank ? 0 : turns_trim_end((Str){text.data, len}).len;
}

/* Where the last answer ends with a stop token and others with another one: that stands behind questions too, and isn't what
 * the conversation begins with. */
static Str other_stop(const Tokenizer *tokenizer, const Talk *in)
{
    Str stop = first_stop(tokenizer, in->middle), begin = first_stop(tokenizer, in->whole);
    if (first_stop(tokenizer, in->ending).len == 0 || stop.len == 0) return (Str){0};
    size_t len = (size_t)(stop.data - in->middle.data) + stop.len;
    bool   opens = begin.len == stop.len && memcmp(begin.data, stop.data, stop.len) == 0;
    return opens || len > common_len(in->asked, in->middle) ? (Str){0} : (Str){in->middle.data, len};
}

/* What the middle and the ending begin with alike ends an answer. Where nothing is alike, the ending counts for the last answer,
 * unless it is what opens answers. */
static void find_stop(MaskRules *rules, const Talk *in)
{
    Str    ending = turns_trim_end(in->ending);
    size_t len = common_len(in->middle, ending);
    put(&rules->ending, ending, 0, ending.len);
    if (len < ending.len) len = stop_len(rules->tokenizer, ending, len);
    bool opens = len == 0 && ends_with(turns_trim_end(in->opening), ending);
    Str  stop = len > 0 || opens ? (Str){ending.data, len} : other_stop(rules->tokenizer, in);
    put(&rules->stop, stop, 0, stop.len);
    if (len > 0 || opens) put(&rules->tail, ending, len, ending.len);
}

static Str from(Str text, size_t begin)
{
    return begin < text.len ? (Str){text.data + begin, text.len - begin} : (Str){text.data, 0};
}

static Str trim_begin(Str text)
{
    while (text.len > 0 && turns_trim_end((Str){text.data, 1}).len == 0) text = from(text, 1);
    return text;
}

/* How much of an answer's header opens the turn: the generation prompt does, up to blanks around it, and the rest is what the
 * model says first. Where the two differ, or there is no prompt, nothing of the header is the model's. */
static size_t open_len(Str header, Str prompt)
{
    Str bare = trim_begin(header), want = trim_begin(prompt);
    if (want.len == 0) return bare.len == 0 ? 0 : header.len;
    if (starts_with(header, prompt)) return prompt.len;
    if (starts_with(want, bare)) return header.len;
    if (!starts_with(bare, want)) want = turns_trim_end(want);
    return starts_with(bare, want) ? header.len - bare.len + want.len : header.len;
}

/* What stands between a question's turn and its answer. `plain` and `prompted` are the question alone, without and with the
 * generation prompt. */
static void find_header(MaskRules *rules, const Talk *in, Str plain, Str prompted)
{
    Str opening = {strbuf_cstr(&rules->opening), rules->opening.len}, tail = trim_begin((Str){strbuf_cstr(&rules->tail), rules->tail.len});
    size_t asked = (size_t)(in->asked.data - in->whole.data), alike = common_len(in->opening, plain);
    bool   is_alike = alike == plain.len, has_opening = opening.len > 0 && ends_with(in->opening, opening);
    size_t begin = is_alike || !has_opening ? alike : in->opening.len - opening.len;
    Str    header = from(in->opening, begin), prompt = is_alike || has_opening ? opening : from(prompted, begin);
    rules->has_header = is_alike || has_opening || alike >= asked;
    if (!rules->has_header) return;
    bool asks_none = plain.len == prompted.len && starts_with(prompted, plain);
    rules->always_prompts = asks_none && (alike < plain.len || (tail.len > 0 && ends_with(turns_trim_end(plain), tail)));
    rules->header_open = rules->always_prompts && is_alike ? 0 : open_len(header, prompt);
    put(&rules->header, header, 0, header.len);
}

void turns_probe(MaskRules *rules)
{
    TemplateOutput plain = {0}, prompted = {0}, whole = {0};
    Talk           parts;
    Status         status = render(rules, question, false, &plain);
    if (status == OK) status = render(rules, question, true, &prompted);
    if (status == OK && plain.text.len > 0 && starts_with(text_of(&prompted), text_of(&plain)))
        put(&rules->opening, text_of(&prompted), plain.text.len, prompted.text.len);
    if (render(rules, talk, false, &whole) == OK && split_talk(text_of(&whole), &parts)) {
        find_stop(rules, &parts);
        if (status == OK) find_header(rules, &parts, text_of(&plain), text_of(&prompted));
    }
    status_clear(); /* of a template that can't render this nothing is known */
    template_output_deinit(&plain);
    template_output_deinit(&prompted);
    template_output_deinit(&whole);
}
