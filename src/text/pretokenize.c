/* Pre-tokenizer steps. A step finds spans in each piece, delimiters and text between them; then its behaviour decides which spans are
 * joined. Steps that also change the text write the new text at the same time. */
#define _GNU_SOURCE
#include "text/pretokenize.h"

#include "base/array.h"
#include "base/str.h"

#include <stdlib.h>
#include <string.h>

typedef enum StepKind { STEP_REGEX, STEP_SCANNER, STEP_LITERAL, STEP_CLASS, STEP_METASPACE, STEP_BYTES } StepKind;

typedef enum Behavior { REMOVED, ISOLATED, MERGED_WITH_PREVIOUS, MERGED_WITH_NEXT, CONTIGUOUS } Behavior;

typedef enum PrependScheme { PREPEND_ALWAYS, PREPEND_FIRST, PREPEND_NEVER } PrependScheme;

typedef struct Step {
    StepKind      kind;
    Behavior      behavior;
    bool          invert;       /* matches are text, and the text between them is delimiter */
    uint8_t       classes;      /* STEP_CLASS: cuts at characters that have any of these classes */
    Regex        *regex;        /* STEP_REGEX; owned */
    Scanner       scanner;      /* STEP_SCANNER; STEP_BYTES: may be of kind SCAN_NONE */
    Str           literal;      /* STEP_LITERAL: the delimiter; STEP_METASPACE: the character that replaces spaces */
    PrependScheme prepend;      /* STEP_METASPACE */
    bool          split;        /* STEP_METASPACE: also cuts before each `literal` */
    bool          prefix_space; /* STEP_BYTES: adds a space before pieces that don't begin with one */
} Step;

enum { MAX_STEPS = 64, MAX_NESTING = 16 };

struct PreTokenizer {
    Step steps[MAX_STEPS];
    int  num_steps;
};

static void piece_list_push(PieceList *list, size_t start, size_t end)
{
    list->data = array_room(list->data, list->len + 1, &list->capacity, sizeof *list->data);
    list->data[list->len++] = (Piece){start, end};
}

static void span_push(PreScratch *scratch, size_t start, size_t end, bool match)
{
    scratch->spans = array_room(scratch->spans, scratch->num_spans + 1, &scratch->span_capacity, sizeof *scratch->spans);
    scratch->spans[scratch->num_spans++] = (Span){start, end, match};
}

void pre_scratch_deinit(PreScratch *scratch)
{
    free(scratch->pieces.data);
    free(scratch->spare.data);
    free(scratch->spans);
    strbuf_deinit(&scratch->text[0]);
    strbuf_deinit(&scratch->text[1]);
    *scratch = (PreScratch){0};
}

void append_byte_chars(StrBuf *out, const char *bytes, size_t len)
{
    strbuf_reserve(out, 2 * len);
    for (size_t i = 0; i < len; i++) out->len += utf8_encode(byte_to_char((uint8_t)bytes[i]), out->data + out->len);
    if (out->data) out->data[out->len] = 0;
}

/* --- reading the file's description ------------------------------------------------------------------------------ */

typedef struct Parser {
    Arena        *arena;
    PreTokenizer *pre;
} Parser;

static Status step_new(Parser *parser, StepKind kind, Behavior behavior, Step **out_step)
{
    PreTokenizer *pre = parser->pre;
    FAIL_IF(pre->num_steps == MAX_STEPS, ERR_UNSUPPORTED, "more than %d pre-tokenizers", MAX_STEPS);
    *out_step = &pre->steps[pre->num_steps++];
    **out_step = (Step){.kind = kind, .behavior = behavior};
    return OK;
}

static Status behavior_parse(const JsonValue *json, Behavior *out)
{
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
    const char              *name = NULL;
    if (!json_get_str(json, "behavior", &name)) return OK;
    for (int i = 0; i < 5; i++) {
        if (strcmp(name, names[i]) != 0) continue;
        *out = (Behavior)i;
        return OK;
    }
    FAIL(ERR_UNSUPPORTED, "pre_tokenizer behavior \"%s\" isn't supported", name);
}

static Str str_keep(Arena *arena, Str text)
{
    return (Str){arena_strndup(arena, text.data, text.len), text.len};
}

static Status split_parse(Parser *parser, const JsonValue *json)
{
    Step            *step;
    const JsonValue *pattern = json_get(json, "pattern"), *regex = json_get(pattern, "Regex");
    const JsonValue *literal = json_get(pattern, "String");
    TRY(step_new(parser, STEP_REGEX, REMOVED, &step));
    TRY(behavior_parse(json, &step->behavior));
    json_get_bool(json, "invert", &step->invert);
    if (literal && literal->type == JSON_STRING) {
        step->kind = STEP_LITERAL;
        step->literal = str_keep(parser->arena, literal->string);
        return OK;
    }
    FAIL_IF(!regex || regex->type != JSON_STRING, ERR_INVALID,
            "pre_tokenizer Split wants a pattern {\"Regex\": text} or {\"String\": text}");
    /* A scanner's words cover the whole text. So with ISOLATED the words are the pieces, and `invert` makes no difference. */
    step->scanner = scanner_of_pattern(regex->string.data, regex->string.len);
    if (step->scanner.kind != SCAN_NONE && step->behavior == ISOLATED) {
        step->kind = STEP_SCANNER;
        return OK;
    }
    Status status = regex_compile(regex->string.data, regex->string.len, &step->regex);
    if (status != OK) return status_prefix(status, "pre_tokenizer Split's Regex");
    return OK;
}

static Status bytes_parse(Parser *parser, const JsonValue *json)
{
    Step *step;
    bool  use_regex = true, prefix_space = true;
    json_get_bool(json, "use_regex", &use_regex);
    json_get_bool(json, "add_prefix_space", &prefix_space);
    TRY(step_new(parser, STEP_BYTES, ISOLATED, &step));
    step->prefix_space = prefix_space;
    if (use_regex) step->scanner.kind = SCAN_GPT2;
    return OK;
}

static Status metaspace_parse(Parser *parser, const JsonValue *json)
{
    Step       *step;
    const char *replacement = "\xE2\x96\x81", *scheme = NULL;
    bool        prefix_space = true;
    TRY(step_new(parser, STEP_METASPACE, MERGED_WITH_NEXT, &step));
    json_get_str(json, "replacement", &replacement);
    step->literal = (Str){arena_strdup(parser->arena, replacement), strlen(replacement)};
    FAIL_IF(step->literal.len == 0, ERR_INVALID, "pre_tokenizer Metaspace wants a replacement of one character");
    step->split = true;
    json_get_bool(json, "split", &step->split);
    json_get_bool(json, "add_prefix_space", &prefix_space); /* written by older files */
    step->prepend = prefix_space ? PREPEND_ALWAYS : PREPEND_NEVER;
    if (json_get_str(json, "prepend_scheme", &scheme)) {
        if (strcmp(scheme, "always") == 0) {
            step->prepend = PREPEND_ALWAYS;
        } else if (strcmp(scheme, "first") == 0) {
            step->prepend = PREPEND_FIRST;
        } else {
            FAIL_IF(strcmp(scheme, "never") != 0, ERR_UNSUPPORTED, "Metaspace prepend_scheme \"%s\" isn't supported", scheme);
            step->prepend = PREPEND_NEVER;
        }
    }
    return OK;
}

/* Adds a step that cuts at characters of these classes. */
static Status class_parse(Parser *parser, uint8_t classes, Behavior behavior)
{
    Step *step;
    TRY(step_new(parser, STEP_CLASS, behavior, &step));
    step->classes = classes;
    return OK;
}

static Status whitespace_parse(Parser *parser)
{
    Step *step;
    TRY(step_new(parser, STEP_REGEX, REMOVED, &step));
    step->invert = true;
    return regex_compile("\\w+|[^\\w\\s]+", 12, &step->regex);
}

static Status step_parse(Parser *parser, const JsonValue *json, int nesting)
{
    const char *type = NULL, *delimiter = NULL;
    Behavior    behavior = ISOLATED;
    bool        individual = false;
    Step       *step;
    FAIL_IF(!json_get_str(json, "type", &type), ERR_INVALID, "pre_tokenizer wants an object with a \"type\"");
    if (strcmp(type, "Sequence") == 0) {
        const JsonValue *list = json_get(json, "pretokenizers");
        FAIL_IF(!list || list->type != JSON_ARRAY || nesting == MAX_NESTING, ERR_INVALID,
                "pre_tokenizer Sequence wants a list \"pretokenizers\"");
        for (uint32_t i = 0; i < list->count; i++) TRY(step_parse(parser, &list->items[i], nesting + 1));
        return OK;
    }
    if (strcmp(type, "Split") == 0) return split_parse(parser, json);
    if (strcmp(type, "ByteLevel") == 0) return bytes_parse(parser, json);
    if (strcmp(type, "Metaspace") == 0) return metaspace_parse(parser, json);
    if (strcmp(type, "Digits") == 0) {
        json_get_bool(json, "individual_digits", &individual);
        return class_parse(parser, CHAR_NUMBER, individual ? ISOLATED : CONTIGUOUS);
    }
    if (strcmp(type, "Punctuation") == 0) {
        TRY(behavior_parse(json, &behavior));
        return class_parse(parser, CHAR_PUNCT, behavior);
    }
    if (strcmp(type, "WhitespaceSplit") == 0) return class_parse(parser, CHAR_SPACE, REMOVED);
    if (strcmp(type, "Whitespace") == 0) return whitespace_parse(parser);
    if (strcmp(type, "BertPreTokenizer") == 0) {
        TRY(class_parse(parser, CHAR_SPACE, REMOVED));
        return class_parse(parser, CHAR_PUNCT, ISOLATED);
    }
    if (strcmp(type, "CharDelimiterSplit") == 0) {
        FAIL_IF(!json_get_str(json, "delimiter", &delimiter), ERR_INVALID, "CharDelimiterSplit wants a \"delimiter\"");
        TRY(step_new(parser, STEP_LITERAL, REMOVED, &step));
        step->literal = (Str){arena_strdup(parser->arena, delimiter), strlen(delimiter)};
        return OK;
    }
    FAIL(ERR_UNSUPPORTED, "pre_tokenizer \"%s\" isn't supported", type);
}

Status pretokenizer_parse(Arena *arena, const JsonValue *json, PreTokenizer **out)
{
    Parser parser = {arena, arena_new(arena, PreTokenizer)};
    *out = parser.pre;
    if (!json || json->type == JSON_NULL) return OK;
    return step_parse(&parser, json, 0);
}

void pretokenizer_deinit(PreTokenizer *pre)
{
    for (int i = 0; pre && i < pre->num_steps; i++) regex_destroy(pre->steps[i].regex);
}

bool pretokenizer_ends_in_bytes(const PreTokenizer *pre)
{
    return pre->num_steps > 0 && pre->steps[pre->num_steps - 1].kind == STEP_BYTES;
}

const Scanner *pretokenizer_scanner(const PreTokenizer *pre)
{
    if (!pretokenizer_ends_in_bytes(pre) || pre->steps[pre->num_steps - 1].prefix_space) return NULL;
    if (pre->num_steps == 1 && pre->steps[0].scanner.kind != SCAN_NONE) return &pre->steps[0].scanner;
    bool two = pre->num_steps == 2 && pre->steps[0].kind == STEP_SCANNER && pre->steps[1].scanner.kind == SCAN_NONE;
    return two ? &pre->steps[0].scanner : NULL;
}

/* --- running ------------------------------------------------------------------------------------------------------ */

/* Pushes the span of a match, and before it the span of the text since the previous match. */
static void match_push(PreScratch *scratch, size_t *previous_end, size_t start, size_t end, bool invert)
{
    if (*previous_end != start) span_push(scratch, *previous_end, start, invert);
    span_push(scratch, start, end, !invert);
    *previous_end = end;
}

static Status regex_spans(const Step *step, PreScratch *scratch, Str text, Piece piece, size_t *previous_end)
{
    Str    inside = {text.data + piece.start, piece.end - piece.start};
    size_t at = 0, last_end = SIZE_MAX;
    while (at <= inside.len) {
        bool   found;
        size_t start, end;
        TRY(regex_find(step->regex, scratch->regex, inside, at, &found, &start, &end));
        if (!found) break;
        if (start != end || end != last_end) match_push(scratch, previous_end, piece.start + start, piece.start + end, step->invert);
        last_end = end;
        at = end;
        if (start == end) {
            if (end == inside.len) break;
            at += utf8_size((uint8_t)inside.data[end]);
        }
    }
    return OK;
}

static void literal_spans(const Step *step, PreScratch *scratch, Str text, Piece piece, size_t *previous_end)
{
    const char *at = text.data + piece.start, *end = text.data + piece.end;
    if (step->literal.len == 0) return;
    while (at < end && (at = memmem(at, (size_t)(end - at), step->literal.data, step->literal.len)) != NULL) {
        size_t start = (size_t)(at - text.data);
        at += step->literal.len;
        match_push(scratch, previous_end, start, start + step->literal.len, step->invert);
    }
}

static void class_spans(const Step *step, const CharTable *table, PreScratch *scratch, Str text, Piece piece, size_t *previous_end)
{
    size_t size;
    for (size_t at = piece.start; at < piece.end; at += size) {
        uint8_t flags = char_flags(table, utf8_decode(text.data + at, &size));
        if (flags & step->classes) match_push(scratch, previous_end, at, at + size, false);
    }
}

static void scanner_spans(const Scanner *scanner, const CharTable *table, PreScratch *scratch, Str text, Piece piece, size_t *previous_end)
{
    size_t len = piece.end - piece.start;
    for (size_t at = 0; at < len;) {
        size_t end = scanner_next(scanner, table, text.data + piece.start, at, len);
        match_push(scratch, previous_end, piece.start + at, piece.start + end, false);
        at = end;
    }
}

/* Joins the spans into pieces; empty pieces are dropped. */
static void spans_join(PreScratch *scratch, Behavior behavior, PieceList *out)
{
    Span  *spans = scratch->spans;
    size_t count = scratch->num_spans, kept = 0;
    bool   previous = false;
    if (behavior == MERGED_WITH_NEXT) { /* backwards; the spans kept are collected at the end of the array */
        kept = count;
        for (size_t i = count; i-- > 0;) {
            Span span = spans[i];
            if (span.match && !previous && kept < count) {
                spans[kept].start = span.start;
            } else {
                spans[--kept] = span;
            }
            previous = span.match;
        }
        spans += kept;
        kept = count - kept;
    } else {
        for (size_t i = 0; i < count; i++) {
            Span span = spans[i];
            bool join = behavior == CONTIGUOUS             ? span.match == previous && kept > 0
                        : behavior == MERGED_WITH_PREVIOUS ? span.match && !previous && kept > 0
                                                           : false;
            previous = span.match;
            if (join) {
                spans[kept - 1].end = span.end;
            } else if (behavior != REMOVED || !span.match) {
                spans[kept++] = span;
            }
        }
    }
    for (size_t i = 0; i < kept; i++)
        if (spans[i].end > spans[i].start) piece_list_push(out, spans[i].start, spans[i].end);
}

/* Splits each piece of scratch->pieces, by a step that doesn't change the text. */
static Status step_split(const Step *step, const CharTable *table, PreScratch *scratch, Str text)
{
    scratch->spare.len = 0;
    for (size_t i = 0; i < scratch->pieces.len; i++) {
        Piece  piece = scratch->pieces.data[i];
        size_t previous_end = piece.start;
        scratch->num_spans = 0;
        switch (step->kind) {
        case STEP_REGEX:
            TRY(regex_spans(step, scratch, text, piece, &previous_end));
            break;
        case STEP_CLASS:
            class_spans(step, table, scratch, text, piece, &previous_end);
            break;
        case STEP_SCANNER:
        case STEP_BYTES:
            scanner_spans(&step->scanner, table, scratch, text, piece, &previous_end);
            break;
        default:
            literal_spans(step, scratch, text, piece, &previous_end);
            break;
        }
        if (previous_end != piece.end) span_push(scratch, previous_end, piece.end, step->invert);
        spans_join(scratch, step->behavior, &scratch->spare);
    }
    PieceList list = scratch->pieces;
    scratch->pieces = scratch->spare;
    scratch->spare = list;
    return OK;
}

/* Appends the rewritten `piece` to `out`; step_rewrite below calls it for all pieces and returns the new text. `first`: the piece begins
 * the input. */
typedef void (*Rewrite)(const Step *step, StrBuf *out, Str piece, bool first);

static Str step_rewrite(const Step *step, PreScratch *scratch, Str text, bool at_start, Rewrite rewrite)
{
    StrBuf *out = &scratch->text[text.data == scratch->text[0].data && text.data ? 1 : 0];
    strbuf_clear(out);
    strbuf_reserve(out, text.len + 8);
    for (size_t i = 0; i < scratch->pieces.len; i++) {
        Piece *piece = &scratch->pieces.data[i];
        Str    inside = {text.data + piece->start, piece->end - piece->start};
        size_t start = out->len;
        rewrite(step, out, inside, at_start && i == 0 && piece->start == 0);
        *piece = (Piece){start, out->len};
    }
    return strbuf_str(out);
}

static void metaspace_rewrite(const Step *step, StrBuf *out, Str piece, bool first)
{
    bool prepend = step->prepend == PREPEND_ALWAYS || (step->prepend == PREPEND_FIRST && first);
    if (prepend && piece.data[0] != ' ' && !str_starts(piece, step->literal)) strbuf_append(out, step->literal.data, step->literal.len);
    while (piece.len > 0) {
        const char *space = memchr(piece.data, ' ', piece.len);
        size_t      len = space ? (size_t)(space - piece.data) : piece.len;
        strbuf_append(out, piece.data, len);
        if (space) strbuf_append(out, step->literal.data, step->literal.len);
        piece.data += len + (space != NULL);
        piece.len -= len + (space != NULL);
    }
}

static void prefix_rewrite(const Step *step, StrBuf *out, Str piece, bool first)
{
    (void)step, (void)first;
    if (piece.data[0] != ' ') strbuf_putc(out, ' ');
    strbuf_append(out, piece.data, piece.len);
}

static void bytes_rewrite(const Step *step, StrBuf *out, Str piece, bool first)
{
    (void)step, (void)first;
    append_byte_chars(out, piece.data, piece.len);
}

Status pretokenize(const PreTokenizer *pre, const CharTable *table, PreScratch *scratch, Str text, bool at_start, bool raw_bytes,
                   Str *out_text)
{
    scratch->pieces.len = 0;
    piece_list_push(&scratch->pieces, 0, text.len);
    for (int i = 0; i < pre->num_steps; i++) {
        const Step *step = &pre->steps[i];
        if (step->kind == STEP_METASPACE) {
            text = step_rewrite(step, scratch, text, at_start, metaspace_rewrite);
            if (step->split) TRY(step_split(step, table, scratch, text));
        } else if (step->kind == STEP_BYTES) {
            if (step->prefix_space) text = step_rewrite(step, scratch, text, at_start, prefix_rewrite);
            if (step->scanner.kind != SCAN_NONE) TRY(step_split(step, table, scratch, text));
            if (!raw_bytes || i + 1 < pre->num_steps) text = step_rewrite(step, scratch, text, at_start, bytes_rewrite);
        } else {
            TRY(step_split(step, table, scratch, text));
        }
    }
    *out_text = text;
    return OK;
}
