/* Loads a tokenizer: tokenizer.json into tables, then BOS, EOS and padding from tokenizer_config.json and generation_config.json. */
#include "text/tokenizer_internal.h"

#include "base/hash.h"
#include "base/str.h"
#include "files/file.h"
#include "files/hub.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_FILE_BYTES = 256 << 20, MAX_NESTING = 16 };

/* Finds the id of a token by its text. Added tokens take precedence, as in encoding. */
static int32_t token_id(const Tokenizer *t, Str text)
{
    for (int k = 0; k < 2; k++) {
        for (int32_t i = 0; i < t->added[k].num_tokens; i++) {
            int32_t id = t->added[k].tokens[i].id;
            if (str_same(t->ids[id].text, text)) return id;
        }
    }
    return bpe_find(&t->bpe, text.data, text.len);
}

/* --- added tokens ------------------------------------------------------------------------------------------------- */

Status tokenizer_put_added(Tokenizer *t, AddedToken token, bool normalized, RegexScratch *regex)
{
    if (normalized) {
        StrBuf buffers[2] = {{0}, {0}};
        Status status = normalize(t->normalizer, &char_table, regex, buffers, token.content, &token.content);
        if (status == OK) token.content = (Str){arena_strndup(&t->arena, token.content.data, token.content.len), token.content.len};
        strbuf_deinit(&buffers[0]);
        strbuf_deinit(&buffers[1]);
        TRY(status);
    }
    added_trie_add(&t->added[normalized], token);
    t->ids[token.id].added = true;
    return OK;
}

static Status added_token_parse(Tokenizer *t, const JsonValue *json, RegexScratch *regex)
{
    const JsonValue *content = json_get(json, "content");
    int64_t          id = -1;
    bool             normalized = true;
    AddedToken       token = {0};
    FAIL_IF(!content || content->type != JSON_STRING || !json_get_int(json, "id", &id) || id < 0 || id > BPE_MAX_ID, ERR_INVALID,
            "added_tokens: expected objects with a text \"content\" and an \"id\" from 0 to %d", BPE_MAX_ID);
    json_get_bool(json, "special", &token.special);
    json_get_bool(json, "single_word", &token.single_word);
    json_get_bool(json, "lstrip", &token.lstrip);
    json_get_bool(json, "rstrip", &token.rstrip);
    normalized = !token.special;
    json_get_bool(json, "normalized", &normalized);
    Str     text = {arena_strndup(&t->arena, content->string.data, content->string.len), content->string.len};
    int32_t known = bpe_find(&t->bpe, text.data, text.len);
    token.id = known >= 0 ? known : (int32_t)id;
    token.content = text;
    if (text.len == 0) return OK;
    FAIL_IF(t->ids[token.id].text.data && known < 0, ERR_INVALID, "added_tokens: \"%s\" has the id %d of \"%s\"", text.data, token.id,
            t->ids[token.id].text.data);
    t->ids[token.id].text = text;
    t->ids[token.id].special |= token.special;
    return tokenizer_put_added(t, token, normalized, regex);
}

/* Computes num_ids, the largest id in the file + 1, and allocates t->ids, filled from the vocabulary. */
static Status ids_create(Tokenizer *t, const JsonValue *added)
{
    t->num_ids = t->bpe.num_tokens;
    for (uint32_t i = 0; i < added->count; i++) {
        int64_t id;
        if (json_get_int(&added->items[i], "id", &id) && id >= t->num_ids && id <= BPE_MAX_ID) t->num_ids = (int32_t)id + 1;
    }
    FAIL_IF(t->num_ids == 0, ERR_INVALID, "model.vocab: the vocabulary is empty");
    t->ids = arena_array(&t->arena, IdInfo, t->num_ids);
    for (int32_t id = 0; id < t->bpe.num_tokens; id++) t->ids[id].text = t->bpe.tokens[id];
    return OK;
}

static Status added_parse(Tokenizer *t, const JsonValue *json)
{
    static const JsonValue none = {.type = JSON_ARRAY};
    const JsonValue       *added = json_get(json, "added_tokens");
    if (!added || added->type == JSON_NULL) added = &none;
    FAIL_IF(added->type != JSON_ARRAY, ERR_INVALID, "\"added_tokens\" must be a list");
    TRY(ids_create(t, added));
    RegexScratch *regex = regex_scratch_create();
    Status        status = OK;
    for (uint32_t i = 0; i < added->count && status == OK; i++) status = added_token_parse(t, &added->items[i], regex);
    regex_scratch_destroy(regex);
    return status;
}

/* --- post-processor ----------------------------------------------------------------------------------------------- */

static void ids_put(TokenIds *ids, bool in_front, const TokenIds *more)
{
    TokenIds all = {0};
    for (size_t i = 0; in_front && i < more->len; i++) token_ids_push(&all, more->data[i]);
    for (size_t i = 0; i < ids->len; i++) token_ids_push(&all, ids->data[i]);
    for (size_t i = 0; !in_front && i < more->len; i++) token_ids_push(&all, more->data[i]);
    token_ids_deinit(ids);
    *ids = all;
}

static Status template_special(const Tokenizer *t, const JsonValue *json, const JsonValue *item, TokenIds *out)
{
    const char *name = NULL;
    FAIL_IF(!json_get_str(item, "id", &name), ERR_INVALID, "TemplateProcessing: a SpecialToken wants a text \"id\"");
    const JsonValue *ids = json_get(json_get(json_get(json, "special_tokens"), name), "ids");
    FAIL_IF(!ids || ids->type != JSON_ARRAY, ERR_INVALID, "TemplateProcessing: special_tokens has no ids for \"%s\"", name);
    for (uint32_t i = 0; i < ids->count; i++) {
        FAIL_IF(ids->items[i].type != JSON_INT || ids->items[i].integer < 0 || ids->items[i].integer >= t->num_ids, ERR_INVALID,
                "TemplateProcessing: an id of \"%s\" is outside the vocabulary", name);
        token_ids_push(out, (int32_t)ids->items[i].integer);
    }
    return OK;
}

static Status template_parse(Tokenizer *t, const JsonValue *json, TokenIds *front, TokenIds *back)
{
    const JsonValue *single = json_get(json, "single");
    FAIL_IF(!single || single->type != JSON_ARRAY, ERR_INVALID, "TemplateProcessing wants a list \"single\"");
    int sequences = 0;
    for (uint32_t i = 0; i < single->count; i++) {
        const JsonValue *special = json_get(&single->items[i], "SpecialToken");
        if (special) {
            TRY(template_special(t, json, special, sequences ? back : front));
        } else {
            FAIL_IF(!json_get(&single->items[i], "Sequence"), ERR_INVALID, "TemplateProcessing: expected a SpecialToken or a Sequence");
            sequences++;
        }
    }
    FAIL_IF(sequences != 1, ERR_UNSUPPORTED, "TemplateProcessing with the text %d times isn't supported", sequences);
    return OK;
}

/* Parses a pair like ["[SEP]", 102]. */
static Status pair_id(const Tokenizer *t, const JsonValue *json, const char *key, TokenIds *out)
{
    const JsonValue *pair = json_get(json, key);
    FAIL_IF(!pair || pair->type != JSON_ARRAY || pair->count != 2 || pair->items[1].type != JSON_INT || pair->items[1].integer < 0 ||
                pair->items[1].integer >= t->num_ids,
            ERR_INVALID, "post_processor wants \"%s\": [token, id]", key);
    token_ids_push(out, (int32_t)pair->items[1].integer);
    return OK;
}

static Status post_step_parse(Tokenizer *t, const JsonValue *json, const char *type, TokenIds *front, TokenIds *back)
{
    if (strcmp(type, "ByteLevel") == 0) return OK; /* only changes offsets, which we don't return */
    if (strcmp(type, "TemplateProcessing") == 0) return template_parse(t, json, front, back);
    if (strcmp(type, "RobertaProcessing") == 0 || strcmp(type, "BertProcessing") == 0) {
        TRY(pair_id(t, json, "cls", front));
        return pair_id(t, json, "sep", back);
    }
    FAIL(ERR_UNSUPPORTED, "post_processor \"%s\" isn't supported", type);
}

static Status post_parse(Tokenizer *t, const JsonValue *json, int nesting)
{
    const char *type = NULL;
    if (!json || json->type == JSON_NULL) return OK;
    FAIL_IF(!json_get_str(json, "type", &type), ERR_INVALID, "post_processor wants an object with a \"type\"");
    if (strcmp(type, "Sequence") == 0) {
        const JsonValue *list = json_get(json, "processors");
        FAIL_IF(!list || list->type != JSON_ARRAY || nesting == MAX_NESTING, ERR_INVALID,
                "post_processor Sequence wants a list \"processors\"");
        for (uint32_t i = 0; i < list->count; i++) TRY(post_parse(t, &list->items[i], nesting + 1));
        return OK;
    }
    TokenIds front = {0}, back = {0};
    Status   status = post_step_parse(t, json, type, &front, &back);
    if (status == OK) {
        ids_put(&t->prefix, true, &front);
        ids_put(&t->suffix, false, &back);
    }
    token_ids_deinit(&front);
    token_ids_deinit(&back);
    return status;
}

/* --- the file ----------------------------------------------------------------------------------------------------- */

/* Prefixes an error of a part with that part's position in the file. */
static Status at_key(Status status, const char *name, const char *text, size_t len, const JsonValue *json, const char *key)
{
    int              line, column;
    const JsonValue *value = json_get(json, key);
    if (status == OK) return OK;
    json_position(text, len, value ? value->offset : 0, &line, &column);
    return status_prefix(status, "%s:%d:%d", name, line, column);
}

static Status parts_parse(Tokenizer *t, const char *name, const char *text, size_t len, const JsonValue *json)
{
    Arena *arena = &t->arena;
    FAIL_IF(json->type != JSON_OBJECT, ERR_INVALID, "%s:1:1: expected an object, as in a tokenizer.json", name);
    TRY(at_key(bpe_parse(arena, json_get(json, "model"), &t->bpe), name, text, len, json, "model"));
    TRY(at_key(normalizer_parse(arena, json_get(json, "normalizer"), &t->normalizer), name, text, len, json, "normalizer"));
    TRY(at_key(pretokenizer_parse(arena, json_get(json, "pre_tokenizer"), &t->pre), name, text, len, json, "pre_tokenizer"));
    TRY(at_key(decoder_parse(arena, json_get(json, "decoder"), &t->decoder), name, text, len, json, "decoder"));
    TRY(at_key(added_parse(t, json), name, text, len, json, "added_tokens"));
    TRY(at_key(post_parse(t, json_get(json, "post_processor"), 0), name, text, len, json, "post_processor"));
    const JsonValue *pre = json_get(json, "pre_tokenizer");
    t->has_pre = pre && pre->type != JSON_NULL;
    t->raw_bytes = t->bpe.has_all_bytes && pretokenizer_ends_in_bytes(t->pre);
    for (int32_t id = 0; id < t->num_ids; id++)
        if (t->ids[id].text.data) t->ids[id].bytes = token_bytes(arena, t->ids[id].text);
    return OK;
}

Status tokenizer_parse(const char *name, const char *json, size_t len, Tokenizer **out_tokenizer)
{
    *out_tokenizer = NULL;
    Tokenizer *t = calloc_or_end(1, sizeof *t);
    Arena      tree = {0};
    JsonValue  root;
    t->bos_id = t->eos_id = t->pad_id = -1;
    t->hash = hash_bytes(json, len, 0);
    Status status = json_parse(&tree, name, json, len, &root);
    if (status == OK) status = parts_parse(t, name, json, len, &root);
    arena_deinit(&tree);
    if (status != OK) {
        tokenizer_destroy(t);
        return status;
    }
    if (t->prefix.len) t->bos_id = t->prefix.data[0];
    if (t->suffix.len) t->eos_id = t->suffix.data[t->suffix.len - 1];
    t->num_file_ids = t->num_ids;
    *out_tokenizer = t;
    return OK;
}

/* Looks up a token written as text or as {"content": text}. *out doesn't change if the token is absent, null or unknown. */
static void config_token(const Tokenizer *t, const JsonValue *config, const char *key, int32_t *out)
{
    const JsonValue *value = json_get(config, key);
    if (value && value->type == JSON_OBJECT) value = json_get(value, "content");
    if (!value || value->type != JSON_STRING) return;
    int32_t id = token_id(t, value->string);
    if (id >= 0) *out = id;
}

/* Reads an id, or the first id of a list. *out doesn't change if there is none. */
static void config_id(const Tokenizer *t, const JsonValue *config, const char *key, int32_t *out)
{
    const JsonValue *value = json_get(config, key);
    if (value && value->type == JSON_ARRAY && value->count > 0) value = &value->items[0];
    if (value && value->type == JSON_INT && value->integer >= 0 && value->integer < t->num_ids) *out = (int32_t)value->integer;
}

/* If given, add_bos_token and add_eos_token override whether the post-processor adds BOS and EOS. */
static void config_apply(Tokenizer *t, const JsonValue *config)
{
    bool add;
    config_token(t, config, "bos_token", &t->bos_id);
    config_token(t, config, "eos_token", &t->eos_id);
    config_token(t, config, "pad_token", &t->pad_id);
    if (json_get_bool(config, "add_bos_token", &add) && t->bos_id >= 0) {
        bool has = t->prefix.len > 0 && t->prefix.data[0] == t->bos_id;
        if (add && !has) ids_put(&t->prefix, true, &(TokenIds){&t->bos_id, 1, 1});
        if (!add && has) memmove(t->prefix.data, t->prefix.data + 1, --t->prefix.len * sizeof *t->prefix.data);
    }
    if (json_get_bool(config, "add_eos_token", &add) && t->eos_id >= 0) {
        bool has = t->suffix.len > 0 && t->suffix.data[t->suffix.len - 1] == t->eos_id;
        if (add && !has) ids_put(&t->suffix, false, &(TokenIds){&t->eos_id, 1, 1});
        if (!add && has) t->suffix.len--;
    }
}

/* Members of special_tokens_map.json override the members of tokenizer_config.json: for files older than added_tokens_decoder. */
static void override_tokens(Arena *arena, JsonValue *config, const JsonValue *map)
{
    uint32_t    count = config->type == JSON_OBJECT ? config->count : 0;
    JsonMember *members = arena_array(arena, JsonMember, count + map->count);
    if (count) memcpy(members, config->members, count * sizeof *members);
    for (uint32_t i = 0; i < map->count; i++) {
        uint32_t at = 0;
        while (at < count && !str_same(members[at].key, map->members[i].key)) at++;
        members[at] = map->members[i];
        count += at == count;
    }
    *config = (JsonValue){.type = JSON_OBJECT, .count = count, .members = members};
}

static Status config_parse(Arena *arena, const char *dir, const char *file, Str text, JsonValue *out)
{
    *out = (JsonValue){0};
    return text.len ? json_parse(arena, arena_printf(arena, "%s/%s", dir, file), text.data, text.len, out) : OK;
}

Status tokenizer_configure(Tokenizer *t, const char *dir, const TokenizerTexts *texts)
{
    Arena     arena = {0};
    JsonValue config, generation, added, map;
    Status    status = config_parse(&arena, dir, "tokenizer_config.json", texts->config, &config);
    if (status == OK) status = config_parse(&arena, dir, "generation_config.json", texts->generation, &generation);
    if (status == OK) status = config_parse(&arena, dir, "added_tokens.json", texts->added, &added);
    if (status == OK) status = config_parse(&arena, dir, "special_tokens_map.json", texts->special_map, &map);
    if (status == OK) {
        if (map.type == JSON_OBJECT && !json_get(&config, "added_tokens_decoder")) override_tokens(&arena, &config, &map);
        status = tokenizer_add_beside(t, &config, &added);
        if (status != OK) status_prefix(status, "%s", dir);
    }
    if (status == OK) {
        config_id(t, &generation, "bos_token_id", &t->bos_id);
        config_id(t, &generation, "eos_token_id", &t->eos_id);
        config_id(t, &generation, "pad_token_id", &t->pad_id);
        config_apply(t, &config);
    }
    arena_deinit(&arena);
    return status;
}

/* Reads a file; empty text: there is no such file. */
static Status config_read(Arena *arena, const char *dir, const char *file, Str *out)
{
    const char *path = arena_printf(arena, "%s/%s", dir, file);
    bool        is_there;
    *out = (Str){"", 0};
    TRY(file_exists(path, &is_there));
    return is_there ? file_read(arena, path, MAX_FILE_BYTES, out) : OK;
}

/* Reports that the folder has no tokenizer.json; older models have their tokenizer in other files. */
static Status none_there(Arena *arena, const char *dir)
{
    static const char *const others[] = {"tokenizer.model", "vocab.json", "vocab.txt"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        bool is_there;
        TRY(file_exists(arena_printf(arena, "%s/%s", dir, others[i]), &is_there));
        if (!is_there) continue;
        return status_fail(ERR_NOT_FOUND,
                           "%s has its tokenizer as %s only, which isn't read. Convert it once: python -c \"from transformers import "
                           "AutoTokenizer as T; T.from_pretrained('%s').save_pretrained('%s')\"",
                           dir, others[i], dir, dir);
    }
    return status_fail(ERR_NOT_FOUND,
                       "%s: no tokenizer.json in this folder; copy the model's there, or name another folder (key tokenizer)", dir);
}

Status tokenizer_load(const char *dir, Tokenizer **out_tokenizer)
{
    return tokenizer_load_with(dir, (Str){0}, (Str){0}, out_tokenizer);
}

Status tokenizer_load_with(const char *dir, Str json, Str config, Tokenizer **out_tokenizer)
{
    *out_tokenizer = NULL;
    Arena      arena = {0};
    Str        text = json;
    Tokenizer *t = NULL;
    StrBuf     local = {0};
    Status     status = hub_local_path(HUB_MODEL, dir, &local);
    dir = arena_strdup(&arena, strbuf_cstr(&local));
    strbuf_deinit(&local);
    const char *path = arena_printf(&arena, "%s/tokenizer.json", dir);
    bool        is_there;
    if (status == OK) status = file_exists(path, &is_there);
    if (status == OK && !is_there) status = none_there(&arena, dir);
    if (status == OK && !json.data) status = file_read(&arena, path, MAX_FILE_BYTES, &text);
    if (status == OK) status = tokenizer_parse(path, text.data, text.len, &t);
    TokenizerTexts texts = {.config = config};
    if (status == OK && !config.data) status = config_read(&arena, dir, "tokenizer_config.json", &texts.config);
    if (status == OK) status = config_read(&arena, dir, "generation_config.json", &texts.generation);
    if (status == OK) status = config_read(&arena, dir, "added_tokens.json", &texts.added);
    if (status == OK) status = config_read(&arena, dir, "special_tokens_map.json", &texts.special_map);
    if (status == OK) status = tokenizer_configure(t, dir, &texts);
    arena_deinit(&arena);
    if (status != OK) {
        tokenizer_destroy(t);
        return status;
    }
    *out_tokenizer = t;
    return OK;
}

void tokenizer_destroy(Tokenizer *t)
{
    if (!t) return;
    normalizer_deinit(t->normalizer);
    pretokenizer_deinit(t->pre);
    decoder_deinit(t->decoder);
    added_trie_deinit(&t->added[0]);
    added_trie_deinit(&t->added[1]);
    token_ids_deinit(&t->prefix);
    token_ids_deinit(&t->suffix);
    arena_deinit(&t->arena);
    free(t);
}

/* --- look-ups ----------------------------------------------------------------------------------------------------- */

int32_t tokenizer_vocab_size(const Tokenizer *t)
{
    return t->num_ids;
}

const char *tokenizer_first_beside(const Tokenizer *t)
{
    return t->num_file_ids < t->num_ids ? t->ids[t->num_file_ids].text.data : NULL;
}

const char *tokenizer_id_to_token(const Tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->num_ids ? t->ids[id].text.data : NULL;
}

bool tokenizer_is_special(const Tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->num_ids && t->ids[id].special;
}

bool tokenizer_is_added(const Tokenizer *tokenizer, int32_t id)
{
    return id >= 0 && id < tokenizer->num_ids && tokenizer->ids[id].added;
}

int32_t tokenizer_bos_id(const Tokenizer *t)
{
    return t->bos_id;
}

int32_t tokenizer_eos_id(const Tokenizer *t)
{
    return t->eos_id;
}

int32_t tokenizer_pad_id(const Tokenizer *t)
{
    return t->pad_id;
}

bool tokenizer_adds_bos(const Tokenizer *t)
{
    return t->prefix.len > 0 && t->prefix.data[0] == t->bos_id;
}

uint64_t tokenizer_hash(const Tokenizer *t)
{
    return t->hash;
}
