/* Bytes to tokens, and the public functions. Which bytes: mask_turns.c. */
#include "data/mask.h"

#include "data/mask_turns.h"

#include <stdlib.h>
#include <string.h>

/* Bytes of text a token stands for, by decoding it alone; TOKEN_BYTES_UNKNOWN when that can't be told (a part of a character). */
static Status token_lengths(MaskRules *rules, int32_t id, StrBuf *text)
{
    TokenStream stream = { .started = true, .spoke = true };
    int64_t     raw = tokenizer_token_bytes(rules->tokenizer, id);
    rules->token_bytes[id] = TOKEN_BYTES_UNKNOWN;
    rules->raw_bytes[id] = raw > 0 && raw < TOKEN_BYTES_UNKNOWN ? (uint8_t)raw : TOKEN_BYTES_UNKNOWN;
    strbuf_clear(text);
    if (!tokenizer_id_to_token(rules->tokenizer, id)) return OK;
    rules->has_raw_bytes &= rules->raw_bytes[id] != TOKEN_BYTES_UNKNOWN;
    TRY(token_stream_push(rules->tokenizer, &stream, id, false, text));
    size_t bytes = text->len + stream.pending.len;
    bool   is_cut = text->len >= 3 && memmem(text->data, text->len, "\xef\xbf\xbd", 3);
    if (!is_cut && bytes < TOKEN_BYTES_UNKNOWN) rules->token_bytes[id] = (uint8_t)bytes;
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
    if (tmpl) rules->now_unix = template_now(tmpl);
    rules->vocab_size = tokenizer_vocab_size(tokenizer);
    rules->token_bytes = malloc(sizeof *rules->token_bytes * (size_t)rules->vocab_size);
    rules->raw_bytes = malloc(sizeof *rules->raw_bytes * (size_t)rules->vocab_size);
    if (!rules->token_bytes || !rules->raw_bytes) fatal_out_of_memory(sizeof *rules->token_bytes * (size_t)rules->vocab_size);
    rules->has_raw_bytes = true;
    StrBuf text = { 0 };
    Status status = OK;
    for (int32_t id = 0; status == OK && id < rules->vocab_size; id++)
        status = token_lengths(rules, id, &text);
    strbuf_deinit(&text);
    if (status != OK) {
        mask_rules_destroy(rules);
        return status;
    }
    if (tmpl) turns_probe(rules);
    if (tmpl) content_probe(rules);
    *out_rules = rules;
    return OK;
}

void mask_rules_destroy(MaskRules *rules)
{
    if (!rules) return;
    strbuf_deinit(&rules->opening);
    free(rules->token_bytes);
    free(rules->raw_bytes);
    free(rules);
}

void mask_rules_forbid_shortcuts(MaskRules *rules)
{
    rules->forbids_shortcuts = true;
}

void mask_rules_forbid_memo(MaskRules *rules)
{
    rules->forbids_memo = true;
}

void mask_encoder_init(MaskEncoder *encoder, const MaskRules *rules)
{
    *encoder = (MaskEncoder){ .rules = rules, .scratch = tokenizer_scratch_create(rules->tokenizer) };
    if (rules->tmpl && !rules->forbids_memo) encoder->memo = template_memo_create(rules->tmpl, rules->now_unix);
}

void mask_encoder_deinit(MaskEncoder *encoder)
{
    if (encoder->scratch) tokenizer_scratch_destroy(encoder->scratch);
    template_memo_destroy(encoder->memo);
    mask_documents_deinit(&encoder->documents);
    token_ids_deinit(&encoder->spare);
    strbuf_deinit(&encoder->laid_out);
    free(encoder->layouts);
    free(encoder->spans);
    free(encoder->ends);
    *encoder = (MaskEncoder){ 0 };
}

void mask_documents_deinit(MaskDocuments *documents)
{
    token_ids_deinit(&documents->ids);
    free(documents->mask);
    *documents = (MaskDocuments){ 0 };
}

void mask_keep(MaskEncoder *encoder)
{
    encoder->begin = encoder->documents.ids.len;
}

/* Room for the flags and ends of `count` ids of the last sample. */
static void ensure(MaskEncoder *encoder, size_t count)
{
    MaskDocuments *documents = &encoder->documents;
    if (encoder->begin + count > documents->mask_capacity) {
        documents->mask_capacity = (encoder->begin + count) * 3 / 2 + 64;
        documents->mask = realloc(documents->mask, documents->mask_capacity);
        if (!documents->mask) fatal_out_of_memory(documents->mask_capacity);
    }
    encoder->mask = documents->mask + encoder->begin;
    if (count <= encoder->end_capacity) return;
    encoder->end_capacity = count + count / 2 + 64;
    encoder->ends = realloc(encoder->ends, encoder->end_capacity * sizeof *encoder->ends);
    if (!encoder->ends) fatal_out_of_memory(encoder->end_capacity * sizeof *encoder->ends);
}

static Status encode(MaskEncoder *encoder, const char *text, size_t len, TokenIds *ids)
{
    ids->len = 0;
    return tokenizer_encode(encoder->rules->tokenizer, encoder->scratch, text, len, (EncodeOptions){ 0 }, ids);
}

/* After the documents' ids have grown. */
static void set_ids(MaskEncoder *encoder)
{
    const TokenIds *all = &encoder->documents.ids;
    encoder->ids = (TokenIds){ .data = all->data ? all->data + encoder->begin : NULL, .len = all->len - encoder->begin };
}

/* The sample begins with the ids of this text, or goes on with them. */
static Status append_ids(MaskEncoder *encoder, const char *text, size_t len, bool is_first)
{
    TokenIds *all = &encoder->documents.ids;
    if (is_first) all->len = encoder->begin;
    Status status = tokenizer_encode(encoder->rules->tokenizer, encoder->scratch, text, len, (EncodeOptions){ 0 }, all);
    set_ids(encoder);
    return status;
}

static void push_id(MaskEncoder *encoder, int32_t id)
{
    token_ids_push(&encoder->documents.ids, id);
    set_ids(encoder);
}

/* BOS first if the tokenizer adds it and the text didn't. */
static bool put_bos(MaskEncoder *encoder)
{
    const Tokenizer *tokenizer = encoder->rules->tokenizer;
    int32_t          bos = tokenizer_bos_id(tokenizer);
    TokenIds        *ids = &encoder->ids;
    if (!tokenizer_adds_bos(tokenizer) || bos < 0 || (ids->len > 0 && ids->data[0] == bos)) return false;
    push_id(encoder, bos);
    memmove(ids->data + 1, ids->data, sizeof *ids->data * (ids->len - 1));
    ids->data[0] = bos;
    return true;
}

static bool put_eos(MaskEncoder *encoder)
{
    int32_t   eos = tokenizer_eos_id(encoder->rules->tokenizer);
    TokenIds *ids = &encoder->ids;
    if (eos < 0 || (ids->len > 0 && ids->data[ids->len - 1] == eos)) return false;
    push_id(encoder, eos);
    return true;
}

/* ---- where each token ends ---- */

/* From the anchors on, so that `ends` isn't needed: the usual case. */
static bool find_anchors(MaskEncoder *encoder)
{
    const MaskRules *rules = encoder->rules;
    encoder->anchors = NULL;
    return rules->has_raw_bytes &&
           tokenizer_anchors(rules->tokenizer, encoder->scratch, &encoder->anchors, &encoder->num_anchors);
}

/* By the tokens' own lengths. */
static bool ends_by_table(MaskEncoder *encoder)
{
    const uint8_t  *token_bytes = encoder->rules->token_bytes;
    const TokenIds *ids = &encoder->ids;
    int64_t         at = 0;
    int64_t        *ends = encoder->ends;
    bool            is_known = true;
    for (size_t i = 0; i < ids->len; i++) {
        uint8_t bytes = token_bytes[ids->data[i]];
        is_known &= bytes != TOKEN_BYTES_UNKNOWN;
        ends[i] = at += bytes;
    }
    return is_known && at == (int64_t)encoder->text.len;
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

/* The last anchor that begins before a place. */
static const TokenAnchor *anchor_before(const MaskEncoder *encoder, size_t place, bool by_token)
{
    size_t low = 0, high = encoder->num_anchors;
    while (high - low > 1) {
        size_t             middle = low + (high - low) / 2;
        const TokenAnchor *anchor = &encoder->anchors[middle];
        if ((by_token ? anchor->token : anchor->byte) < place)
            low = middle;
        else
            high = middle;
    }
    return &encoder->anchors[low];
}

/* The byte where a token ends. */
static int64_t token_end(const MaskEncoder *encoder, size_t token)
{
    if (!encoder->anchors) return encoder->ends[token];
    const TokenAnchor *anchor = anchor_before(encoder, token + 1, true);
    int64_t            at = (int64_t)anchor->byte;
    for (size_t i = anchor->token; i <= token; i++) at += encoder->rules->raw_bytes[encoder->ids.data[i]];
    return at;
}

/* The first token from `low` on that ends at byte `at` > 0 or behind it; ids.len when none does. */
static size_t first_end(const MaskEncoder *encoder, size_t low, int64_t at)
{
    size_t high = encoder->ids.len;
    if (encoder->anchors) {
        const TokenAnchor *anchor = anchor_before(encoder, (size_t)at, false);
        int64_t            end = (int64_t)anchor->byte;
        size_t             token = anchor->token;
        if (anchor + 1 < encoder->anchors + encoder->num_anchors && (int64_t)anchor[1].byte == at)
            token = anchor[1].token - 1;
        else
            while (token < high && (end += encoder->rules->raw_bytes[encoder->ids.data[token]]) < at) token++;
        return token > low ? token : low;
    }
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (encoder->ends[middle] >= at)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* Sets span->first and span->end (token indices) from its bytes. */
static Status place_span(MaskEncoder *encoder, bool has_ends, TurnSpan *span)
{
    if (!has_ends) {
        TRY(token_after_prefix(encoder, span->begin_byte, &span->first));
        return token_after_prefix(encoder, span->end_byte, &span->end);
    }
    span->first = first_end(encoder, 0, (int64_t)span->begin_byte + 1);
    span->end = span->first;
    /* the first token that begins at end_byte or behind it: the one after that which ends there */
    if (span->first > 0 && token_end(encoder, span->first - 1) >= (int64_t)span->end_byte) return OK;
    if (span->first == 0 && span->end_byte == 0) return OK;
    size_t last = first_end(encoder, span->first, (int64_t)span->end_byte);
    span->end = last < encoder->ids.len ? last + 1 : last;
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
    int64_t end = has_ends ? token_end(encoder, span->end - 1) : 0;
    for (size_t i = span->end; i-- > span->first && has_ends;) {
        if (tokenizer_is_special(tokenizer, ids->data[i])) {
            span->end = i + 1;
            return;
        }
        if (i == 0) break;
        int64_t begin = encoder->anchors ? end - encoder->rules->raw_bytes[ids->data[i]] : encoder->ends[i - 1];
        if (!is_blank(encoder->text.data + begin, (size_t)(end - begin))) break;
        end = begin;
    }
    if (tokenizer_is_special(tokenizer, ids->data[span->end - 1])) return;
    if (span->end < ids->len && tokenizer_is_special(tokenizer, ids->data[span->end]))
        span->end++;
    else
        encoder->turns_without_stop++;
}

static void count_trained(MaskEncoder *encoder)
{
    const uint8_t *mask = encoder->mask;
    size_t         i = 1, len = encoder->ids.len;
    int64_t        count = 0; /* not in the struct, which bytes could alias */
    for (uint64_t flags; i + sizeof flags <= len; i += sizeof flags) {
        memcpy(&flags, mask + i, sizeof flags);
        count += __builtin_popcountll(flags);
    }
    for (; i < len; i++) count += mask[i];
    encoder->num_trained = count;
}

static Status encode_messages(MaskEncoder *encoder, const Layout *layout)
{
    bool is_all = encoder->rules->train_on == TRAIN_ON_ALL;
    TRY(append_ids(encoder, encoder->text.data, encoder->text.len, true));
    ensure(encoder, encoder->ids.len + 2);
    memset(encoder->mask, is_all, encoder->ids.len + 2);
    bool has_ends = layout->num_spans == 0 || find_anchors(encoder) || ends_by_table(encoder);
    if (!has_ends) TRY(ends_by_stream(encoder, &has_ends));
    for (uint32_t i = 0; i < layout->num_spans; i++) {
        TurnSpan *span = &encoder->spans[layout->first_span + i];
        TRY(place_span(encoder, has_ends, span));
        if (span->ends_at_stop) TRY(turns_find_stop(encoder->rules, &encoder->ids, span));
        settle_stop(encoder, has_ends, span);
        encoder->turns_without_calls += span->lacks_calls;
        encoder->turns_empty += span->is_empty;
        memset(encoder->mask + span->first, 1, span->end > span->first ? span->end - span->first : 0);
    }
    if (put_bos(encoder)) {
        memmove(encoder->mask + 1, encoder->mask, encoder->ids.len - 1);
        encoder->mask[0] = is_all;
    }
    return OK;
}

/* Prompt and answer are encoded apart, as they will be when serving. */
static Status encode_prompted(MaskEncoder *encoder, const Layout *layout)
{
    const MaskRules *rules = encoder->rules;
    size_t           cut = layout->prompt_bytes;
    TRY(append_ids(encoder, encoder->text.data, cut, true));
    put_bos(encoder);
    size_t prompt = encoder->ids.len;
    TRY(append_ids(encoder, encoder->text.data + cut, encoder->text.len - cut, false));
    put_eos(encoder);
    ensure(encoder, encoder->ids.len);
    memset(encoder->mask, rules->train_on == TRAIN_ON_ALL, encoder->ids.len);
    memset(encoder->mask + prompt, 1, encoder->ids.len - prompt);
    return OK;
}

/* ---- laying out ---- */

static void *room_for(void *data, size_t *capacity, size_t count, size_t size)
{
    if (count <= *capacity) return data;
    *capacity = count + count / 2 + 64;
    data = realloc(data, *capacity * size);
    if (!data) fatal_out_of_memory(*capacity * size);
    return data;
}

void mask_clear(MaskEncoder *encoder)
{
    strbuf_clear(&encoder->laid_out);
    encoder->num_layouts = encoder->num_spans = 0;
}

static Status lay_messages_out(MaskEncoder *encoder, Arena *arena, const Sample *sample, Layout *layout)
{
    TurnList    turns;
    bool        has_memo = encoder->memo && !sample->tools && template_memo_start(encoder->memo, sample->messages);
    TurnContext context = { .rules = encoder->rules, .sample = sample, .memo = has_memo ? encoder->memo : NULL, .arena = arena };
    TRY(turns_render(&context, &encoder->laid_out, &turns));
    encoder->spans = room_for(encoder->spans, &encoder->span_capacity, encoder->num_spans + turns.count, sizeof *encoder->spans);
    if (turns.count) memcpy(encoder->spans + encoder->num_spans, turns.spans, turns.count * sizeof *turns.spans);
    layout->first_span = encoder->num_spans;
    layout->num_spans = turns.count;
    layout->num_unprinted = turns.num_unprinted;
    encoder->num_spans += turns.count;
    return OK;
}

/* The layout's text is what was appended behind its begin. */
static void push_layout(MaskEncoder *encoder, Layout layout)
{
    layout.len = encoder->laid_out.len - layout.begin;
    encoder->layouts = room_for(encoder->layouts, &encoder->layout_capacity, encoder->num_layouts + 1, sizeof *encoder->layouts);
    encoder->layouts[encoder->num_layouts++] = layout;
}

Status mask_lay_out(MaskEncoder *encoder, Arena *arena, const Sample *sample)
{
    Layout layout = { .begin = encoder->laid_out.len, .prompt_bytes = sample->prompt_bytes,
                      .kind = sample->messages ? LAYOUT_MESSAGES : LAYOUT_PROMPTED };
    Status status = OK;
    if (sample->messages)
        status = lay_messages_out(encoder, arena, sample, &layout);
    else
        strbuf_append(&encoder->laid_out, sample->text.data, sample->text.len);
    if (status == OK)
        push_layout(encoder, layout);
    else
        encoder->laid_out.len = layout.begin;
    return status;
}

void mask_lay_text_out(MaskEncoder *encoder, Str text)
{
    Layout layout = { .begin = encoder->laid_out.len, .kind = LAYOUT_TEXT };
    strbuf_append(&encoder->laid_out, text.data, text.len);
    push_layout(encoder, layout);
}

Status mask_encode_waiting(MaskEncoder *encoder, size_t index)
{
    const Layout *layout = &encoder->layouts[index];
    encoder->text = (Str){ strbuf_cstr(&encoder->laid_out) + layout->begin, layout->len };
    if (layout->kind == LAYOUT_TEXT) return mask_encode_text(encoder, encoder->text, true, true);
    encoder->turns_without_stop = encoder->turns_without_calls = encoder->turns_empty = 0;
    encoder->messages_unprinted = (int)layout->num_unprinted;
    TRY(layout->kind == LAYOUT_MESSAGES ? encode_messages(encoder, layout) : encode_prompted(encoder, layout));
    count_trained(encoder);
    return OK;
}

Status mask_encode(MaskEncoder *encoder, Arena *arena, const Sample *sample)
{
    mask_clear(encoder);
    TRY(mask_lay_out(encoder, arena, sample));
    return mask_encode_waiting(encoder, 0);
}

Status mask_encode_text(MaskEncoder *encoder, Str text, bool is_first, bool is_last)
{
    encoder->text = text;
    encoder->turns_without_stop = encoder->turns_without_calls = encoder->turns_empty = encoder->messages_unprinted = 0;
    TRY(append_ids(encoder, text.data, text.len, true));
    if (is_first) put_bos(encoder);
    if (is_last && encoder->ids.len > 0) put_eos(encoder);
    ensure(encoder, encoder->ids.len);
    memset(encoder->mask, 1, encoder->ids.len);
    count_trained(encoder);
    return OK;
}
