/* Bytes to tokens, and the public functions. Which bytes: mask_turns.c. */
#include "data/mask.h"

#include "data/mask_turns.h"

#include <stdlib.h>
#include <string.h>

/* Bytes of text a token alone stands for, by decoding it; TOKEN_BYTES_UNKNOWN when that can't be told (a part of a character). */
static Status token_length(const Tokenizer *tokenizer, int32_t id, StrBuf *text, uint8_t *out)
{
    TokenStream stream = { .started = true, .spoke = true };
    *out = TOKEN_BYTES_UNKNOWN;
    strbuf_clear(text);
    if (!tokenizer_id_to_token(tokenizer, id)) return OK;
    TRY(token_stream_push(tokenizer, &stream, id, false, text));
    size_t bytes = text->len + stream.pending.len;
    bool   is_cut = text->len >= 3 && memmem(text->data, text->len, "\xef\xbf\xbd", 3);
    if (!is_cut && bytes < TOKEN_BYTES_UNKNOWN) *out = (uint8_t)bytes;
    strbuf_deinit(&stream.pending);
    return OK;
}

Status mask_rules_create(const Tokenizer *tokenizer, const Template *tmpl, TrainOn train_on, MaskRules **out_rules)
{
    *out_rules = NULL;
    MaskRules *rules = calloc(1, sizeof *rules);
    if (!rules) fatal_out_of_memory(sizeof *rules);
    rules->tokenizer = tokenizer;
    rules->tmpl = tmpl;
    rules->train_on = train_on;
    rules->vocab_size = tokenizer_vocab_size(tokenizer);
    rules->token_bytes = malloc(sizeof *rules->token_bytes * (size_t)rules->vocab_size);
    if (!rules->token_bytes) fatal_out_of_memory(sizeof *rules->token_bytes * (size_t)rules->vocab_size);
    StrBuf text = { 0 };
    Status status = OK;
    for (int32_t id = 0; status == OK && id < rules->vocab_size; id++)
        status = token_length(tokenizer, id, &text, &rules->token_bytes[id]);
    strbuf_deinit(&text);
    if (status != OK) {
        mask_rules_destroy(rules);
        return status;
    }
    if (tmpl) turns_probe(rules);
    *out_rules = rules;
    return OK;
}

void mask_rules_destroy(MaskRules *rules)
{
    if (!rules) return;
    strbuf_deinit(&rules->opening);
    free(rules->token_bytes);
    free(rules);
}

void mask_rules_forbid_shortcut(MaskRules *rules)
{
    strbuf_clear(&rules->opening);
}

void mask_encoder_init(MaskEncoder *encoder, const MaskRules *rules)
{
    *encoder = (MaskEncoder){ .rules = rules, .scratch = tokenizer_scratch_create(rules->tokenizer) };
}

void mask_encoder_deinit(MaskEncoder *encoder)
{
    if (encoder->scratch) tokenizer_scratch_destroy(encoder->scratch);
    token_ids_deinit(&encoder->ids);
    token_ids_deinit(&encoder->spare);
    strbuf_deinit(&encoder->text);
    free(encoder->mask);
    free(encoder->ends);
    *encoder = (MaskEncoder){ 0 };
}

static void ensure(MaskEncoder *encoder, size_t count)
{
    if (count <= encoder->capacity) return;
    encoder->capacity = count + count / 2 + 64;
    encoder->mask = realloc(encoder->mask, encoder->capacity);
    encoder->ends = realloc(encoder->ends, encoder->capacity * sizeof *encoder->ends);
    if (!encoder->mask || !encoder->ends) fatal_out_of_memory(encoder->capacity);
}

static Status encode(MaskEncoder *encoder, const char *text, size_t len, TokenIds *ids)
{
    ids->len = 0;
    return tokenizer_encode(encoder->rules->tokenizer, encoder->scratch, text, len, (EncodeOptions){ 0 }, ids);
}

/* BOS first if the tokenizer adds it and the text didn't. */
static bool put_bos(MaskEncoder *encoder)
{
    const Tokenizer *tokenizer = encoder->rules->tokenizer;
    int32_t          bos = tokenizer_bos_id(tokenizer);
    TokenIds        *ids = &encoder->ids;
    if (!tokenizer_adds_bos(tokenizer) || bos < 0 || (ids->len > 0 && ids->data[0] == bos)) return false;
    token_ids_push(ids, bos);
    memmove(ids->data + 1, ids->data, sizeof *ids->data * (ids->len - 1));
    ids->data[0] = bos;
    return true;
}

static bool put_eos(MaskEncoder *encoder)
{
    int32_t   eos = tokenizer_eos_id(encoder->rules->tokenizer);
    TokenIds *ids = &encoder->ids;
    if (eos < 0 || (ids->len > 0 && ids->data[ids->len - 1] == eos)) return false;
    token_ids_push(ids, eos);
    return true;
}

/* ---- where each token ends ---- */

/* By the tokens' own lengths. */
static bool ends_by_table(MaskEncoder *encoder)
{
    const TokenIds *ids = &encoder->ids;
    int64_t         at = 0;
    for (size_t i = 0; i < ids->len; i++) {
        uint8_t bytes = encoder->rules->token_bytes[ids->data[i]];
        if (bytes == TOKEN_BYTES_UNKNOWN) return false;
        encoder->ends[i] = at += bytes;
    }
    return at == (int64_t)encoder->text.len;
}

/* By decoding them one after the other: right too when characters are cut, or a leading space was added. */
static Status ends_by_stream(MaskEncoder *encoder, bool *out_fits)
{
    TokenStream stream = { 0 };
    StrBuf      text = { 0 };
    Status      status = OK;
    for (size_t i = 0; status == OK && i < encoder->ids.len; i++) {
        status = token_stream_push(encoder->rules->tokenizer, &stream, encoder->ids.data[i], false, &text);
        encoder->ends[i] = (int64_t)(text.len + stream.pending.len);
    }
    token_stream_finish(&stream, &text);
    *out_fits = text.len == encoder->text.len && (text.len == 0 || memcmp(text.data, encoder->text.data, text.len) == 0);
    strbuf_deinit(&text);
    return status;
}

/* First token that ends after byte `at`, when no exact map exists: as many as encoding the text before it gives too. */
static Status token_after_prefix(MaskEncoder *encoder, size_t at, size_t *out)
{
    TRY(encode(encoder, encoder->text.data, at, &encoder->spare));
    size_t n = 0, most = encoder->spare.len < encoder->ids.len ? encoder->spare.len : encoder->ids.len;
    while (n < most && encoder->spare.data[n] == encoder->ids.data[n]) n++;
    *out = n;
    return OK;
}

/* Sets span->first and span->end (token indices) from its bytes. */
static Status place_span(MaskEncoder *encoder, bool has_ends, TurnSpan *span)
{
    if (!has_ends) {
        TRY(token_after_prefix(encoder, span->begin_byte, &span->first));
        return token_after_prefix(encoder, span->end_byte, &span->end);
    }
    const int64_t *ends = encoder->ends;
    size_t         low = 0, high = encoder->ids.len;
    while (low < high) { /* the first token that ends after begin_byte */
        size_t middle = low + (high - low) / 2;
        if (ends[middle] > (int64_t)span->begin_byte)
            high = middle;
        else
            low = middle + 1;
    }
    span->first = low;
    while (low < encoder->ids.len && (low == 0 ? 0 : ends[low - 1]) < (int64_t)span->end_byte) low++;
    span->end = low;
    return OK;
}

static bool is_blank(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (text[i] != ' ' && text[i] != '\n' && text[i] != '\r' && text[i] != '\t') return false;
    return true;
}

/* A span ends with its stop token: the one that follows it when special, or the last special one within when only blanks
 * come after it. */
static void settle_stop(MaskEncoder *encoder, bool has_ends, TurnSpan *span)
{
    const Tokenizer *tokenizer = encoder->rules->tokenizer;
    const TokenIds  *ids = &encoder->ids;
    if (span->first >= span->end) return;
    for (size_t i = span->end; i-- > span->first && has_ends;) {
        size_t from = (size_t)encoder->ends[i], to = (size_t)encoder->ends[span->end - 1];
        if (!is_blank(encoder->text.data + from, to - from)) break;
        if (tokenizer_is_special(tokenizer, ids->data[i])) {
            span->end = i + 1;
            return;
        }
    }
    if (tokenizer_is_special(tokenizer, ids->data[span->end - 1])) return;
    if (span->end < ids->len && tokenizer_is_special(tokenizer, ids->data[span->end]))
        span->end++;
    else
        encoder->turns_without_stop++;
}

static void count_trained(MaskEncoder *encoder)
{
    encoder->num_trained = 0;
    for (size_t i = 1; i < encoder->ids.len; i++) encoder->num_trained += encoder->mask[i];
}

static Status encode_messages(MaskEncoder *encoder, Arena *arena, const Sample *sample)
{
    TurnList turns;
    TRY(turns_render(encoder->rules, arena, sample, &encoder->text, &turns));
    TRY(encode(encoder, strbuf_cstr(&encoder->text), encoder->text.len, &encoder->ids));
    ensure(encoder, encoder->ids.len + 2);
    memset(encoder->mask, turns.is_all, encoder->ids.len + 2);
    bool has_ends = turns.count == 0 || ends_by_table(encoder);
    if (!has_ends) TRY(ends_by_stream(encoder, &has_ends));
    for (uint32_t i = 0; i < turns.count; i++) {
        TurnSpan *span = &turns.spans[i];
        TRY(place_span(encoder, has_ends, span));
        if (span->ends_at_stop) TRY(turns_find_stop(encoder->rules, &encoder->ids, span));
        settle_stop(encoder, has_ends, span);
        memset(encoder->mask + span->first, 1, span->end > span->first ? span->end - span->first : 0);
    }
    if (put_bos(encoder)) {
        memmove(encoder->mask + 1, encoder->mask, encoder->ids.len - 1);
        encoder->mask[0] = turns.is_all;
    }
    return OK;
}

/* Prompt and answer are encoded apart, as they will be when serving. */
static Status encode_prompted(MaskEncoder *encoder, const Sample *sample)
{
    const MaskRules *rules = encoder->rules;
    size_t           cut = sample->prompt_bytes;
    strbuf_clear(&encoder->text);
    strbuf_append(&encoder->text, sample->text.data, sample->text.len);
    TRY(encode(encoder, encoder->text.data, cut, &encoder->ids));
    put_bos(encoder);
    size_t prompt = encoder->ids.len;
    TRY(tokenizer_encode(rules->tokenizer, encoder->scratch, encoder->text.data + cut, encoder->text.len - cut,
                         (EncodeOptions){ 0 }, &encoder->ids));
    put_eos(encoder);
    ensure(encoder, encoder->ids.len);
    memset(encoder->mask, rules->train_on == TRAIN_ON_ALL, encoder->ids.len);
    memset(encoder->mask + prompt, 1, encoder->ids.len - prompt);
    return OK;
}

Status mask_encode(MaskEncoder *encoder, Arena *arena, const Sample *sample)
{
    encoder->turns_without_stop = 0;
    TRY(sample->messages ? encode_messages(encoder, arena, sample) : encode_prompted(encoder, sample));
    count_trained(encoder);
    return OK;
}

Status mask_encode_text(MaskEncoder *encoder, Str text, bool is_first, bool is_last)
{
    encoder->turns_without_stop = 0;
    TRY(encode(encoder, text.data, text.len, &encoder->ids));
    if (is_first) put_bos(encoder);
    if (is_last && encoder->ids.len > 0) put_eos(encoder);
    ensure(encoder, encoder->ids.len);
    memset(encoder->mask, 1, encoder->ids.len);
    count_trained(encoder);
    return OK;
}
