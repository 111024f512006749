/* tokenizer.json from the tokens of a GGUF file. */
#include "model/gguf_import_internal.h"

#include "base/hash.h"
#include "base/log.h"
#include "base/scoped.h"
#include "text/tokenizer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MARK "\xe2\x96\x81" /* U+2581, which stands for a space */

enum { MOST_TOKEN_BYTES = 4096 };
enum { TOKEN_NORMAL = 1, TOKEN_UNKNOWN, TOKEN_CONTROL, TOKEN_USER, TOKEN_UNUSED, TOKEN_BYTE };

typedef struct Tokens {
    Import   *import;
    Str      *texts;
    double   *types;
    size_t    count;
    uint32_t *slots; /* hash table of the tokens that merges may make: from text to id + 1; 0: empty slot */
    uint64_t  slot_mask;
    bool      adds_bos; /* whether BOS goes before a text if the file has no key that says so; set by the rule for words */
} Tokens;

static bool is_same(Str a, Str b)
{
    return a.len == b.len && memcmp(a.data, b.data, a.len) == 0;
}

static bool is_added(const Tokens *tokens, size_t id)
{
    return tokens->types[id] == TOKEN_CONTROL || tokens->types[id] == TOKEN_USER || tokens->types[id] == TOKEN_UNKNOWN;
}

static int32_t special_id(const Tokens *tokens, const char *name)
{
    double id;
    char   key[64];
    snprintf(key, sizeof key, "tokenizer.ggml.%s_token_id", name);
    bool has = gguf_get_number(tokens->import->file, key, &id) && id >= 0 && id < (double)tokens->count;
    return has ? (int32_t)id : -1;
}

static Status write_text(Import *import, const char *name, const StrBuf *text)
{
    return file_write_atomic(arena_printf(&import->arena, "%s/%s", import->folder, name), text->data, text->len);
}

/* ---- tokens by text ---- */

static void build_slots(Tokens *tokens)
{
    uint64_t size = 16;
    while (size < 2 * tokens->count + 2) size *= 2;
    tokens->slots = arena_array(&tokens->import->arena, uint32_t, size);
    tokens->slot_mask = size - 1;
    for (size_t id = 0; id < tokens->count; id++) {
        if (tokens->types[id] != TOKEN_NORMAL) continue;
        uint64_t at = hash_bytes(tokens->texts[id].data, tokens->texts[id].len, 0) & tokens->slot_mask;
        while (tokens->slots[at]) at = (at + 1) & tokens->slot_mask;
        tokens->slots[at] = (uint32_t)id + 1;
    }
}

static int32_t find_token(const Tokens *tokens, Str text)
{
    uint64_t at = hash_bytes(text.data, text.len, 0) & tokens->slot_mask;
    while (tokens->slots[at] && !is_same(tokens->texts[tokens->slots[at] - 1], text)) at = (at + 1) & tokens->slot_mask;
    return (int32_t)tokens->slots[at] - 1;
}

/* ---- merges ---- */

/* A merge of SentencePiece: any two tokens whose texts join to the text of a token. */
typedef struct Merge {
    double   score;
    uint32_t id, split; /* split: bytes of the left part */
} Merge;

static int by_score(const void *a, const void *b)
{
    const Merge *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    if (x->id != y->id) return x->id < y->id ? -1 : 1;
    return (x->split > y->split) - (x->split < y->split);
}

static void put_pair(StrBuf *out, bool is_first, Str left, Str right)
{
    strbuf_puts(out, is_first ? "\n      [" : ",\n      [");
    json_write_string(out, left.data, left.len);
    strbuf_puts(out, ", ");
    json_write_string(out, right.data, right.len);
    strbuf_puts(out, "]");
}

static void find_merges(const Tokens *tokens, const double *scores, StrBuf *found)
{
    for (size_t id = 0; id < tokens->count; id++) {
        Str text = tokens->texts[id];
        if (tokens->types[id] != TOKEN_NORMAL) continue;
        for (size_t at = 1; at < text.len; at++) {
            Str left = {text.data, at}, right = {text.data + at, text.len - at};
            if ((text.data[at] & 0xC0) == 0x80 || find_token(tokens, left) < 0 || find_token(tokens, right) < 0) continue;
            Merge merge = {scores[id], (uint32_t)id, (uint32_t)at};
            strbuf_append(found, &merge, sizeof merge);
        }
    }
}

static Status put_scored_merges(Tokens *tokens, StrBuf *out)
{
    double *scores;
    size_t  count;
    SCOPED_STRBUF(found);
    bool has = gguf_get_numbers(&tokens->import->arena, tokens->import->file, "tokenizer.ggml.scores", &scores, &count);
    FAIL_IF(!has || count != tokens->count, ERR_INVALID, "%s: tokenizer.ggml.scores: expected %zu numbers", tokens->import->path,
            tokens->count);
    for (size_t i = 0; i < count; i++)
        FAIL_IF(!isfinite(scores[i]), ERR_INVALID, "%s: tokenizer.ggml.scores: a number isn't finite", tokens->import->path);
    find_merges(tokens, scores, &found);
    Merge *merges = (Merge *)(void *)found.data;
    size_t num = found.len / sizeof *merges;
    if (num) qsort(merges, num, sizeof *merges, by_score);
    for (size_t i = 0; i < num; i++) {
        Str text = tokens->texts[merges[i].id];
        put_pair(out, i == 0, (Str){text.data, merges[i].split}, (Str){text.data + merges[i].split, text.len - merges[i].split});
    }
    return OK;
}

static Status put_listed_merges(Tokens *tokens, StrBuf *out)
{
    Str   *merges;
    size_t count;
    FAIL_IF(!gguf_get_strs(&tokens->import->arena, tokens->import->file, "tokenizer.ggml.merges", &merges, &count), ERR_INVALID,
            "%s: tokenizer.ggml.merges is missing", tokens->import->path);
    for (size_t i = 0; i < count; i++) {
        const char *space = merges[i].len > 1 ? memchr(merges[i].data + 1, ' ', merges[i].len - 1) : NULL;
        FAIL_IF(!space, ERR_INVALID, "%s: tokenizer.ggml.merges: number %zu has no space between two parts", tokens->import->path, i);
        size_t left = (size_t)(space - merges[i].data);
        put_pair(out, i == 0, (Str){merges[i].data, left}, (Str){space + 1, merges[i].len - left - 1});
    }
    return OK;
}

/* ---- tokenizer.json ---- */

static void put_added(const Tokens *tokens, StrBuf *out)
{
    const char *comma = "";
    strbuf_puts(out, "  \"added_tokens\": [");
    for (size_t id = 0; id < tokens->count; id++) {
        if (!is_added(tokens, id)) continue;
        strbuf_printf(out, "%s\n    {\"id\": %zu, \"content\": ", comma, id);
        json_write_string(out, tokens->texts[id].data, tokens->texts[id].len);
        strbuf_printf(out, ", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, \"special\": %s}",
                      tokens->types[id] == TOKEN_USER ? "false" : "true");
        comma = ",";
    }
    strbuf_puts(out, "\n  ],\n");
}

static bool is_word(const Tokens *tokens, size_t id)
{
    return tokens->types[id] == TOKEN_NORMAL || tokens->types[id] == TOKEN_BYTE || tokens->types[id] == TOKEN_UNKNOWN;
}

/* Writes all ids up to the last word's, including ids of added and unused tokens. If ids were left out, added tokens that aren't words
 * would get wrong ids: readers take the vocabulary's size as the next id. */
static void put_vocab(const Tokens *tokens, StrBuf *out)
{
    const char *comma = "";
    size_t      end = tokens->count;
    while (end > 0 && !is_word(tokens, end - 1)) end--;
    strbuf_puts(out, "    \"vocab\": {");
    for (size_t id = 0; id < end; id++) {
        strbuf_printf(out, "%s\n      ", comma);
        json_write_string(out, tokens->texts[id].data, tokens->texts[id].len);
        strbuf_printf(out, ": %zu", id);
        comma = ",";
    }
    strbuf_puts(out, "\n    },\n");
}

static Status put_byte_words(const Tokens *tokens, const GgufPre *pre, StrBuf *out)
{
    bool is_nfc = strncmp(pre->name, "qwen", 4) == 0;
    strbuf_printf(out, "  \"normalizer\": %s,\n  \"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [",
                  is_nfc ? "{\"type\": \"NFC\"}" : "null");
    if (pre->digits) strbuf_puts(out, "{\"type\": \"Digits\", \"individual_digits\": true}, ");
    if (pre->pattern) {
        strbuf_puts(out, "{\"type\": \"Split\", \"pattern\": {\"Regex\": ");
        json_write_string(out, pre->pattern, strlen(pre->pattern));
        strbuf_puts(out, "}, \"behavior\": \"Isolated\", \"invert\": false}, ");
    }
    strbuf_printf(out, "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": false, \"use_regex\": %s}]},\n",
                  pre->pattern ? "false" : "true");
    strbuf_puts(
        out,
        "  \"post_processor\": null,\n  \"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"trim_offsets\": true, \"use_regex\": true},\n");
    (void)tokens;
    return OK;
}

static void put_marked_words(const Tokens *tokens, StrBuf *out)
{
    bool prefix = true;
    gguf_get_bool(tokens->import->file, "tokenizer.ggml.add_space_prefix", &prefix);
    strbuf_printf(out,
                  "  \"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [%s"
                  "{\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, \"content\": \"" MARK "\"}]},\n",
                  prefix ? "{\"type\": \"Prepend\", \"prepend\": \"" MARK "\"}, " : "");
    strbuf_puts(out, "  \"pre_tokenizer\": null,\n  \"post_processor\": null,\n  \"decoder\": {\"type\": \"Sequence\", \"decoders\": ["
                     "{\"type\": \"Replace\", \"pattern\": {\"String\": \"" MARK "\"}, \"content\": \" \"}, {\"type\": \"ByteFallback\"}, "
                     "{\"type\": \"Fuse\"}");
    strbuf_puts(out, prefix ? ", {\"type\": \"Strip\", \"content\": \" \", \"start\": 1, \"stop\": 0}]},\n" : "]},\n");
}

static Status find_pre(const Tokens *tokens, const GgufPre **out)
{
    static const char *const aliases[][2] = {{"llama3", "llama-bpe"}, {"llama-v3", "llama-bpe"}, {"phi-2", "gpt-2"},
                                             {"smaug-bpe", "dbrx"},   {"olmo", "gpt-2"},         {"deepseek-r1-qwen", "qwen2"}};
    Str                      name = {"missing", 7};
    gguf_get_str(tokens->import->file, "tokenizer.ggml.pre", &name);
    for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++)
        if (str_equal(name, aliases[i][0])) name = str_of(aliases[i][1]);
    for (int i = 0; (*out = gguf_pre_at(i)) != NULL; i++)
        if (str_equal(name, (*out)->name)) return OK;
    FAIL(ERR_UNSUPPORTED, "%s: tokenizer.ggml.pre: the rule of words \"%.*s\" isn't known", tokens->import->path, GGUF_SHOWN(name, 40));
}

static Status put_tokenizer(Tokens *tokens, bool is_bytes, StrBuf *out)
{
    const GgufPre *pre = NULL;
    int32_t        unk = special_id(tokens, "unknown");
    if (is_bytes) TRY(find_pre(tokens, &pre));
    tokens->adds_bos = pre && pre->ignore_merges; /* true for llama-bpe and tekken only */
    strbuf_puts(out, "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n");
    put_added(tokens, out);
    if (is_bytes)
        TRY(put_byte_words(tokens, pre, out));
    else
        put_marked_words(tokens, out);
    strbuf_puts(out, "  \"model\": {\n    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": ");
    if (!is_bytes && unk >= 0)
        json_write_string(out, tokens->texts[unk].data, tokens->texts[unk].len);
    else
        strbuf_puts(out, "null");
    strbuf_printf(out, ",\n    \"fuse_unk\": %s,\n    \"byte_fallback\": %s,\n    \"ignore_merges\": %s,\n", is_bytes ? "false" : "true",
                  is_bytes ? "false" : "true", pre && pre->ignore_merges ? "true" : "false");
    put_vocab(tokens, out);
    strbuf_puts(out, "    \"merges\": [");
    TRY(is_bytes ? put_listed_merges(tokens, out) : put_scored_merges(tokens, out));
    strbuf_puts(out, "\n    ]\n  }\n}\n");
    return OK;
}

/* ---- the files beside it ---- */

static Status write_config(Tokens *tokens, bool adds_bos)
{
    static const char *const names[][2] = {{"bos", "bos"}, {"eos", "eos"}, {"unk", "unknown"}, {"pad", "padding"}};
    SCOPED_STRBUF(out);
    bool add_bos = adds_bos, add_eos = false;
    Str template;
    gguf_get_bool(tokens->import->file, "tokenizer.ggml.add_bos_token", &add_bos);
    gguf_get_bool(tokens->import->file, "tokenizer.ggml.add_eos_token", &add_eos);
    strbuf_printf(&out, "{\n  \"add_bos_token\": %s,\n  \"add_eos_token\": %s", add_bos ? "true" : "false", add_eos ? "true" : "false");
    for (int i = 0; i < 4; i++) {
        int32_t id = special_id(tokens, names[i][1]);
        if (id < 0) continue;
        strbuf_printf(&out, ",\n  \"%s_token\": ", names[i][0]);
        json_write_string(&out, tokens->texts[id].data, tokens->texts[id].len);
    }
    if (gguf_get_str(tokens->import->file, "tokenizer.chat_template", &template)) {
        strbuf_puts(&out, ",\n  \"chat_template\": ");
        json_write_string(&out, template.data, template.len);
    }
    strbuf_puts(&out, ",\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\"\n}\n");
    return write_text(tokens->import, "tokenizer_config.json", &out);
}

static Status write_generation(Tokens *tokens)
{
    int32_t bos = special_id(tokens, "bos"), eos = special_id(tokens, "eos"), turn = special_id(tokens, "eot");
    SCOPED_STRBUF(out);
    if (eos < 0) return OK;
    strbuf_puts(&out, "{\n");
    if (bos >= 0) strbuf_printf(&out, "  \"bos_token_id\": %d,\n", bos);
    if (turn >= 0 && turn != eos)
        strbuf_printf(&out, "  \"eos_token_id\": [%d, %d]\n}\n", eos, turn);
    else
        strbuf_printf(&out, "  \"eos_token_id\": %d\n}\n", eos);
    return write_text(tokens->import, "generation_config.json", &out);
}

/* ---- all ---- */

static Status read_tokens(Tokens *tokens)
{
    Import           *import = tokens->import;
    size_t            num_types;
    const GgufTensor *embedding = gguf_find(import->file, "token_embd.weight");
    bool              has = gguf_get_strs(&import->arena, import->file, "tokenizer.ggml.tokens", &tokens->texts, &tokens->count);
    FAIL_IF(!has || (int64_t)tokens->count != embedding->dim[0], ERR_INVALID, "%s: tokenizer.ggml.tokens: expected %lld texts",
            import->path, (long long)embedding->dim[0]);
    if (!gguf_get_numbers(&import->arena, import->file, "tokenizer.ggml.token_type", &tokens->types, &num_types)) {
        tokens->types = arena_array(&import->arena, double, tokens->count + 1);
        for (size_t i = 0; i < tokens->count; i++) tokens->types[i] = TOKEN_NORMAL;
        num_types = tokens->count;
    }
    FAIL_IF(num_types != tokens->count, ERR_INVALID, "%s: tokenizer.ggml.token_type: expected %zu numbers", import->path, tokens->count);
    for (size_t i = 0; i < tokens->count; i++)
        FAIL_IF(tokens->texts[i].len > MOST_TOKEN_BYTES, ERR_INVALID,
                "%s: tokenizer.ggml.tokens: number %zu has %zu bytes, at most %d are read", import->path, i, tokens->texts[i].len,
                MOST_TOKEN_BYTES);
    build_slots(tokens);
    return OK;
}

/* Checks that the written tokenizer can be loaded. */
static Status check_tokenizer(const Import *import)
{
    Tokenizer *tokenizer;
    Status     status = tokenizer_load(import->folder, &tokenizer);
    if (status != OK) return status_prefix(status, "%s: its tokenizer", import->path);
    tokenizer_destroy(tokenizer);
    return OK;
}

Status gguf_import_tokenizer(Import *import)
{
    Tokens tokens = {.import = import};
    Str    model = {"none", 4};
    SCOPED_STRBUF(out);
    gguf_get_str(import->file, "tokenizer.ggml.model", &model);
    if (str_equal(model, "none") || str_equal(model, "no_vocab")) {
        log_note(NULL, true, "%s has no tokenizer, and so has the folder none", import->path);
        return OK;
    }
    bool is_bytes = str_equal(model, "gpt2");
    FAIL_IF(!is_bytes && !str_equal(model, "llama"), ERR_UNSUPPORTED, "%s: tokenizer.ggml.model: tokenizers of the kind %.*s aren't read",
            import->path, GGUF_SHOWN(model, 40));
    TRY(read_tokens(&tokens));
    TRY(put_tokenizer(&tokens, is_bytes, &out));
    TRY(write_text(import, "tokenizer.json", &out));
    TRY(write_config(&tokens, !is_bytes || tokens.adds_bos));
    TRY(write_generation(&tokens));
    return check_tokenizer(import);
}
