/* The public functions, and the step from trained bytes (found by mask_turns.c) to trained tokens. */
#include "data/mask.h"

#include "base/array.h"
#include "base/str.h"
#include "data/mask_turns.h"

#include <stdlib.h>
#include <string.h>

/* Sets token_bytes[id]: how many bytes of text the token decodes to; if that is unknown, the length of its text when decoded alone. */
static Status token_length(MaskRules *rules, int32_t id, StrBuf *text)
{
    TokenStream stream = {.started = true, .spoke = true};
    int64_t     bytes = tokenizer_token_bytes(rules->tokenizer, id);
    bool        is_raw = bytes > 0 && bytes < MOST_TOKEN_BYTES;
    strbuf_clear(text);
    if (!tokenizer_id_to_token(rules->tokenizer, id)) return OK;
    rules->has_raw_bytes &= is_raw;
    if (!is_raw) {
        TRY(token_stream_push(rules->tokenizer, &stream, id, false, text));
        bytes = (int64_t)(text->len + stream.pending.len);
        strbuf_deinit(&stream.pending);
    }
    rules->token_bytes[id] = (uint8_t)(bytes < MOST_TOKEN_BYTES ? bytes : MOST_TOKEN_BYTES);
    return OK;
}

static Status measure_tokens(MaskRules *rules)
{
    rules->vocab_size = tokenizer_vocab_size(rules->tokenizer);
    rules->token_bytes = calloc_or_end((size_t)rules->vocab_size + 1, sizeof *rules->token_bytes);
    rules->has_raw_bytes = true;
    StrBuf text = {0};
    Status status = OK;
    for (int32_t id = 0; status == OK && id < rules->vocab_size; id++) status = token_length(rules, id, &text);
    strbuf_deinit(&text);
    return status;
}

static void probe_template(MaskRules *rules, const Template *tmpl)
{
    rules->tmpl = tmpl;
    rules->now_unix = template_now(tmpl);
    turns_probe(rules);
    content_probe(rules);
}

Status mask_rules_create(const Tokenizer *tokenizer, const Template *tmpl, TrainOn train_on, MaskRules **out_rules)
{
    const Template *with_tools = tmpl ? template_with_tools(tmpl) : NULL;
    const char     *eos = tokenizer_id_to_token(tokenizer, tokenizer_eos_id(tokenizer));
    MaskRules      *rules = calloc_or_end(1, sizeof *rules);
    *rules = (MaskRules){.tokenizer = tokenizer, .train_on = train_on, .stops[1] = str_of(eos ? eos : "")};
    *out_rules = NULL;
    Status status = measure_tokens(rules);
    if (status != OK) {
        mask_rules_destroy(rules);
        return status;
    }
    if (with_tools) {
        MaskRules *other = malloc_or_end(sizeof *other);
        *other = *rules;
        probe_template(other, with_tools);
        rules->with_tools = other;
        rules->traits.with_tools = &other->traits;
    }
    if (tmpl) probe_template(rules, tmpl);
    *out_rules = rules;
    return OK;
}

void mask_rules_destroy(MaskRules *rules)
{
    if (!rules) return;
    if (rules->with_tools) arena_deinit(&rules->with_tools->arena);
    free(rules->with_tools);
    arena_deinit(&rules->arena);
    free(rules->token_bytes);
    free(rules);
}

void mask_rules_forbid_shortcuts(MaskRules *rules)
{
    rules->forbids_shortcuts = true;
    if (rules->with_tools) rules->with_tools->forbids_shortcuts = true;
}

void mask_rules_forbid_memo(MaskRules *rules)
{
    rules->forbids_memo = true;
}

void mask_encoder_init(MaskEncoder *encoder, const MaskRules *rules)
{
    *encoder = (MaskEncoder){.rules = rules, .scratch = tokenizer_scratch_create(rules->tokenizer)};
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
    free(encoder->anchors);
    *encoder = (MaskEncoder){0};
}

void mask_documents_deinit(MaskDocuments *documents)
{
    token_ids_deinit(&documents->ids);
    free(documents->mask);
    *documents = (MaskDocuments){0};
}

void mask_keep(MaskEncoder *encoder)
{
    encoder->begin = encoder->documents.ids.len;
}

/* Makes room for the flags of `count` ids of the last sample. Afterwards encoder->mask isn't NULL, even if count is 0. */
static void ensure(MaskEncoder *encoder, size_t count)
{
    MaskDocuments *documents = &encoder->documents;
    documents->mask = array_room(documents->mask, encoder->begin + count + 1, &documents->mask_capacity, 1);
    encoder->mask = documents->mask + encoder->begin;
}

/* Points encoder->ids at the last sample; needed after documents.ids has grown. */
static void set_ids(MaskEncoder *encoder)
{
    const TokenIds *all = &encoder->documents.ids;
    encoder->ids = (TokenIds){.data = all->data ? all->data + encoder->begin : NULL, .len = all->len - encoder->begin};
}

/* Encodes a text and appends its ids to the sample. is_first: the sample is emptied before. */
static Status append_ids(MaskEncoder *encoder, const char *text, size_t len, bool is_first)
{
    TokenIds *all = &encoder->documents.ids;
    if (is_first) all->len = encoder->begin;
    Status status = tokenizer_encode(encoder->rules->tokenizer, encoder->scratch, text, len, (EncodeOptions){0}, all);
    set_ids(encoder);
    return status;
}

/* Inserts an id at index `at` of the sample. */
static void insert_id(MaskEncoder *encoder, size_t at, int32_t id)
{
    token_ids_push(&encoder->documents.ids, id);
    set_ids(encoder);
    int32_t *place = encoder->ids.data + at;
    memmove(place + 1, place, sizeof id * (encoder->ids.len - 1 - at));
    *place = id;
}

/* Inserts BOS at the start if the tokenizer adds it and the text doesn't begin with it. Returns whether it did. */
static bool put_bos(MaskEncoder *encoder)
{
    const Tokenizer *tokenizer = encoder->rules->tokenizer;
    int32_t          bos = tokenizer_bos_id(tokenizer);
    if (!tokenizer_adds_bos(tokenizer) || bos < 0 || (encoder->ids.len > 0 && encoder->ids.data[0] == bos)) return false;
    insert_id(encoder, 0, bos);
    return true;
}

static void put_eos(MaskEncoder *encoder)
{
    int32_t eos = tokenizer_eos_id(encoder->rules->tokenizer);
    size_t  len = encoder->ids.len;
    if (eos >= 0 && (len == 0 || encoder->ids.data[len - 1] != eos)) insert_id(encoder, len, eos);
}

/* ---- from byte positions in the text to tokens ---- */

/* A byte position in the text, counted in tokens. If it is inside a token, `begun` is `before` + 1; else they are equal. */
typedef struct Border {
    size_t before; /* tokens that end at or before the position */
    size_t begun;  /* tokens that begin before the position */
} Border;

/* The last anchor at or before byte `place`. */
static const TokenAnchor *anchor_at(const MaskEncoder *encoder, size_t place)
{
    size_t low = 0, high = encoder->num_anchors;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (encoder->anchors[middle].byte <= place)
            low = middle;
        else
            high = middle;
    }
    return &encoder->anchors[low];
}

/* The border `bytes` bytes into the text of ids[0..count), counted in these tokens. */
static Border border_after(const MaskEncoder *encoder, const int32_t *ids, size_t count, size_t bytes)
{
    const uint8_t *token_bytes = encoder->rules->token_bytes;
    size_t         n = 0;
    for (; n < count && bytes > 0 && bytes >= token_bytes[ids[n]]; n++) bytes -= token_bytes[ids[n]];
    return (Border){n, n + (bytes > 0 && n < count)};
}

/* The border at `place`, which is inside an added token or the blanks that the token took in. Only the token's own text counts as the
 * token. */
static Border border_in_added(const MaskEncoder *encoder, const TokenAnchor *anchor, size_t place)
{
    const char *token = tokenizer_id_to_token(encoder->rules->tokenizer, encoder->ids.data[anchor->token]);
    Str         text = str_slice(encoder->text, anchor->byte, anchor[1].byte), own = str_of(token ? token : "");
    const char *at = str_search(text, own);
    size_t      begin = at ? (size_t)(at - encoder->text.data) : anchor->byte;
    return (Border){anchor->token + (place >= begin + own.len), anchor->token + (place > begin)};
}

/* Finds a border if the bytes of the tokens differ from those of the text: encodes the text up to `place`. The tokens that this encoding
 * shares with the whole text's encoding are before `place`. After them, tokens of the whole text are counted until they have as many bytes
 * as the rest of the encoding. */
static Status border_by_prefix(MaskEncoder *encoder, const TokenAnchor *anchor, size_t place, Border *out)
{
    /* Begins one anchor earlier, so that the text at `anchor` isn't encoded as a text's start. */
    const TokenAnchor *from = anchor > encoder->anchors ? anchor - 1 : anchor;
    TokenIds          *prefix = &encoder->spare;
    prefix->len = 0;
    TRY(tokenizer_encode(encoder->rules->tokenizer, encoder->scratch, encoder->text.data + from->byte, place - from->byte,
                         (EncodeOptions){0}, prefix));
    const int32_t *ids = encoder->ids.data + from->token;
    size_t         count = anchor[1].token - from->token, n = 0, bytes = 0;
    while (n < prefix->len && n < count && prefix->data[n] == ids[n]) n++;
    for (size_t i = n; i < prefix->len; i++) bytes += encoder->rules->token_bytes[prefix->data[i]];
    Border rest = border_after(encoder, ids + n, count - n, bytes);
    *out = (Border){from->token + n + rest.before, from->token + n + rest.begun};
    return OK;
}

static Status find_border(MaskEncoder *encoder, size_t place, Border *out)
{
    const TokenAnchor *anchor = anchor_at(encoder, place);
    *out = (Border){anchor->token, anchor->token};
    if (place == anchor->byte) return OK;
    if (anchor->is_added) {
        *out = border_in_added(encoder, anchor, place);
    } else if (encoder->has_bytes) {
        Border inside = border_after(encoder, encoder->ids.data + anchor->token, anchor[1].token - anchor->token, place - anchor->byte);
        out->before += inside.before;
        out->begun += inside.begun;
    } else {
        TRY(border_by_prefix(encoder, anchor, place, out));
    }
    return OK;
}

/* Copies the anchors, because encoding other texts, to find borders, overwrites them. */
static void keep_anchors(MaskEncoder *encoder)
{
    const TokenAnchor *anchors;
    encoder->has_bytes =
        tokenizer_anchors(encoder->rules->tokenizer, encoder->scratch, &anchors, &encoder->num_anchors) && encoder->rules->has_raw_bytes;
    encoder->anchors = array_room(encoder->anchors, encoder->num_anchors, &encoder->anchor_capacity, sizeof *anchors);
    memcpy(encoder->anchors, anchors, encoder->num_anchors * sizeof *anchors);
}

/* Sets span->first and span->end (token indices): tokens that hold a byte of the span belong to it. Blanks after a stop token don't. */
static Status place_span(MaskEncoder *encoder, TurnSpan *span)
{
    const Tokenizer *tokenizer = encoder->rules->tokenizer;
    const int32_t   *ids = encoder->ids.data;
    Border           begin, end, bare;
    size_t           bare_byte = span->begin_byte + str_trim_end(str_slice(encoder->text, span->begin_byte, span->end_byte)).len;
    TRY(find_border(encoder, span->begin_byte, &begin));
    TRY(find_border(encoder, bare_byte, &bare));
    bool ends_with_stop = bare.before > begin.before && bare.before == bare.begun && turns_is_stop(tokenizer, ids[bare.before - 1]);
    end = bare;
    if (!ends_with_stop && bare_byte < span->end_byte) TRY(find_border(encoder, span->end_byte, &end));
    span->first = begin.before;
    span->end = end.begun;
    if (span->first < span->end && !span->goes_on) encoder->turns_without_stop += !turns_is_stop(tokenizer, ids[span->end - 1]);
    return OK;
}

static void count_trained(MaskEncoder *encoder)
{
    const uint8_t *mask = encoder->mask;
    int64_t        count = 0; /* a local: the bytes of mask could alias the struct */
    for (size_t i = 1, len = encoder->ids.len; i < len; i++) count += mask[i];
    encoder->num_trained = count;
}

static Status encode_messages(MaskEncoder *encoder, const Layout *layout)
{
    bool is_all = encoder->rules->train_on == TRAIN_ON_ALL;
    TRY(append_ids(encoder, encoder->text.data, encoder->text.len, true));
    ensure(encoder, encoder->ids.len + 2);
    memset(encoder->mask, is_all, encoder->ids.len + 2);
    if (layout->num_spans > 0) keep_anchors(encoder);
    for (uint32_t i = 0; i < layout->num_spans; i++) {
        TurnSpan *span = &encoder->spans[layout->first_span + i];
        TRY(place_span(encoder, span));
        encoder->turns_without_calls += span->lacks_calls;
        encoder->turns_empty += span->is_empty;
        memset(encoder->mask + span->first, !is_all, span->end > span->first ? span->end - span->first : 0);
    }
    if (is_all) encoder->turns_without_stop = encoder->turns_without_calls = encoder->turns_empty = 0; /* the spans are untrained turns */
    if (put_bos(encoder)) {
        memmove(encoder->mask + 1, encoder->mask, encoder->ids.len - 1);
        encoder->mask[0] = is_all;
    }
    return OK;
}

/* Prompt and answer are encoded separately, as they will be when serving. */
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

void mask_clear(MaskEncoder *encoder)
{
    strbuf_clear(&encoder->laid_out);
    encoder->num_layouts = encoder->num_spans = 0;
}

static Status lay_messages_out(MaskEncoder *encoder, Arena *arena, const Sample *sample, Layout *layout)
{
    TurnList    turns;
    bool        has_memo = encoder->memo && !sample->tools && template_memo_start(encoder->memo, sample->messages);
    bool        is_others = sample->tools && encoder->rules->with_tools;
    TurnContext context = {.rules = is_others ? encoder->rules->with_tools : encoder->rules,
                           .sample = sample,
                           .memo = has_memo ? encoder->memo : NULL,
                           .arena = arena};
    TRY(turns_render(&context, &encoder->laid_out, &turns));
    encoder->spans = array_room(encoder->spans, encoder->num_spans + turns.count, &encoder->span_capacity, sizeof *encoder->spans);
    if (turns.count) memcpy(encoder->spans + encoder->num_spans, turns.spans, turns.count * sizeof *turns.spans);
    layout->first_span = encoder->num_spans;
    layout->num_spans = turns.count;
    layout->num_unprinted = turns.num_unprinted;
    encoder->num_spans += turns.count;
    return OK;
}

/* Appends the ids themselves to laid_out, as int32. An id that isn't trained is stored as ~id, which is below 0. */
static Status lay_ids_out(MaskEncoder *encoder, const Sample *sample)
{
    const MaskRules *rules = encoder->rules;
    for (uint32_t i = 0; i < sample->ids->count; i++) {
        int64_t id = sample->ids->items[i].integer, label = sample->labels ? sample->labels->items[i].integer : id;
        FAIL_IF(id < 0 || id >= rules->vocab_size, ERR_INVALID, "id %u is %lld; expected a token of the tokenizer, 0 to %d", i,
                (long long)id, rules->vocab_size - 1);
        FAIL_IF(label != id && label != LABEL_IGNORE, ERR_INVALID,
                "label %u is %lld, the id there %lld; expected that id, or %d where it isn't trained: labels aren't shifted", i,
                (long long)label, (long long)id, LABEL_IGNORE);
        bool    is_trained = rules->train_on == TRAIN_ON_ALL || i >= sample->prompt_ids;
        int32_t kept = is_trained && label == id ? (int32_t)id : ~(int32_t)id;
        strbuf_append(&encoder->laid_out, (const char *)&kept, sizeof kept);
    }
    return OK;
}

static Status encode_ids(MaskEncoder *encoder)
{
    TokenIds *all = &encoder->documents.ids;
    size_t    count = encoder->text.len / sizeof(int32_t);
    all->len = encoder->begin;
    for (size_t i = 0; i < count; i++) token_ids_push(all, 0);
    set_ids(encoder);
    ensure(encoder, count);
    if (count) memcpy(encoder->ids.data, encoder->text.data, encoder->text.len);
    for (size_t i = 0; i < count; i++) {
        encoder->mask[i] = encoder->ids.data[i] >= 0;
        if (!encoder->mask[i]) encoder->ids.data[i] = ~encoder->ids.data[i];
    }
    return OK;
}

/* The layout's text is all text appended since layout.begin. */
static void push_layout(MaskEncoder *encoder, Layout layout)
{
    layout.len = encoder->laid_out.len - layout.begin;
    encoder->layouts = array_room(encoder->layouts, encoder->num_layouts + 1, &encoder->layout_capacity, sizeof *encoder->layouts);
    encoder->layouts[encoder->num_layouts++] = layout;
}

Status mask_lay_out(MaskEncoder *encoder, Arena *arena, const Sample *sample)
{
    Layout layout = {.begin = encoder->laid_out.len,
                     .prompt_bytes = sample->prompt_bytes,
                     .kind = sample->ids        ? LAYOUT_IDS
                             : sample->messages ? LAYOUT_MESSAGES
                                                : LAYOUT_PROMPTED};
    Status status = OK;
    if (sample->ids)
        status = lay_ids_out(encoder, sample);
    else if (sample->messages)
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
    Layout layout = {.begin = encoder->laid_out.len, .kind = LAYOUT_TEXT};
    strbuf_append(&encoder->laid_out, text.data, text.len);
    push_layout(encoder, layout);
}

Status mask_encode_waiting(MaskEncoder *encoder, size_t index)
{
    const Layout *layout = &encoder->layouts[index];
    encoder->text = (Str){strbuf_cstr(&encoder->laid_out) + layout->begin, layout->len};
    if (layout->kind == LAYOUT_TEXT) return mask_encode_text(encoder, encoder->text, true, true);
    encoder->turns_without_stop = encoder->turns_without_calls = encoder->turns_empty = 0;
    encoder->messages_unprinted = (int)layout->num_unprinted;
    TRY(layout->kind == LAYOUT_MESSAGES   ? encode_messages(encoder, layout)
        : layout->kind == LAYOUT_PROMPTED ? encode_prompted(encoder, layout)
                                          : encode_ids(encoder));
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
