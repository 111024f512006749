/* See json_guide.h. Tokens are sorted by their bytes, and each knows how many bytes it shares with the token before. Walking them in this
 * order walks a shared beginning only once, and skips all tokens that begin with refused bytes. A mask depends only on the enclosing
 * containers that one token can close; states that differ only in containers outside of these share a mask. */
#include "infer/json_guide.h"

#include <stdlib.h>
#include <string.h>

const JsonLimits json_guide_limits = {.depth = 32, .blanks = 24, .digits = 32, .exponent = 2};

enum { KEPT_MASKS = 256 };

/* A cached mask; key: the state that it belongs to. */
typedef struct Kept {
    JsonWalk  key;
    uint64_t  used; /* serial number of its last use; 0: the entry is free */
    uint32_t *words;
} Kept;

typedef struct Token {
    const char *bytes;
    uint32_t    len, shared; /* shared: leading bytes that it has in common with the token before */
    int32_t     id;
} Token;

struct JsonTokens {
    char     *bytes;
    Token    *sorted; /* (count): the tokens that have bytes */
    Str      *by_id;  /* (choices) slices of `bytes` */
    int64_t   count, choices;
    size_t    longest;
    uint8_t   opens, closes; /* the most containers that one token opens or closes */
    JsonWalk *path;          /* (longest + 1): [0] the state before a token, then the state after each of its bytes */
    Kept      kept[KEPT_MASKS];
    uint64_t  uses;
};

/* ---- tokens ---- */

static int by_bytes(const void *a, const void *b)
{
    const Token *x = a, *y = b;
    int          order = memcmp(x->bytes, y->bytes, x->len < y->len ? x->len : y->len);
    if (order) return order;
    if (x->len != y->len) return x->len < y->len ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

static uint32_t shared_bytes(const Token *a, const Token *b)
{
    uint32_t n = 0;
    while (n < a->len && n < b->len && a->bytes[n] == b->bytes[n]) n++;
    return n;
}

static void keep_most(uint8_t *most, uint32_t count)
{
    uint32_t least = count < UINT8_MAX ? count : UINT8_MAX;
    if (least > *most) *most = (uint8_t)least;
}

static void measure(JsonTokens *tokens, const Token *token)
{
    uint32_t opens = 0, closes = 0;
    for (uint32_t i = 0; i < token->len; i++) {
        char c = token->bytes[i];
        opens += c == '{' || c == '[';
        closes += c == '}' || c == ']';
    }
    keep_most(&tokens->opens, opens);
    keep_most(&tokens->closes, closes);
    if (token->len > tokens->longest) tokens->longest = token->len;
}

static void sort_tokens(JsonTokens *tokens)
{
    tokens->sorted = malloc_or_end(((size_t)tokens->choices + 1) * sizeof *tokens->sorted);
    for (int64_t id = 0; id < tokens->choices; id++) {
        Token token = {tokens->by_id[id].data, (uint32_t)tokens->by_id[id].len, 0, (int32_t)id};
        if (!token.len) continue;
        measure(tokens, &token);
        tokens->sorted[tokens->count++] = token;
    }
    qsort(tokens->sorted, (size_t)tokens->count, sizeof *tokens->sorted, by_bytes);
    for (int64_t i = 1; i < tokens->count; i++) tokens->sorted[i].shared = shared_bytes(&tokens->sorted[i - 1], &tokens->sorted[i]);
    tokens->path = calloc_or_end(tokens->longest + 1, sizeof *tokens->path);
}

JsonTokens *json_tokens_of(const Str *bytes, int64_t count)
{
    JsonTokens *tokens = calloc_or_end(1, sizeof *tokens);
    size_t      total = 0, at = 0;
    for (int64_t i = 0; i < count; i++) total += bytes[i].len;
    tokens->choices = count;
    tokens->bytes = malloc_or_end(total + 1);
    tokens->by_id = calloc_or_end((size_t)count, sizeof *tokens->by_id);
    for (int64_t i = 0; i < count; i++) {
        if (bytes[i].len) memcpy(tokens->bytes + at, bytes[i].data, bytes[i].len);
        tokens->by_id[i] = (Str){tokens->bytes + at, bytes[i].len};
        at += bytes[i].len;
    }
    sort_tokens(tokens);
    return tokens;
}

Status json_tokens_create(const Tokenizer *tokenizer, int64_t choices, JsonTokens **out)
{
    StrBuf  all = {0};
    size_t *ends = calloc_or_end((size_t)choices, sizeof *ends);
    Str    *texts = calloc_or_end((size_t)choices, sizeof *texts);
    Status  status = OK;
    for (int64_t id = 0; id < choices && status == OK; id++) {
        bool is_text = id < tokenizer_vocab_size(tokenizer) && !tokenizer_is_special(tokenizer, (int32_t)id);
        if (is_text) status = tokenizer_append_bytes(tokenizer, (int32_t)id, &all);
        ends[id] = all.len;
    }
    for (int64_t id = 0; id < choices; id++) {
        size_t begin = id ? ends[id - 1] : 0;
        texts[id] = (Str){strbuf_cstr(&all) + begin, ends[id] - begin};
    }
    if (status == OK) *out = json_tokens_of(texts, choices);
    free(ends);
    free(texts);
    strbuf_deinit(&all);
    return status;
}

void json_tokens_destroy(JsonTokens *tokens)
{
    if (!tokens) return;
    for (int i = 0; i < KEPT_MASKS; i++) free(tokens->kept[i].words);
    free(tokens->path);
    free(tokens->sorted);
    free(tokens->by_id);
    free(tokens->bytes);
    free(tokens);
}

int64_t json_tokens_words(const JsonTokens *tokens)
{
    return (tokens->choices + 31) / 32;
}

/* ---- masks ---- */

/* Maps all states with the same mask to one key. It drops the containers that no token can close, and the exact depth if no token can
 * exceed the limit. */
static JsonWalk key_of(const JsonTokens *tokens, const JsonWalk *walk)
{
    JsonWalk key = *walk;
    uint8_t  seen = (uint8_t)(tokens->closes < JSON_WALK_DEPTH ? tokens->closes + 1 : JSON_WALK_DEPTH);
    if (walk->depth > seen && walk->depth + tokens->opens <= json_guide_limits.depth) {
        key.depth = seen;
        key.objects &= (UINT64_C(1) << seen) - 1;
    }
    return key;
}

static void make_mask(JsonTokens *tokens, const JsonWalk *walk, uint32_t *words)
{
    JsonWalk *path = tokens->path;
    size_t    walked = 0; /* bytes of the previous token that were accepted */
    path[0] = *walk;
    for (const Token *token = tokens->sorted; token < tokens->sorted + tokens->count; token++) {
        if (token->shared > walked) continue; /* the token begins with refused bytes */
        walked = token->shared;
        while (walked < token->len) {
            path[walked + 1] = path[walked];
            if (!json_walk(&path[walked + 1], &json_guide_limits, (unsigned char)token->bytes[walked])) break;
            walked++;
        }
        if (walked == token->len) words[token->id / 32] |= UINT32_C(1) << (token->id % 32);
    }
}

/* The mask of a state. Masks are cached; the least recently used one is replaced. */
static const uint32_t *find_mask(JsonTokens *tokens, const JsonWalk *walk)
{
    JsonWalk key = key_of(tokens, walk);
    Kept    *oldest = tokens->kept;
    for (Kept *kept = tokens->kept; kept < tokens->kept + KEPT_MASKS; kept++) {
        if (kept->used && memcmp(&kept->key, &key, sizeof key) == 0) {
            kept->used = ++tokens->uses;
            return kept->words;
        }
        if (kept->used < oldest->used) oldest = kept;
    }
    size_t bytes = (size_t)json_tokens_words(tokens) * sizeof *oldest->words;
    if (!oldest->words) oldest->words = malloc_or_end(bytes + 1);
    memset(oldest->words, 0, bytes);
    make_mask(tokens, walk, oldest->words);
    oldest->key = key;
    oldest->used = ++tokens->uses;
    return oldest->words;
}

/* ---- a text ---- */

void json_guide_init(JsonGuide *guide, JsonTokens *tokens, const int32_t *stops, int num_stops)
{
    *guide = (JsonGuide){.tokens = tokens, .stops = stops, .num_stops = num_stops};
}

void json_guide_lead(JsonGuide *guide, const Str *leads, int num_leads)
{
    guide->leads = leads;
    guide->num_leads = num_leads;
}

/* Whether the text so far begins this lead, and `bytes` equal the rest of the lead up to the end of the shorter one. After a complete lead
 * any bytes may follow. */
static bool follows(const JsonGuide *guide, Str lead, Str bytes)
{
    size_t led = guide->led;
    if (lead.len < led || (lead.len > led && lead.data[led] != bytes.data[0])) return false;
    size_t n = lead.len - led < bytes.len ? lead.len - led : bytes.len;
    return memcmp(lead.data, guide->leads[guide->lead].data, led) == 0 && memcmp(lead.data + led, bytes.data, n) == 0;
}

/* Advances by `bytes`, which continue leads[lead] and may reach past it. False: the JSON object doesn't accept the bytes past the lead. */
static bool take_led(JsonGuide *guide, int lead, Str bytes)
{
    size_t rest = guide->leads[lead].len - guide->led, n = rest < bytes.len ? rest : bytes.len;
    guide->lead = lead;
    guide->led += n;
    for (size_t i = n; i < bytes.len; i++)
        if (!json_walk(&guide->walk, &json_guide_limits, (unsigned char)bytes.data[i])) return false;
    return true;
}

/* Whether the text may still be within a lead: until the object begins, a longer lead may continue where a shorter one ends. */
static bool is_led(const JsonGuide *guide)
{
    static const JsonWalk before;
    return guide->num_leads && memcmp(&guide->walk, &before, sizeof before) == 0;
}

static bool push_led(JsonGuide *guide, Str bytes)
{
    for (int i = 0; i < guide->num_leads && bytes.len; i++) {
        if (!follows(guide, guide->leads[i], bytes)) continue;
        JsonGuide next = *guide;
        if (!take_led(&next, i, bytes)) continue;
        *guide = next;
        return true;
    }
    return false;
}

static void allow_led(const JsonGuide *guide, uint32_t *words)
{
    const JsonTokens *tokens = guide->tokens;
    for (int64_t id = 0; id < tokens->choices; id++) {
        JsonGuide next = *guide;
        if (push_led(&next, tokens->by_id[id])) words[id / 32] |= UINT32_C(1) << (id % 32);
    }
}

void json_guide_allow(JsonGuide *guide, uint32_t *words)
{
    JsonTokens *tokens = guide->tokens;
    if (is_led(guide)) {
        allow_led(guide, words);
        return;
    }
    if (!json_walk_is_whole(&guide->walk)) {
        memcpy(words, find_mask(tokens, &guide->walk), (size_t)json_tokens_words(tokens) * sizeof *words);
        return;
    }
    for (int i = 0; i < guide->num_stops; i++)
        if (guide->stops[i] >= 0 && guide->stops[i] < tokens->choices) words[guide->stops[i] / 32] |= UINT32_C(1) << (guide->stops[i] % 32);
}

bool json_guide_push(JsonGuide *guide, int32_t id)
{
    if (id < 0 || id >= guide->tokens->choices) return false;
    Str bytes = guide->tokens->by_id[id];
    if (is_led(guide)) return push_led(guide, bytes);
    for (size_t i = 0; i < bytes.len; i++)
        if (!json_walk(&guide->walk, &json_guide_limits, (unsigned char)bytes.data[i])) return false;
    return bytes.len > 0;
}

bool json_guide_is_whole(const JsonGuide *guide)
{
    return json_walk_is_whole(&guide->walk);
}
