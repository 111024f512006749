/* Tokens named in the files beside tokenizer.json: tokenizer_config.json (added_tokens_decoder, eos_token and the like,
 * extra_special_tokens) and added_tokens.json. They are added with the order, ids and flags that transformers gives them. If these files
 * give a token an id, only the order of these ids matters. */
#include "text/tokenizer_internal.h"

#include "base/array.h"
#include "base/hash.h"
#include "base/str.h"

#include <stdlib.h>
#include <string.h>

typedef struct BesideToken {
    AddedToken token;      /* content: as in the text; id: only for the order */
    int8_t     normalized; /* -1: not given: the opposite of `special` */
    bool       is_text;    /* given as a plain text, not as an object with flags */
} BesideToken;

static bool is_normalized(const BesideToken *token)
{
    return token->normalized < 0 ? !token->token.special : token->normalized;
}

typedef struct BesideList {
    Arena       *arena;
    BesideToken *items;
    size_t       len;
    uint32_t     capacity;
} BesideList;

typedef struct Beside {
    const Tokenizer *t;
    const JsonValue *config;
    BesideList       list;         /* if two tokens have the same text, the flags of the later one count */
    size_t           num_numbered; /* number of tokens with a given id; they are first in the list */
} Beside;

static void list_push(BesideList *list, BesideToken token)
{
    list->items = arena_room(list->arena, list->items, list->len + 1, &list->capacity, sizeof *list->items);
    list->items[list->len++] = token;
}

/* Finds an added token by its text; NULL: none. */
static AddedToken *find_added(const Tokenizer *t, Str text, bool *out_normalized)
{
    for (int k = 0; k < 2; k++)
        for (int32_t i = 0; i < t->added[k].num_tokens; i++)
            if (str_same(t->ids[t->added[k].tokens[i].id].text, text)) {
                *out_normalized = k == 1;
                return &t->added[k].tokens[i];
            }
    return NULL;
}

static bool is_numbered(const Beside *b, Str text)
{
    for (size_t i = 0; i < b->num_numbered; i++)
        if (str_same(b->list.items[i].token.content, text)) return true;
    return false;
}

static bool is_equal(const BesideToken *a, const BesideToken *b)
{
    const AddedToken *x = &a->token, *y = &b->token;
    return str_same(x->content, y->content) && a->is_text == b->is_text && is_normalized(a) == is_normalized(b) &&
           x->special == y->special && x->lstrip == y->lstrip && x->rstrip == y->rstrip && x->single_word == y->single_word;
}

/* Adds a token, unless its text has a given id or is an added token already, or the list has an equal token. */
static void list_add_new(Beside *b, BesideToken token)
{
    bool normalized;
    Str  text = token.token.content;
    if (text.len == 0 || is_numbered(b, text) || find_added(b->t, text, &normalized)) return;
    for (size_t i = b->num_numbered; i < b->list.len; i++)
        if (is_equal(&b->list.items[i], &token)) return;
    list_push(&b->list, token);
}

/* ---- reading ---- */

/* Parses a token: a text (then it is special), or an object with "content" and flags. */
static bool read_token(const JsonValue *value, BesideToken *out)
{
    bool normalized;
    *out = (BesideToken){.token.special = true, .normalized = -1};
    if (value->type == JSON_STRING) {
        out->token.content = value->string;
        out->is_text = true;
        return true;
    }
    const JsonValue *content = json_get(value, "content");
    if (!content || content->type != JSON_STRING) return false;
    out->token.content = content->string;
    out->token.special = false;
    json_get_bool(value, "special", &out->token.special);
    json_get_bool(value, "lstrip", &out->token.lstrip);
    json_get_bool(value, "rstrip", &out->token.rstrip);
    json_get_bool(value, "single_word", &out->token.single_word);
    if (json_get_bool(value, "normalized", &normalized)) out->normalized = normalized;
    return true;
}

static int by_id(const void *a, const void *b)
{
    int32_t x = ((const BesideToken *)a)->token.id, y = ((const BesideToken *)b)->token.id;
    return (x > y) - (x < y);
}

/* Whether an added token with the same text and flags exists. */
static bool is_there(const Tokenizer *t, const BesideToken *wanted)
{
    bool              normalized;
    const AddedToken *have = find_added(t, wanted->token.content, &normalized), *want = &wanted->token;
    return have && normalized == is_normalized(wanted) && have->special == want->special && have->lstrip == want->lstrip &&
           have->rstrip == want->rstrip && have->single_word == want->single_word;
}

static Status read_decoder(Beside *b, const JsonValue *decoder)
{
    FAIL_IF(decoder->type != JSON_OBJECT, ERR_INVALID, "\"added_tokens_decoder\" is %s, expected an object of tokens by id",
            json_type_name(decoder->type));
    for (uint32_t i = 0; i < decoder->count; i++) {
        const JsonMember *member = &decoder->members[i];
        BesideToken       token;
        char             *end;
        long              id = strtol(member->key.data, &end, 10);
        FAIL_IF(*end || end == member->key.data || id < 0 || id > BPE_MAX_ID || member->value.type != JSON_OBJECT ||
                    !read_token(&member->value, &token),
                ERR_INVALID, "added_tokens_decoder: \"%s\": expected an id with an object that has a text \"content\"", member->key.data);
        token.token.id = (int32_t)id;
        if (token.token.content.len && !is_there(b->t, &token)) list_push(&b->list, token);
    }
    if (b->list.len) qsort(b->list.items, b->list.len, sizeof *b->list.items, by_id);
    return OK;
}

/* ---- tokens named by members ---- */

static const char *const usual_names[] = {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"};
enum { NUM_USUAL = sizeof usual_names / sizeof usual_names[0] };

static bool is_usual(Str key)
{
    for (int i = 0; i < NUM_USUAL; i++)
        if (str_equal(key, usual_names[i])) return true;
    return false;
}

static void add_named(Beside *b, const JsonValue *value)
{
    BesideToken token;
    if (value && read_token(value, &token)) list_add_new(b, token);
}

/* Whether the member is a model-specific token, such as "image_token". */
static bool is_own(const JsonMember *member)
{
    Str key = member->key;
    return str_ends(key, str_of("_token")) && !is_usual(key);
}

static void add_own(Beside *b, JsonType type)
{
    const JsonValue *config = b->config;
    for (uint32_t i = 0; config->type == JSON_OBJECT && i < config->count; i++)
        if (is_own(&config->members[i]) && config->members[i].value.type == type) add_named(b, &config->members[i].value);
}

static bool has_items(const JsonValue *value)
{
    return value && (value->type == JSON_ARRAY || value->type == JSON_OBJECT) && value->count > 0;
}

/* The list or object "extra_special_tokens"; older files name it "additional_special_tokens". */
static const JsonValue *extras(const Beside *b)
{
    const JsonValue *extra = json_get(b->config, "extra_special_tokens");
    return has_items(extra) ? extra : json_get(b->config, "additional_special_tokens");
}

static const JsonValue *text_of(const JsonValue *value)
{
    return value->type == JSON_OBJECT ? json_get(value, "content") : value;
}

static bool is_text_of(const JsonValue *value, Str text)
{
    const JsonValue *content = text_of(value);
    return content && content->type == JSON_STRING && str_same(content->string, text);
}

/* Whether a named member, such as "eos_token", is this text. */
static bool is_named(const Beside *b, Str text)
{
    const JsonValue *extra = extras(b), *config = b->config;
    for (uint32_t i = 0; config->type == JSON_OBJECT && i < config->count; i++)
        if ((is_usual(config->members[i].key) || is_own(&config->members[i])) && is_text_of(&config->members[i].value, text)) return true;
    for (uint32_t i = 0; extra && extra->type == JSON_OBJECT && i < extra->count; i++)
        if (is_text_of(&extra->members[i].value, text)) return true;
    return false;
}

/* Whether a token of added_tokens.json is special: a member such as eos_token, or extra_special_tokens, names its text. Members that are
 * objects with a "__type" don't count. */
static bool is_special(const Beside *b, Str text)
{
    const JsonValue *extra = extras(b);
    for (int i = 0; i < NUM_USUAL; i++) {
        const JsonValue *value = json_get(b->config, usual_names[i]);
        if (value && !json_get(value, "__type") && is_text_of(value, text)) return true;
    }
    for (uint32_t i = 0; extra && extra->type == JSON_ARRAY && i < extra->count; i++)
        if (extra->items[i].type == JSON_STRING && str_same(extra->items[i].string, text)) return true;
    return false;
}

/* Reads added_tokens.json, an object of ids by text. A token is skipped if tokenizer.json gives its id to an added token. */
static Status read_added(Beside *b, const JsonValue *added)
{
    FAIL_IF(added->type != JSON_OBJECT, ERR_INVALID, "added_tokens.json: expected an object of ids by token");
    for (uint32_t i = 0; i < added->count; i++) {
        const JsonMember *member = &added->members[i];
        const JsonValue  *id = &member->value;
        FAIL_IF(id->type != JSON_INT || id->integer < 0 || id->integer > BPE_MAX_ID, ERR_INVALID,
                "added_tokens.json: \"%s\": expected an id from 0 to %d", member->key.data, BPE_MAX_ID);
        bool        special = is_special(b, member->key), is_taken = false;
        BesideToken token = {{.content = member->key, .id = (int32_t)id->integer, .special = special}, .normalized = !special};
        for (int k = 0; k < 2; k++)
            for (int32_t n = 0; n < b->t->added[k].num_tokens; n++) is_taken |= b->t->added[k].tokens[n].id == token.token.id;
        if (member->key.len && !is_taken && !is_there(b->t, &token)) list_push(&b->list, token);
    }
    if (b->list.len) qsort(b->list.items, b->list.len, sizeof *b->list.items, by_id);
    return OK;
}

static void collect_named(Beside *b)
{
    const JsonValue *extra = extras(b);
    b->num_numbered = b->list.len;
    for (int i = 0; i < NUM_USUAL; i++) add_named(b, json_get(b->config, usual_names[i]));
    add_own(b, JSON_OBJECT);
    add_own(b, JSON_STRING);
    for (uint32_t i = 0; extra && extra->type == JSON_OBJECT && i < extra->count; i++) add_named(b, &extra->members[i].value);
    for (uint32_t i = 0; extra && extra->type == JSON_ARRAY && i < extra->count; i++) add_named(b, &extra->items[i]);
    for (size_t i = 0; i < b->list.len; i++) b->list.items[i].token.special |= is_named(b, b->list.items[i].token.content);
}

/* ---- adding the tokens ---- */

static void trie_remove(AddedTrie *trie, Str text, const IdInfo *ids)
{
    AddedTrie rest = {0};
    for (int32_t i = 0; i < trie->num_tokens; i++)
        if (!str_same(ids[trie->tokens[i].id].text, text)) added_trie_add(&rest, trie->tokens[i]);
    added_trie_deinit(trie);
    *trie = rest;
}

/* The id of a token: the id that it has already, else the next unused id. */
static int32_t settle_id(Tokenizer *t, Str text)
{
    bool              normalized;
    const AddedToken *have = find_added(t, text, &normalized);
    if (have) return have->id;
    int32_t id = bpe_find(&t->bpe, text.data, text.len);
    return id >= 0 ? id : t->num_ids++;
}

static Status add(Tokenizer *t, const BesideToken *wanted, RegexScratch *regex)
{
    AddedToken token = wanted->token;
    Str        text = {arena_strndup(&t->arena, token.content.data, token.content.len), token.content.len};
    token.id = settle_id(t, text);
    for (int k = 0; k < 2; k++) trie_remove(&t->added[k], text, t->ids);
    IdInfo *info = &t->ids[token.id];
    info->text = text;
    info->bytes = token_bytes(&t->arena, text);
    info->special |= token.special;
    token.content = text;
    unsigned char flags[] = {is_normalized(wanted), token.special, token.lstrip, token.rstrip, token.single_word};
    t->hash = hash_bytes(flags, sizeof flags, hash_bytes(text.data, text.len, t->hash));
    return tokenizer_put_added(t, token, is_normalized(wanted), regex);
}

static Status add_all(Tokenizer *t, const BesideList *list)
{
    IdInfo *ids = arena_array(&t->arena, IdInfo, (size_t)t->num_ids + list->len);
    memcpy(ids, t->ids, sizeof *ids * (size_t)t->num_ids);
    t->ids = ids;
    RegexScratch *regex = regex_scratch_create();
    Status        status = OK;
    for (size_t i = 0; i < list->len && status == OK; i++) status = add(t, &list->items[i], regex);
    regex_scratch_destroy(regex);
    return status;
}

Status tokenizer_add_beside(Tokenizer *t, const JsonValue *config, const JsonValue *added)
{
    Arena            arena = {0};
    Beside           b = {.t = t, .config = config, .list = {.arena = &arena}};
    const JsonValue *decoder = json_get(config, "added_tokens_decoder");
    Status           status = OK;
    if (decoder)
        status = read_decoder(&b, decoder);
    else if (added->type != JSON_NULL)
        status = read_added(&b, added); /* for files from before added_tokens_decoder existed */
    if (status == OK) collect_named(&b);
    if (status == OK && b.list.len > 0) status = add_all(t, &b.list);
    arena_deinit(&arena);
    return status;
}
