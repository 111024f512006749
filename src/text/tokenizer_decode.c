/* Converts ids to text. The decoder's steps rewrite a list of token texts. A stream runs the steps on one token at a time, and holds back
 * incomplete characters. */
#define _GNU_SOURCE
#include "text/tokenizer_internal.h"

#include "base/array.h"
#include "base/str.h"

#include <stdlib.h>
#include <string.h>

typedef enum StepKind {
    STEP_BYTES,
    STEP_REPLACE,
    STEP_REPLACE_REGEX,
    STEP_BYTE_FALLBACK,
    STEP_FUSE,
    STEP_STRIP,
    STEP_METASPACE,
    STEP_SUFFIX
} StepKind;

typedef struct Step {
    StepKind kind;
    bool     fused; /* an earlier step joined all tokens into one text */
    Str      pattern, content;
    Regex   *regex;       /* owned */
    int64_t  start, stop; /* strip: most characters to remove at the start and end */
    bool     prepended;   /* metaspace: encoding put a space first, which decoding removes */
} Step;

enum { MAX_STEPS = 64, MAX_NESTING = 16 };

struct Decoder {
    Step steps[MAX_STEPS];
    int  num_steps;
};

static Status metaspace_parse(Arena *arena, const JsonValue *json, Step *step)
{
    const char *scheme = "always", *replacement = "\xE2\x96\x81";
    bool        prefix_space = true;
    json_get_str(json, "replacement", &replacement);
    json_get_bool(json, "add_prefix_space", &prefix_space);
    if (!prefix_space) scheme = "never";
    json_get_str(json, "prepend_scheme", &scheme);
    step->prepended = strcmp(scheme, "never") != 0;
    step->pattern = str_of(arena_strdup(arena, replacement));
    step->content = (Str){" ", 1};
    FAIL_IF(step->pattern.len == 0, ERR_INVALID, "decoder Metaspace wants a replacement of one character");
    return OK;
}

static Status step_parse(Arena *arena, const JsonValue *json, const char *type, Step *step)
{
    static const char *const names[] = {"ByteLevel", "Replace", NULL, "ByteFallback", "Fuse", "Strip", "Metaspace", "BPEDecoder"};
    int                      kind = 0;
    while (kind < 8 && (!names[kind] || strcmp(type, names[kind]) != 0)) kind++;
    FAIL_IF(kind == 8, ERR_UNSUPPORTED, "decoder \"%s\" isn't supported", type);
    step->kind = (StepKind)kind;
    switch (step->kind) {
    case STEP_REPLACE:
        TRY(step_parse_replace(arena, json, "decoder", &step->pattern, &step->content, &step->regex));
        if (step->regex) step->kind = STEP_REPLACE_REGEX;
        return OK;
    case STEP_METASPACE:
        return metaspace_parse(arena, json, step);
    case STEP_SUFFIX:
        return step_parse_text(arena, json, "decoder", type, "suffix", &step->pattern);
    case STEP_STRIP:
        json_get_int(json, "start", &step->start);
        json_get_int(json, "stop", &step->stop);
        TRY(step_parse_text(arena, json, "decoder", type, "content", &step->content));
        FAIL_IF(step->content.len == 0, ERR_INVALID, "decoder Strip wants a \"content\" of one character");
        return OK;
    default:
        return OK;
    }
}

static Status steps_parse(Arena *arena, Decoder *decoder, const JsonValue *json, int nesting)
{
    const char *type = NULL;
    FAIL_IF(!json_get_str(json, "type", &type), ERR_INVALID, "decoder wants an object with a \"type\"");
    if (strcmp(type, "Sequence") == 0) {
        const JsonValue *list = json_get(json, "decoders");
        FAIL_IF(!list || list->type != JSON_ARRAY || nesting == MAX_NESTING, ERR_INVALID, "decoder Sequence wants a list \"decoders\"");
        for (uint32_t i = 0; i < list->count; i++) TRY(steps_parse(arena, decoder, &list->items[i], nesting + 1));
        return OK;
    }
    FAIL_IF(decoder->num_steps == MAX_STEPS, ERR_UNSUPPORTED, "more than %d decoders", MAX_STEPS);
    Step *step = &decoder->steps[decoder->num_steps++];
    for (int i = 0; i + 1 < decoder->num_steps; i++)
        step->fused |= decoder->steps[i].kind == STEP_FUSE || decoder->steps[i].kind == STEP_BYTES;
    return step_parse(arena, json, type, step);
}

Status decoder_parse(Arena *arena, const JsonValue *json, Decoder **out)
{
    *out = NULL;
    if (!json || json->type == JSON_NULL) return OK;
    *out = arena_new(arena, Decoder);
    return steps_parse(arena, *out, json, 0);
}

void decoder_deinit(Decoder *decoder)
{
    for (int i = 0; decoder && i < decoder->num_steps; i++) regex_destroy(decoder->steps[i].regex);
}

Str token_bytes(Arena *arena, Str token)
{
    char  *bytes = arena_alloc(arena, token.len + 1);
    size_t len = 0, size;
    for (size_t at = 0; at < token.len; at += size) {
        int byte = char_to_byte(utf8_decode(token.data + at, &size));
        if (byte < 0) return token;
        bytes[len++] = (char)byte;
    }
    return (Str){bytes, len};
}

/* --- running ------------------------------------------------------------------------------------------------------ */

/* Texts of tokens, stored one after another; ends[i] is the end of text i. */
typedef struct Texts {
    StrBuf  bytes;
    size_t *ends;
    size_t  count, capacity;
} Texts;

static void texts_end(Texts *texts)
{
    texts->ends = array_room(texts->ends, texts->count + 1, &texts->capacity, sizeof *texts->ends);
    texts->ends[texts->count++] = texts->bytes.len;
}

static Str texts_get(const Texts *texts, size_t i)
{
    size_t start = i ? texts->ends[i - 1] : 0;
    return (Str){strbuf_cstr(&texts->bytes) + start, texts->ends[i] - start};
}

static void texts_deinit(Texts *texts)
{
    strbuf_deinit(&texts->bytes);
    free(texts->ends);
}

/* The byte that "<0xNN>" stands for; -1: the token isn't of this form. */
static int fallback_byte(Str token)
{
    if (token.len != 6 || memcmp(token.data, "<0x", 3) != 0 || token.data[5] != '>') return -1;
    int byte = 0;
    for (int i = 3; i < 5; i++) {
        char c = token.data[i];
        int  digit = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
        if (digit < 0) return -1;
        byte = byte * 16 + digit;
    }
    return byte;
}

static void append_replaced(StrBuf *out, Str text, Str pattern, Str content)
{
    const char *end = text.data + text.len, *found;
    while (pattern.len && (found = memmem(text.data, (size_t)(end - text.data), pattern.data, pattern.len)) != NULL) {
        strbuf_append(out, text.data, (size_t)(found - text.data));
        strbuf_append(out, content.data, content.len);
        text.data = found + pattern.len;
    }
    strbuf_append(out, text.data, (size_t)(end - text.data));
}

static Str stripped(const Step *step, Str text, int64_t start, int64_t stop, int *out_taken)
{
    size_t len = step->content.len;
    *out_taken = 0;
    for (; start > *out_taken && str_starts(text, step->content); (*out_taken)++) text = str_slice(text, len, text.len);
    for (; stop > 0 && str_ends(text, step->content); stop--) text.len -= len;
    return text;
}

/* Joins each run of byte tokens into one text; if it isn't UTF-8, each byte becomes U+FFFD. */
static void step_byte_fallback(const Texts *in, Texts *out)
{
    StrBuf run = {0};
    for (size_t i = 0; i <= in->count; i++) {
        Str text = i < in->count ? texts_get(in, i) : (Str){"", 0};
        int byte = i < in->count ? fallback_byte(text) : -1;
        if (byte >= 0) {
            strbuf_putc(&run, (char)byte);
            continue;
        }
        if (run.len && utf8_valid_prefix(run.data, run.len) == run.len) {
            strbuf_append(&out->bytes, run.data, run.len);
            texts_end(out);
        } else {
            for (size_t k = 0; k < run.len; k++) {
                strbuf_puts(&out->bytes, "\xEF\xBF\xBD");
                texts_end(out);
            }
        }
        strbuf_clear(&run);
        if (i == in->count) break;
        strbuf_append(&out->bytes, text.data, text.len);
        texts_end(out);
    }
    strbuf_deinit(&run);
}

/* Runs one step on all tokens. */
static Status step_run(const Step *step, RegexScratch *regex, const Texts *in, Texts *out)
{
    if (step->kind == STEP_BYTE_FALLBACK) {
        step_byte_fallback(in, out);
        return OK;
    }
    StrBuf bytes = {0};
    int    taken;
    for (size_t i = 0; i < in->count; i++) {
        Str text = texts_get(in, i), content = step->content;
        switch (step->kind) {
        case STEP_BYTES: {
            Arena arena = {0};
            Str   token = token_bytes(&arena, text);
            strbuf_append(&bytes, token.data, token.len);
            arena_deinit(&arena);
            continue;
        }
        case STEP_REPLACE:
            append_replaced(&out->bytes, text, step->pattern, content);
            break;
        case STEP_REPLACE_REGEX:
            TRY(regex_replace(step->regex, regex, text, content, &out->bytes));
            break;
        case STEP_STRIP:
            text = stripped(step, text, step->start, step->stop, &taken);
            strbuf_append(&out->bytes, text.data, text.len);
            break;
        case STEP_METASPACE:
            if (i == 0 && step->prepended) content.len = 0;
            append_replaced(&out->bytes, text, step->pattern, content);
            break;
        case STEP_SUFFIX:
            content = (Str){" ", i + 1 < in->count};
            append_replaced(&out->bytes, text, step->pattern, content);
            break;
        default:
            strbuf_append(&out->bytes, text.data, text.len);
            continue; /* STEP_FUSE: no texts_end, so that the texts are joined */
        }
        texts_end(out);
    }
    if (step->kind == STEP_BYTES) utf8_append_repaired(&out->bytes, strbuf_cstr(&bytes), bytes.len);
    if (step->kind == STEP_BYTES || step->kind == STEP_FUSE) texts_end(out);
    strbuf_deinit(&bytes);
    return OK;
}

static bool has_regex(const Decoder *decoder)
{
    for (int i = 0; i < decoder->num_steps; i++)
        if (decoder->steps[i].kind == STEP_REPLACE_REGEX) return true;
    return false;
}

static Status decode_steps(const Decoder *decoder, Texts *texts, StrBuf *out_text)
{
    RegexScratch *regex = has_regex(decoder) ? regex_scratch_create() : NULL;
    Status        status = OK;
    for (int i = 0; i < decoder->num_steps && status == OK; i++) {
        Texts next = {0};
        status = step_run(&decoder->steps[i], regex, texts, &next);
        texts_deinit(texts);
        *texts = next;
    }
    regex_scratch_destroy(regex);
    if (status == OK) strbuf_append(out_text, strbuf_cstr(&texts->bytes), texts->bytes.len);
    return status;
}

static Status id_check(const Tokenizer *t, int32_t id)
{
    FAIL_IF(id < 0 || id >= t->num_ids, ERR_INVALID, "token id %d is outside the vocabulary (0 to %d)", id, t->num_ids - 1);
    return OK;
}

static bool decodes_bytes_only(const Decoder *decoder)
{
    return decoder && decoder->num_steps == 1 && decoder->steps[0].kind == STEP_BYTES;
}

Status tokenizer_decode(const Tokenizer *t, const int32_t *ids, size_t count, bool skip_special, StrBuf *out_text)
{
    Texts texts = {0};
    bool  bytes_only = decodes_bytes_only(t->decoder);
    for (size_t i = 0; i < count; i++) TRY(id_check(t, ids[i]));
    for (size_t i = 0; i < count; i++) {
        const IdInfo *info = &t->ids[ids[i]];
        if (!info->text.data || (skip_special && info->special)) continue;
        Str text = bytes_only ? info->bytes : info->text;
        if (!t->decoder && texts.bytes.len) strbuf_putc(&texts.bytes, ' ');
        strbuf_append(&texts.bytes, text.data, text.len);
        if (!bytes_only) texts_end(&texts);
    }
    Status status = OK;
    if (t->decoder && !bytes_only) {
        status = decode_steps(t->decoder, &texts, out_text);
    } else {
        utf8_append_repaired(out_text, strbuf_cstr(&texts.bytes), texts.bytes.len);
    }
    texts_deinit(&texts);
    return status;
}

/* --- streaming ---------------------------------------------------------------------------------------------------- */

/* Runs one step on the text of one token; *text is replaced. */
static Status stream_step(const Step *step, TokenStream *stream, StrBuf *text, StrBuf *spare)
{
    Str in = {strbuf_cstr(text), text->len}, content = step->content;
    int taken, byte;
    strbuf_clear(spare);
    switch (step->kind) {
    case STEP_BYTES: {
        Arena arena = {0};
        Str   bytes = utf8_valid_prefix(in.data, in.len) == in.len ? token_bytes(&arena, in) : in;
        strbuf_append(spare, bytes.data, bytes.len);
        arena_deinit(&arena);
        break;
    }
    case STEP_REPLACE:
        append_replaced(spare, in, step->pattern, content);
        break;
    case STEP_REPLACE_REGEX: {
        bool          whole = utf8_valid_prefix(in.data, in.len) == in.len; /* false: part of a character, in which nothing can match */
        RegexScratch *regex = regex_scratch_create();
        Status        status = OK;
        if (whole) status = regex_replace(step->regex, regex, in, content, spare);
        if (!whole) strbuf_append(spare, in.data, in.len);
        regex_scratch_destroy(regex);
        TRY(status);
        break;
    }
    case STEP_BYTE_FALLBACK:
        byte = fallback_byte(in);
        if (byte >= 0) {
            strbuf_putc(spare, (char)byte);
        } else {
            strbuf_append(spare, in.data, in.len);
        }
        break;
    case STEP_STRIP:
        in = stripped(step, in, step->fused ? (stream->spoke ? 0 : step->start - stream->stripped) : step->start,
                      step->fused ? 0 : step->stop, &taken);
        if (step->fused) stream->stripped += taken;
        strbuf_append(spare, in.data, in.len);
        break;
    case STEP_METASPACE:
        if (!stream->started && step->prepended) content.len = 0;
        append_replaced(spare, in, step->pattern, content);
        break;
    case STEP_SUFFIX:
        if (stream->space) strbuf_putc(spare, ' ');
        stream->space = step->pattern.len > 0 && str_ends(in, step->pattern);
        if (stream->space) in.len -= step->pattern.len;
        append_replaced(spare, in, step->pattern, (Str){" ", 1});
        break;
    case STEP_FUSE:
        return OK;
    }
    StrBuf swap = *text;
    *text = *spare;
    *spare = swap;
    return OK;
}

/* Appends the complete characters at the start of stream->pending to out_text; with at_end, everything. */
static void stream_flush(TokenStream *stream, bool at_end, StrBuf *out_text)
{
    StrBuf *pending = &stream->pending;
    size_t  done = 0;
    while (done < pending->len) {
        size_t good = utf8_valid_prefix(pending->data + done, pending->len - done);
        strbuf_append(out_text, pending->data + done, good);
        done += good;
        if (done == pending->len) break;
        bool   cut_short;
        size_t bad = utf8_bad_size(pending->data + done, pending->len - done, &cut_short);
        if (cut_short && !at_end) break;
        strbuf_puts(out_text, "\xEF\xBF\xBD");
        done += bad;
    }
    if (done) memmove(pending->data, pending->data + done, pending->len - done + 1);
    pending->len -= done;
}

int64_t tokenizer_token_bytes(const Tokenizer *t, int32_t id)
{
    bool is_known = id >= 0 && id < t->num_ids && t->ids[id].text.data && decodes_bytes_only(t->decoder);
    return is_known ? (int64_t)t->ids[id].bytes.len : -1;
}

/* Appends the token's bytes to stream->pending. */
static Status stream_token(const Tokenizer *t, TokenStream *stream, int32_t id)
{
    const IdInfo *info = &t->ids[id];
    StrBuf        text = {0}, spare = {0};
    Status        status = OK;
    if (decodes_bytes_only(t->decoder)) {
        strbuf_append(&stream->pending, info->bytes.data, info->bytes.len);
    } else {
        if (!t->decoder && stream->started) strbuf_putc(&text, ' ');
        strbuf_append(&text, info->text.data, info->text.len);
        for (int i = 0; t->decoder && i < t->decoder->num_steps && status == OK; i++)
            status = stream_step(&t->decoder->steps[i], stream, &text, &spare);
        strbuf_append(&stream->pending, strbuf_cstr(&text), text.len);
    }
    stream->started = true;
    stream->spoke |= stream->pending.len > 0;
    strbuf_deinit(&text);
    strbuf_deinit(&spare);
    return status;
}

Status token_stream_push(const Tokenizer *t, TokenStream *stream, int32_t id, bool skip_special, StrBuf *out_text)
{
    TRY(id_check(t, id));
    const IdInfo *info = &t->ids[id];
    if (!info->text.data || (skip_special && info->special)) return OK;
    TRY(stream_token(t, stream, id));
    stream_flush(stream, false, out_text);
    return OK;
}

Status tokenizer_append_bytes(const Tokenizer *t, int32_t id, StrBuf *out)
{
    TokenStream stream = {.started = true, .spoke = true};
    TRY(id_check(t, id));
    for (int i = 0; t->decoder && i < t->decoder->num_steps; i++)
        FAIL_IF(t->decoder->steps[i].kind == STEP_SUFFIX, ERR_UNSUPPORTED,
                "this tokenizer writes spaces between words that no token has: what a token is as text depends on the one before it");
    if (!t->ids[id].text.data) return OK;
    Status status = stream_token(t, &stream, id);
    strbuf_append(out, strbuf_cstr(&stream.pending), stream.pending.len);
    strbuf_deinit(&stream.pending);
    return status;
}

void token_stream_finish(TokenStream *stream, StrBuf *out_text)
{
    stream_flush(stream, true, out_text);
    strbuf_deinit(&stream->pending);
    *stream = (TokenStream){0};
}
