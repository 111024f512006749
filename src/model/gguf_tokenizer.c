/* Writes the tokenizer of a model's folder as keys of GGUF. There are two kinds. One is byte-level BPE: its rule for splitting text into
 * words must have a name in GGUF. The other is BPE made from SentencePiece: its merges become scores of tokens. */
#include "model/gguf_internal.h"

#include "base/log.h"
#include "base/scoped.h"
#include "model/stop_token.h"
#include "text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_FILE_BYTES = 256 << 20 };
#define MARK "\xe2\x96\x81" /* U+2581, which stands for a space */

enum { TOKEN_NORMAL = 1, TOKEN_UNKNOWN, TOKEN_CONTROL, TOKEN_USER, TOKEN_UNUSED, TOKEN_BYTE };

static const GgufPre pre_rows[] = {
#define GGUF_PRE(digits, pattern, ignore_merges, name) {digits, pattern, ignore_merges, name},
#include "model/gguf_pre.def"
#undef GGUF_PRE
};

const GgufPre *gguf_pre_at(int index)
{
    return (size_t)index < sizeof pre_rows / sizeof *pre_rows ? &pre_rows[index] : NULL;
}

typedef struct Words {
    const JsonValue *json; /* tokenizer.json */
    const char      *path;
    bool             is_bytes; /* byte-level BPE; false: made from SentencePiece */
    bool             prefix;   /* SentencePiece: a space is put before each text */
    const char      *pre;      /* byte-level: GGUF's name of the rule that splits text into words */
} Words;

/* ---- tokenizer.json ---- */

static const char *type_of(const JsonValue *part)
{
    const char *type = "";
    json_get_str(part, "type", &type);
    return type;
}

/* The steps of a normalizer or pre-tokenizer: `part` may be one step, a Sequence of steps, or null. */
static const JsonValue *steps_of(const JsonValue *part, const char *list_key, uint32_t *out_count)
{
    *out_count = 0;
    if (!part || part->type != JSON_OBJECT) return part;
    *out_count = 1;
    if (strcmp(type_of(part), "Sequence") != 0) return part;
    const JsonValue *list = json_get(part, list_key);
    *out_count = list && list->type == JSON_ARRAY ? list->count : 0;
    return list ? list->items : NULL;
}

static bool is_true(const JsonValue *step, const char *name, bool missing)
{
    json_get_bool(step, name, &missing);
    return missing;
}

static Status refuse_step(const Words *words, const char *part, const JsonValue *step)
{
    SCOPED_STRBUF(text);
    json_write(&text, step, -1);
    return status_fail(ERR_UNSUPPORTED, "%s: %s: a GGUF file can't say %.300s", words->path, part, strbuf_cstr(&text));
}

/* Whether the step is a Split that keeps both its matches and the text between them. *out: its expression. */
static bool read_split(const JsonValue *step, Str *out)
{
    const char      *behavior = "";
    const JsonValue *pattern = json_get(json_get(step, "pattern"), "Regex");
    json_get_str(step, "behavior", &behavior);
    bool is_whole = strcmp(behavior, "Isolated") == 0 || (strcmp(behavior, "Removed") == 0 && is_true(step, "invert", false));
    if (!pattern || pattern->type != JSON_STRING || !is_whole) return false;
    *out = pattern->string;
    return true;
}

static Status find_pre(Words *words, bool digits, Str pattern)
{
    bool           ignore_merges = is_true(json_get(words->json, "model"), "ignore_merges", false);
    const GgufPre *row;
    for (int i = 0; (row = gguf_pre_at(i)) != NULL; i++) {
        bool same = row->pattern ? pattern.data && str_equal(pattern, row->pattern) : !pattern.data;
        if (!same || row->digits != digits || row->ignore_merges != ignore_merges) continue;
        words->pre = row->name;
        return OK;
    }
    FAIL(ERR_UNSUPPORTED,
         "%s: pre_tokenizer: GGUF has no name for this rule of words (%s%.*s, ignore_merges %s), so that readers would make other tokens",
         words->path, digits ? "single digits, " : "", pattern.data ? (int)pattern.len : 9, pattern.data ? pattern.data : "ByteLevel",
         ignore_merges ? "true" : "false");
}

static Status read_byte_level(Words *words)
{
    uint32_t         count;
    const JsonValue *steps = steps_of(json_get(words->json, "pre_tokenizer"), "pretokenizers", &count);
    bool             digits = false, own = false;
    Str              pattern = {0};
    for (uint32_t i = 0; i < count; i++) {
        const JsonValue *step = &steps[i];
        bool             is_last = i + 1 == count;
        if (is_last && strcmp(type_of(step), "ByteLevel") == 0 && !is_true(step, "add_prefix_space", true))
            own = is_true(step, "use_regex", true);
        else if (i == 0 && strcmp(type_of(step), "Digits") == 0 && is_true(step, "individual_digits", false))
            digits = true;
        else if (pattern.data || strcmp(type_of(step), "Split") != 0 || !read_split(step, &pattern))
            return refuse_step(words, "pre_tokenizer", step);
    }
    if (own == (pattern.data != NULL)) return refuse_step(words, "pre_tokenizer", json_get(words->json, "pre_tokenizer"));
    return find_pre(words, digits, pattern);
}

static Status check_byte_normalizer(const Words *words)
{
    uint32_t         count;
    const JsonValue *steps = steps_of(json_get(words->json, "normalizer"), "normalizers", &count);
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(type_of(&steps[i]), "NFC") != 0) return refuse_step(words, "normalizer", &steps[i]);
    if (count) log_note(NULL, false, "%s: texts are put into Unicode's NFC here; llama.cpp takes them as they come", words->path);
    return OK;
}

/* Reads the normalizer: its steps may only prepend U+2581, or replace spaces by it. */
static Status read_marks(Words *words)
{
    uint32_t         count;
    const JsonValue *steps = steps_of(json_get(words->json, "normalizer"), "normalizers", &count);
    for (uint32_t i = 0; i < count; i++) {
        const char *text = "", *from = "";
        const char *type = type_of(&steps[i]);
        json_get_str(&steps[i], strcmp(type, "Prepend") == 0 ? "prepend" : "content", &text);
        json_get_str(json_get(&steps[i], "pattern"), "String", &from);
        bool is_prepend = strcmp(type, "Prepend") == 0, is_replace = strcmp(type, "Replace") == 0 && strcmp(from, " ") == 0;
        if ((!is_prepend && !is_replace) || strcmp(text, MARK) != 0) return refuse_step(words, "normalizer", &steps[i]);
        words->prefix |= is_prepend;
    }
    return OK;
}

static Status read_metaspace(Words *words, const JsonValue *step)
{
    const char *replacement = "", *scheme = is_true(step, "add_prefix_space", true) ? "always" : "never";
    json_get_str(step, "replacement", &replacement);
    json_get_str(step, "prepend_scheme", &scheme);
    if (strcmp(replacement, MARK) != 0 || is_true(step, "split", true)) return refuse_step(words, "pre_tokenizer", step);
    words->prefix |= strcmp(scheme, "never") != 0;
    if (strcmp(scheme, "first") == 0)
        log_note(NULL, false, "%s: a space comes before the first word alone; llama.cpp puts one behind special tokens within a text, too",
                 words->path);
    return OK;
}

static Status read_sentencepiece(Words *words)
{
    uint32_t         count;
    const JsonValue *steps = steps_of(json_get(words->json, "pre_tokenizer"), "pretokenizers", &count);
    TRY(read_marks(words));
    for (uint32_t i = 0; i < count; i++) {
        const char *type = type_of(&steps[i]), *literal = "";
        json_get_str(json_get(&steps[i], "pattern"), "String", &literal);
        if (strcmp(type, "Split") == 0 && strcmp(literal, " ") == 0) continue; /* no spaces are left to split at */
        if (strcmp(type, "Metaspace") != 0) return refuse_step(words, "pre_tokenizer", &steps[i]);
        TRY(read_metaspace(words, &steps[i]));
    }
    return OK;
}

static Status read_words(Words *words)
{
    const JsonValue *model = json_get(words->json, "model");
    uint32_t         count;
    const JsonValue *steps = steps_of(json_get(words->json, "pre_tokenizer"), "pretokenizers", &count);
    const char      *prefix = "", *suffix = "";
    json_get_str(model, "continuing_subword_prefix", &prefix);
    json_get_str(model, "end_of_word_suffix", &suffix);
    FAIL_IF(*prefix || *suffix, ERR_UNSUPPORTED, "%s: model: a GGUF file can't say continuing_subword_prefix and end_of_word_suffix",
            words->path);
    words->is_bytes = count && strcmp(type_of(&steps[count - 1]), "ByteLevel") == 0;
    if (words->is_bytes) {
        TRY(check_byte_normalizer(words));
        return read_byte_level(words);
    }
    FAIL_IF(!is_true(model, "byte_fallback", false), ERR_UNSUPPORTED,
            "%s: a GGUF file can say byte-level BPE, and BPE with byte_fallback as SentencePiece has it; this is neither", words->path);
    return read_sentencepiece(words);
}

/* ---- tokens ---- */

static bool is_byte_token(Str text)
{
    return text.len == 6 && memcmp(text.data, "<0x", 3) == 0 && text.data[5] == '>' && strchr("0123456789ABCDEF", text.data[3]) &&
           strchr("0123456789ABCDEF", text.data[4]);
}

/* The text of an added token (not of a control token) as it occurs in text to encode: with a space for each U+2581. */
static Str spaced(Arena *arena, const char *text)
{
    SCOPED_STRBUF(out);
    for (const char *mark; (mark = strstr(text, MARK)); text = mark + strlen(MARK)) {
        strbuf_append(&out, text, (size_t)(mark - text));
        strbuf_putc(&out, ' ');
    }
    strbuf_puts(&out, text);
    return (Str){arena_strndup(arena, strbuf_cstr(&out), out.len), out.len};
}

static void describe_token(Arena *arena, const Words *words, const Tokenizer *tokenizer, int32_t unk, int32_t id, Str *out_text,
                           int32_t *out_type)
{
    const char *text = tokenizer_id_to_token(tokenizer, id);
    if (!text) {
        *out_text = str_of(arena_printf(arena, "[PAD%d]", id));
        *out_type = TOKEN_UNUSED;
        return;
    }
    bool is_special = tokenizer_is_special(tokenizer, id), is_user = tokenizer_is_added(tokenizer, id) && !is_special;
    *out_text = is_user ? spaced(arena, text) : str_of(text);
    *out_type = is_special ? TOKEN_CONTROL : is_user ? TOKEN_USER : TOKEN_NORMAL;
    if (!words->is_bytes && id == unk) *out_type = TOKEN_UNKNOWN;
    if (!words->is_bytes && *out_type == TOKEN_NORMAL && is_byte_token(*out_text)) *out_type = TOKEN_BYTE;
}

static Status put_tokens(Arena *arena, const HfModel *model, const Words *words, const Tokenizer *tokenizer, int32_t unk, GgufKeys *keys)
{
    int32_t  count = (int32_t)model->vocab_size, known = tokenizer_vocab_size(tokenizer);
    Str     *texts = arena_array(arena, Str, count);
    int32_t *types = arena_array(arena, int32_t, count);
    FAIL_IF(known > count, ERR_INVALID, "%s: the tokenizer has ids up to %d, %s says %s %d: which is wrong?", words->path, known - 1,
            model->config_name, model->vocab_key ? model->vocab_key : "vocab_size", count);
    for (int32_t id = 0; id < count; id++) describe_token(arena, words, tokenizer, unk, id, &texts[id], &types[id]);
    gguf_put_strs(keys, "tokenizer.ggml.tokens", texts, (size_t)count);
    gguf_put_i32s(keys, "tokenizer.ggml.token_type", types, (size_t)count);
    return OK;
}

static void put_scores(Arena *arena, const HfModel *model, const Words *words, const Tokenizer *tokenizer, GgufKeys *keys)
{
    float *scores = arena_array(arena, float, model->vocab_size);
    size_t different = tokenizer_scores(tokenizer, scores);
    gguf_put_f32s(keys, "tokenizer.ggml.scores", scores, (size_t)model->vocab_size);
    if (different)
        log_note(NULL, true, "%s: %zu merges aren't as SentencePiece has them: of rare texts llama.cpp can make other tokens", words->path,
                 different);
}

/* A merge as "a b"; a space within a part is written as U+0120. */
static Str merge_text(Arena *arena, const JsonValue *merge)
{
    if (merge->type == JSON_STRING) return merge->string;
    SCOPED_STRBUF(out);
    for (uint32_t k = 0; k < merge->count; k++) {
        Str part = merge->items[k].string;
        if (k) strbuf_putc(&out, ' ');
        for (size_t i = 0; i < part.len; i++)
            strbuf_append(&out, part.data[i] == ' ' ? "\xc4\xa0" : &part.data[i], part.data[i] == ' ' ? 2 : 1);
    }
    return (Str){arena_strndup(arena, strbuf_cstr(&out), out.len), out.len};
}

/* Each merge is a text, or a pair of texts: loading the tokenizer has checked that. */
static void put_merges(Arena *arena, const Words *words, GgufKeys *keys)
{
    const JsonValue *merges = json_get(json_get(words->json, "model"), "merges");
    Str             *texts = arena_array(arena, Str, merges->count + 1);
    for (uint32_t i = 0; i < merges->count; i++) texts[i] = merge_text(arena, &merges->items[i]);
    gguf_put_strs(keys, "tokenizer.ggml.merges", texts, merges->count);
}

/* ---- special tokens and templates ---- */

/* *out_bos, *out_eos: whether BOS goes before a text, and EOS after it. GGUF can't express other tokens there. */
static Status find_ends(const Words *words, const Tokenizer *tokenizer, bool *out_bos, bool *out_eos)
{
    TokenizerScratch                 *scratch = tokenizer_scratch_create(tokenizer);
    SCOPED(token_ids_deinit) TokenIds bare = {0}, whole = {0};
    Status                            status = tokenizer_encode(tokenizer, scratch, "a", 1, (EncodeOptions){0}, &bare);
    if (status == OK) status = tokenizer_encode(tokenizer, scratch, "a", 1, (EncodeOptions){.add_special = true}, &whole);
    tokenizer_scratch_destroy(scratch);
    TRY(status);
    size_t added = whole.len - bare.len;
    *out_bos = added && whole.data[0] == tokenizer_bos_id(tokenizer) && whole.data[0] != bare.data[0];
    *out_eos = added > *out_bos && whole.data[whole.len - 1] == tokenizer_eos_id(tokenizer);
    FAIL_IF(added != (size_t)*out_bos + *out_eos, ERR_UNSUPPORTED,
            "%s: post_processor: a GGUF file can say BOS before a text and EOS behind it, no other tokens", words->path);
    return OK;
}

static void put_id(GgufKeys *keys, const char *name, int32_t id)
{
    if (id >= 0) gguf_put_u32(keys, name, (uint32_t)id);
}

static Status put_special(const Words *words, const Tokenizer *tokenizer, int32_t unk, GgufKeys *keys)
{
    bool add_bos, add_eos;
    TRY(find_ends(words, tokenizer, &add_bos, &add_eos));
    put_id(keys, "tokenizer.ggml.bos_token_id", tokenizer_bos_id(tokenizer));
    put_id(keys, "tokenizer.ggml.eos_token_id", tokenizer_eos_id(tokenizer));
    put_id(keys, "tokenizer.ggml.unknown_token_id", unk);
    put_id(keys, "tokenizer.ggml.padding_token_id", tokenizer_pad_id(tokenizer));
    gguf_put_bool(keys, "tokenizer.ggml.add_bos_token", add_bos);
    gguf_put_bool(keys, "tokenizer.ggml.add_eos_token", add_eos);
    if (!words->is_bytes) gguf_put_bool(keys, "tokenizer.ggml.add_space_prefix", words->prefix);
    if (tokenizer_eos_id(tokenizer) < 0)
        log_note(NULL, true, "%s: no token ends a text; llama.cpp takes one of its own choice for that", words->path);
    return OK;
}

/* Reads a file of the model's folder; data NULL: it doesn't exist. */
static Status read_beside(Arena *arena, const HfModel *model, const char *name, Str *out)
{
    const char *path = arena_printf(arena, "%s/%s", model->dir, name);
    bool        is_there;
    *out = (Str){0};
    TRY(file_exists(path, &is_there));
    return is_there ? file_read(arena, path, MAX_FILE_BYTES, out) : OK;
}

static void put_named_templates(Arena *arena, const JsonValue *list, GgufKeys *keys)
{
    Str     *names = arena_array(arena, Str, list->count + 1);
    uint32_t count = 0;
    for (uint32_t i = 0; i < list->count; i++) {
        const JsonValue *name = json_get(&list->items[i], "name"), *text = json_get(&list->items[i], "template");
        if (!name || name->type != JSON_STRING || !text || text->type != JSON_STRING) continue;
        bool is_default = str_equal(name->string, "default");
        gguf_put_str(keys, is_default ? "tokenizer.chat_template" : arena_printf(arena, "tokenizer.chat_template.%s", name->string.data),
                     text->string);
        if (!is_default) names[count++] = name->string;
    }
    if (count) gguf_put_strs(keys, "tokenizer.chat_templates", names, count);
}

static Status put_templates(Arena *arena, const HfModel *model, GgufKeys *keys)
{
    Str       text;
    JsonValue config;
    TRY(read_beside(arena, model, "chat_template.jinja", &text));
    if (text.data) {
        gguf_put_str(keys, "tokenizer.chat_template", text);
        return OK;
    }
    TRY(read_beside(arena, model, "tokenizer_config.json", &text));
    if (!text.data) return OK;
    TRY(json_parse(arena, arena_printf(arena, "%s/tokenizer_config.json", model->dir), text.data, text.len, &config));
    const JsonValue *template = json_get(&config, "chat_template");
    if (template && template->type == JSON_STRING) gguf_put_str(keys, "tokenizer.chat_template", template->string);
    if (template && template->type == JSON_ARRAY) put_named_templates(arena, template, keys);
    return OK;
}

/* Puts the id of the token that ends a turn, if that isn't EOS. */
static Status put_turn_end(const HfModel *model, const Tokenizer *tokenizer, GgufKeys *keys)
{
    Template *template = NULL;
    int32_t id = -1;
    if (template_load(model->dir, NULL, false, &template) != OK) {
        log_note(NULL, false, "the chat template is written as it is; here it can't be read: %s", status_message());
        status_clear();
        return OK;
    }
    if (!template) return OK;
    Status status = stop_token_find(tokenizer, template, &id);
    template_destroy(template);
    if (status == OK && id != tokenizer_eos_id(tokenizer)) put_id(keys, "tokenizer.ggml.eot_token_id", id);
    return status;
}

/* ---- all ---- */

static Status put_all(Arena *arena, const HfModel *model, Words *words, const Tokenizer *tokenizer, GgufKeys *keys)
{
    const JsonValue *unk_text = json_get(json_get(words->json, "model"), "unk_token");
    int32_t          unk = -1;
    TRY(read_words(words));
    for (int32_t id = 0; unk_text && unk_text->type == JSON_STRING && id < tokenizer_vocab_size(tokenizer) && unk < 0; id++) {
        const char *token = tokenizer_id_to_token(tokenizer, id);
        if (token && str_equal(unk_text->string, token)) unk = id;
    }
    gguf_put_str(keys, "tokenizer.ggml.model", str_of(words->is_bytes ? "gpt2" : "llama"));
    gguf_put_str(keys, "tokenizer.ggml.pre", str_of(words->is_bytes ? words->pre : "default"));
    TRY(put_tokens(arena, model, words, tokenizer, unk, keys));
    if (words->is_bytes)
        put_merges(arena, words, keys);
    else
        put_scores(arena, model, words, tokenizer, keys);
    TRY(put_special(words, tokenizer, unk, keys));
    TRY(put_templates(arena, model, keys));
    return put_turn_end(model, tokenizer, keys);
}

static bool has_token(const Tokenizer *tokenizer, const char *text)
{
    for (int32_t id = 0; id < tokenizer_vocab_size(tokenizer); id++) {
        const char *token = tokenizer_id_to_token(tokenizer, id);
        if (token && strcmp(token, text) == 0) return true;
    }
    return false;
}

/* general.name. It is `name`, but "model" if `name` says Phi-3 and one of the tokens is missing that llama.cpp requires of such a model. */
static const char *name_for(const Tokenizer *tokenizer, const char *name)
{
    static const char *const tokens[] = {"</s>", "<unk>", "<s>", "<|endoftext|>"};
    if (!strcasestr(name, "phi-3") && !strcasestr(name, "phi3")) return name;
    for (int i = 0; i < 4; i++)
        if (!has_token(tokenizer, tokens[i])) return "model";
    return name;
}

Status gguf_put_tokenizer(Arena *arena, const HfModel *model, const char *dir, const char *name, GgufKeys *keys)
{
    Words      words = {.path = arena_printf(arena, "%s/tokenizer.json", dir)};
    Str        text;
    JsonValue  json;
    Tokenizer *tokenizer;
    TRY(read_beside(arena, model, "tokenizer.json", &text));
    if (!text.data) {
        gguf_put_str(keys, "general.name", str_of(name));
        gguf_put_str(keys, "tokenizer.ggml.model", str_of("none"));
        log_note(NULL, true, "%s isn't there: the file has no tokenizer, and takes and gives token ids alone", words.path);
        return OK;
    }
    TRY(json_parse(arena, words.path, text.data, text.len, &json));
    TRY(tokenizer_load(model->dir, &tokenizer));
    gguf_put_str(keys, "general.name", str_of(name_for(tokenizer, name)));
    words.json = &json;
    Status status = put_all(arena, model, &words, tokenizer, keys);
    tokenizer_destroy(tokenizer);
    return status;
}
