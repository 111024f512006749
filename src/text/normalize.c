/* Normalizer steps. NFC, the most common step, only rewrites text around characters that it may change. */
#define _GNU_SOURCE
#include "text/normalize.h"

#include "base/str.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

typedef enum StepKind {
    STEP_NFC,
    STEP_UNICODE, /* NFD, NFKC or NFKD */
    STEP_PREPEND,
    STEP_REPLACE,
    STEP_REPLACE_REGEX,
    STEP_STRIP,
    STEP_LOWERCASE,
    STEP_STRIP_ACCENTS,
    STEP_BYTES,
} StepKind;

typedef struct Step {
    StepKind kind;
    int      unicode_options;  /* option flags for utf8proc_map */
    Str      pattern, content; /* used by replace (both) and prepend (only `content`) */
    Regex   *regex;            /* replace; owned */
    bool     strip_left, strip_right;
} Step;

enum { MAX_STEPS = 64, MAX_NESTING = 16 };

struct Normalizer {
    Step steps[MAX_STEPS];
    int  num_steps;
};

Status step_parse_text(Arena *arena, const JsonValue *json, const char *what, const char *type, const char *key, Str *out)
{
    const JsonValue *value = json_get(json, key);
    FAIL_IF(!value || value->type != JSON_STRING, ERR_INVALID, "%s %s wants a text \"%s\"", what, type, key);
    *out = (Str){arena_strndup(arena, value->string.data, value->string.len), value->string.len};
    return OK;
}

Status step_parse_replace(Arena *arena, const JsonValue *json, const char *what, Str *pattern, Str *content, Regex **regex)
{
    const JsonValue *given = json_get(json, "pattern"), *expression = json_get(given, "Regex");
    TRY(step_parse_text(arena, json, what, "Replace", "content", content));
    if (!expression || expression->type != JSON_STRING) return step_parse_text(arena, given, what, "Replace's pattern", "String", pattern);
    Status status = regex_compile(expression->string.data, expression->string.len, regex);
    return status == OK ? OK : status_prefix(status, "%s Replace's Regex", what);
}

static Status step_parse(Arena *arena, Normalizer *normalizer, const JsonValue *json, int nesting)
{
    static const struct {
        const char *type;
        StepKind    kind;
        int         options;
    } plain[] = {
        {"NFC", STEP_NFC, UTF8PROC_COMPOSE},
        {"NFD", STEP_UNICODE, UTF8PROC_DECOMPOSE},
        {"NFKC", STEP_UNICODE, UTF8PROC_COMPOSE | UTF8PROC_COMPAT},
        {"NFKD", STEP_UNICODE, UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT},
        {"Lowercase", STEP_LOWERCASE, 0},
        {"StripAccents", STEP_STRIP_ACCENTS, 0},
        {"ByteLevel", STEP_BYTES, 0},
    };
    const char *type = NULL;
    FAIL_IF(!json_get_str(json, "type", &type), ERR_INVALID, "normalizer wants an object with a \"type\"");
    if (strcmp(type, "Sequence") == 0) {
        const JsonValue *list = json_get(json, "normalizers");
        FAIL_IF(!list || list->type != JSON_ARRAY || nesting == MAX_NESTING, ERR_INVALID,
                "normalizer Sequence wants a list \"normalizers\"");
        for (uint32_t i = 0; i < list->count; i++) TRY(step_parse(arena, normalizer, &list->items[i], nesting + 1));
        return OK;
    }
    FAIL_IF(normalizer->num_steps == MAX_STEPS, ERR_UNSUPPORTED, "more than %d normalizers", MAX_STEPS);
    Step *step = &normalizer->steps[normalizer->num_steps++];
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++) {
        if (strcmp(type, plain[i].type) != 0) continue;
        step->kind = plain[i].kind;
        step->unicode_options = plain[i].options | UTF8PROC_STABLE;
        return OK;
    }
    if (strcmp(type, "Replace") == 0) {
        TRY(step_parse_replace(arena, json, "normalizer", &step->pattern, &step->content, &step->regex));
        step->kind = step->regex ? STEP_REPLACE_REGEX : STEP_REPLACE;
        return OK;
    }
    if (strcmp(type, "Prepend") == 0) {
        step->kind = STEP_PREPEND;
        return step_parse_text(arena, json, "normalizer", type, "prepend", &step->content);
    }
    if (strcmp(type, "Strip") == 0) {
        step->kind = STEP_STRIP;
        step->strip_left = step->strip_right = true;
        json_get_bool(json, "strip_left", &step->strip_left);
        json_get_bool(json, "strip_right", &step->strip_right);
        return OK;
    }
    normalizer->num_steps--;
    FAIL(ERR_UNSUPPORTED, "normalizer \"%s\" isn't supported", type);
}

Status normalizer_parse(Arena *arena, const JsonValue *json, Normalizer **out)
{
    *out = arena_new(arena, Normalizer);
    if (!json || json->type == JSON_NULL) return OK;
    return step_parse(arena, *out, json, 0);
}

void normalizer_deinit(Normalizer *normalizer)
{
    for (int i = 0; normalizer && i < normalizer->num_steps; i++) regex_destroy(normalizer->steps[i].regex);
}

/* --- running ------------------------------------------------------------------------------------------------------ */

static Status append_mapped(StrBuf *out, Str text, int options)
{
    if (text.len == 0) return OK;
    utf8proc_uint8_t *mapped = NULL;
    utf8proc_ssize_t  len =
        utf8proc_map((const utf8proc_uint8_t *)text.data, (utf8proc_ssize_t)text.len, &mapped, (utf8proc_option_t)options);
    FAIL_IF(len < 0, ERR_INTERNAL, "Unicode normalization failed: %s", utf8proc_errmsg(len));
    strbuf_append(out, mapped, (size_t)len);
    free(mapped);
    return OK;
}

/* Position of the next open character from `at` on: one that NFC may change or join to the character before it. text.len: there is none. */
static size_t nfc_next_open(const CharTable *table, Str text, size_t at)
{
    while (at < text.len) {
        /* characters below U+0300, whose lead bytes are below 0xCC, are never open */
        while (at < text.len && (uint8_t)text.data[at] < 0xCC) at++;
        if (at >= text.len) break;
        size_t size;
        if (char_flags(table, utf8_decode(text.data + at, &size)) & CHAR_NFC_OPEN) return at;
        at += size;
    }
    return text.len;
}

/* Each stretch that is normalized starts one character before an open character, and ends before the next character that isn't open. No
 * characters join across either end. */
static Status step_nfc(const CharTable *table, const Step *step, StrBuf *out, Str text, bool *out_changed)
{
    size_t done = 0, size;
    for (;;) {
        size_t open = nfc_next_open(table, text, done);
        if (open == text.len) break;
        *out_changed = true;
        size_t start = open > done ? utf8_back(text.data, open) : open, end = open;
        while (end < text.len && (char_flags(table, utf8_decode(text.data + end, &size)) & CHAR_NFC_OPEN)) end += size;
        strbuf_append(out, text.data + done, start - done);
        TRY(append_mapped(out, (Str){text.data + start, end - start}, step->unicode_options));
        done = end;
    }
    if (*out_changed) strbuf_append(out, text.data + done, text.len - done);
    return OK;
}

static bool step_replace(const Step *step, StrBuf *out, Str text)
{
    const char *at = text.data, *end = text.data + text.len, *found;
    if (step->pattern.len == 0) return false;
    while (at < end && (found = step->pattern.len == 1 ? memchr(at, step->pattern.data[0], (size_t)(end - at))
                                                       : memmem(at, (size_t)(end - at), step->pattern.data, step->pattern.len)) != NULL) {
        if (out->len == 0) strbuf_reserve(out, text.len + text.len / 2);
        strbuf_append(out, at, (size_t)(found - at));
        strbuf_append(out, step->content.data, step->content.len);
        at = found + step->pattern.len;
    }
    if (at == text.data) return false;
    strbuf_append(out, at, (size_t)(end - at));
    return true;
}

static Str step_strip(const Step *step, const CharTable *table, Str text)
{
    size_t size, last;
    while (step->strip_left && text.len > 0 && (char_flags(table, utf8_decode(text.data, &size)) & CHAR_SPACE)) {
        text.data += size;
        text.len -= size;
    }
    while (step->strip_right && text.len > 0) {
        last = utf8_back(text.data, text.len);
        if (!(char_flags(table, utf8_decode(text.data + last, &size)) & CHAR_SPACE)) break;
        text.len = last;
    }
    return text;
}

static void step_lowercase(StrBuf *out, Str text)
{
    size_t size;
    strbuf_reserve(out, text.len + 8);
    for (size_t at = 0; at < text.len; at += size) {
        char     lower[4];
        uint32_t code = utf8_decode(text.data + at, &size);
        if (code == 0x130) { /* the only letter whose lower case is two characters */
            strbuf_append(out, "i\xCC\x87", 3);
        } else {
            strbuf_append(out, lower, utf8_encode((uint32_t)utf8proc_tolower((int32_t)code), lower));
        }
    }
}

static void step_strip_accents(const CharTable *table, StrBuf *out, Str text)
{
    size_t size;
    for (size_t at = 0; at < text.len; at += size)
        if (!(char_flags(table, utf8_decode(text.data + at, &size)) & CHAR_MARK)) strbuf_append(out, text.data + at, size);
}

static void step_bytes(StrBuf *out, Str text)
{
    strbuf_reserve(out, 2 * text.len);
    for (size_t i = 0; i < text.len; i++) out->len += utf8_encode(byte_to_char((uint8_t)text.data[i]), out->data + out->len);
    out->data[out->len] = 0;
}

/* Runs one step. *out_changed: the result is in `out`; else it is in *text. */
static Status step_run(const Step *step, const CharTable *table, RegexScratch *regex, StrBuf *out, Str *text, bool *out_changed)
{
    *out_changed = true;
    switch (step->kind) {
    case STEP_NFC:
        *out_changed = false;
        return step_nfc(table, step, out, *text, out_changed);
    case STEP_UNICODE:
        return append_mapped(out, *text, step->unicode_options);
    case STEP_PREPEND:
        if (text->len > 0) strbuf_append(out, step->content.data, step->content.len);
        strbuf_append(out, text->data, text->len);
        return OK;
    case STEP_REPLACE:
        *out_changed = step_replace(step, out, *text);
        return OK;
    case STEP_REPLACE_REGEX:
        return regex_replace(step->regex, regex, *text, step->content, out);
    case STEP_STRIP:
        *text = step_strip(step, table, *text);
        *out_changed = false;
        return OK;
    case STEP_LOWERCASE:
        step_lowercase(out, *text);
        return OK;
    case STEP_STRIP_ACCENTS:
        step_strip_accents(table, out, *text);
        return OK;
    case STEP_BYTES:
        step_bytes(out, *text);
        return OK;
    }
    return OK;
}

Status normalize(const Normalizer *normalizer, const CharTable *table, RegexScratch *regex, StrBuf buffers[2], Str text, Str *out_text)
{
    int next = 0;
    for (int i = 0; i < normalizer->num_steps; i++) {
        bool changed;
        strbuf_clear(&buffers[next]);
        TRY(step_run(&normalizer->steps[i], table, regex, &buffers[next], &text, &changed));
        if (!changed) continue;
        text = strbuf_str(&buffers[next]);
        next = 1 - next;
    }
    *out_text = text;
    return OK;
}
