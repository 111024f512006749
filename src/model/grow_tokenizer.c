/* Adding tokens to a tokenizer's files. */
#include "base/json_edit.h"
#include "base/scoped.h"
#include "files/json_file.h"
#include "model/grow.h"
#include "text/tokenizer.h"

#include <string.h>

enum { MAX_BYTES = 1 << 30 };

typedef struct Adder {
    Arena           *arena;
    const Tokenizer *tokenizer;
    JsonValue        added;   /* added_tokens of tokenizer.json */
    JsonValue        decoder; /* added_tokens_decoder of tokenizer_config.json */
    int64_t          next;    /* the next new token's id */
    int              num_new;
} Adder;

/* The id of the token with this text; -1: there is none. */
static int64_t find_token(const Tokenizer *tokenizer, const char *text)
{
    for (int32_t id = 0; id < tokenizer_vocab_size(tokenizer); id++) {
        const char *token = tokenizer_id_to_token(tokenizer, id);
        if (token && strcmp(token, text) == 0) return id;
    }
    return -1;
}

static void put(JsonValue *object, const char *key, JsonValue value)
{
    object->members[object->count++] = (JsonMember){str_of(key), value};
}

static void put_switches(JsonValue *object, const char *text, bool is_special)
{
    put(object, "content", (JsonValue){.type = JSON_STRING, .string = str_of(text)});
    put(object, "single_word", (JsonValue){.type = JSON_BOOL});
    put(object, "lstrip", (JsonValue){.type = JSON_BOOL});
    put(object, "rstrip", (JsonValue){.type = JSON_BOOL});
    put(object, "normalized", (JsonValue){.type = JSON_BOOL});
    put(object, "special", (JsonValue){.type = JSON_BOOL, .boolean = is_special});
}

static JsonValue new_object(Arena *arena)
{
    enum { MOST_KEYS = 7 };
    return (JsonValue){.type = JSON_OBJECT, .members = arena_array(arena, JsonMember, MOST_KEYS)};
}

static bool is_listed(const Adder *adder, const char *text)
{
    for (uint32_t i = 0; i < adder->added.count; i++) {
        const JsonValue *content = json_get(&adder->added.items[i], "content");
        if (content && content->type == JSON_STRING && str_equal(content->string, text)) return true;
    }
    return false;
}

static Status add_token(Adder *adder, const char *text, bool is_special)
{
    FAIL_IF(!*text, ERR_INVALID, "new_tokens, new_special_tokens: a token has no text");
    if (is_listed(adder, text)) return OK;
    int64_t id = find_token(adder->tokenizer, text);
    if (id < 0) {
        id = adder->next++;
        adder->num_new++;
    }
    JsonValue token = new_object(adder->arena), beside = new_object(adder->arena);
    put(&token, "id", (JsonValue){.type = JSON_INT, .integer = id});
    put_switches(&token, text, is_special);
    put_switches(&beside, text, is_special);
    adder->added.items[adder->added.count++] = token;
    put(&adder->decoder, arena_printf(adder->arena, "%lld", (long long)id), beside);
    return OK;
}

/* A copy of the list with room for `more` items. */
static JsonValue copy_list(Arena *arena, const JsonValue *list, int more)
{
    JsonValue copy = {.type = JSON_ARRAY, .items = arena_array(arena, JsonValue, (list ? list->count : 0) + (uint32_t)more)};
    copy.count = list && list->type == JSON_ARRAY ? list->count : 0;
    if (copy.count) memcpy(copy.items, list->items, copy.count * sizeof *copy.items);
    return copy;
}

/* The document's text with another value under `key`. */
static Str with_member(Arena *arena, const JsonValue *document, const char *key, JsonValue value)
{
    JsonValue copy = json_copy_object(arena, document, 1);
    SCOPED_STRBUF(text);
    json_set(&copy, str_of(key), value);
    json_write(&text, &copy, 2);
    strbuf_putc(&text, '\n');
    return (Str){arena_strndup(arena, text.data, text.len), text.len};
}

/* Readers give a new token the number of tokens as its id: refuses a tokenizer for which that is wrong. */
static Status check_ids(const char *dir, const Tokenizer *tokenizer, const JsonValue *json)
{
    const JsonValue *model = json_get(json, "model"), *vocab = model ? json_get(model, "vocab") : NULL,
                    *added = json_get(json, "added_tokens");
    const char *beside = tokenizer_first_beside(tokenizer);
    int64_t     next = vocab ? vocab->count : 0, id;
    for (uint32_t i = 0; added && added->type == JSON_ARRAY && i < added->count; i++)
        if (json_get_int(&added->items[i], "id", &id) && id >= next) next = id + 1;
    FAIL_IF(beside, ERR_UNSUPPORTED,
            "%s: files beside tokenizer.json name tokens that it lacks, the first is \"%s\"; save the tokenizer with transformers "
            "(save_pretrained), which puts them into tokenizer.json",
            dir, beside);
    FAIL_IF(next != tokenizer_vocab_size(tokenizer), ERR_UNSUPPORTED,
            "%s: its tokenizer has ids up to %d for %lld tokens: where new tokens begin isn't known", dir,
            tokenizer_vocab_size(tokenizer) - 1, (long long)next);
    return OK;
}

static Status add_all(Arena *arena, const char *dir, const Tokenizer *tokenizer, const NewTokens *tokens, GrownTokenizer *out)
{
    JsonValue json, config;
    int       more = tokens->num_tokens + tokens->num_special;
    TRY(json_file_read_if_there(arena, arena_printf(arena, "%s/tokenizer.json", dir), MAX_BYTES, &json));
    TRY(json_file_read_if_there(arena, arena_printf(arena, "%s/tokenizer_config.json", dir), MAX_BYTES, &config));
    TRY(check_ids(dir, tokenizer, &json));
    const JsonValue *decoder = json_get(&config, "added_tokens_decoder");
    Adder            adder = {.arena = arena, .tokenizer = tokenizer, .next = tokenizer_vocab_size(tokenizer)};
    adder.added = copy_list(arena, json_get(&json, "added_tokens"), more);
    adder.decoder = json_copy_object(arena, decoder, (uint32_t)more);
    uint32_t before = adder.added.count;
    for (int i = 0; i < tokens->num_special; i++) TRY(add_token(&adder, tokens->special[i], true));
    for (int i = 0; i < tokens->num_tokens; i++) TRY(add_token(&adder, tokens->tokens[i], false));
    out->num_added = adder.num_new;
    out->num_tokens = adder.next;
    if (adder.added.count == before) return OK;
    out->json = with_member(arena, &json, "added_tokens", adder.added);
    if (decoder && decoder->type == JSON_OBJECT) out->config = with_member(arena, &config, "added_tokens_decoder", adder.decoder);
    return OK;
}

Status grow_load_tokenizer(const char *dir, const NewTokens *tokens, Tokenizer **out)
{
    SCOPED_ARENA(arena);
    GrownTokenizer grown;
    *out = NULL;
    TRY(grow_tokenizer(&arena, dir, tokens, &grown));
    return tokenizer_load_with(dir, grown.json, grown.config, out);
}

Status grow_tokenizer(Arena *arena, const char *dir, const NewTokens *tokens, GrownTokenizer *out)
{
    Tokenizer *tokenizer;
    *out = (GrownTokenizer){0};
    TRY(tokenizer_load(dir, &tokenizer));
    Status status = add_all(arena, dir, tokenizer, tokens, out);
    tokenizer_destroy(tokenizer);
    return status;
}
