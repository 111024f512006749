/* Runs Oniguruma's regular expressions with PCRE2. The translator copies the expression item by item. An item that means something else in
 * PCRE2 is replaced by an equivalent one. */
#include "text/pretokenize_regex.h"

#include "text/tokenizer_unicode.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <ctype.h>
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum {
    MAX_GROUP_DEPTH = 100,
    MAX_SET_DEPTH = 10,
    JIT_STACK_BYTES = 8 << 20,
    MATCH_LIMIT = 10 * 1000 * 1000, /* a search that needs more steps fails */
    HEAP_LIMIT_KIB = 64 << 10
};

struct Regex {
    pcre2_code *code;
};

struct RegexScratch {
    pcre2_match_data    *match;
    pcre2_match_context *context; /* match limits, and the stack of the JIT */
    pcre2_jit_stack     *jit_stack;
};

typedef struct Translator {
    const char *pattern;
    size_t      len, at;
    StrBuf     *out;
    size_t      atom;                         /* offset in `out` of the last item, for a quantifier after it */
    size_t      group_start[MAX_GROUP_DEPTH]; /* offsets in `out` of the groups still open */
    int         depth;
} Translator;

#define SPACE_SET "\\t-\\r \\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}"
#define NOT_SPACE_SET \
    "\\x00-\\x08\\x0E-\\x1F!-\\x{84}\\x{86}-\\x{9F}\\x{A1}-\\x{167F}\\x{1681}-\\x{1FFF}\\x{200B}-\\x{2027}" \
    "\\x{202A}-\\x{202E}\\x{2030}-\\x{205E}\\x{2060}-\\x{2FFF}\\x{3001}-\\x{10FFFF}"

/* A Unicode property under PCRE2's name. is_class: a general category. is_script: a script, written \p{sc:name}; without "sc:" PCRE2 would
 * match script extensions. */
typedef struct Property {
    char name[40];
    bool is_class, is_script;
} Property;

static bool pcre2_knows(const char *format, const char *name)
{
    char   text[64];
    int    error;
    size_t offset;
    snprintf(text, sizeof text, format, name);
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED, PCRE2_UTF, &error, &offset, NULL);
    pcre2_code_free(code);
    return code != NULL;
}

/* Finds a property by name; case, blanks, hyphens and underscores are ignored. */
static Status find_property(Str text, Property *out)
{
    size_t len = 0;
    *out = (Property){0};
    for (size_t i = 0; i < text.len && len + 1 < sizeof out->name; i++)
        if (!strchr(" -_", text.data[i])) out->name[len++] = (char)tolower((unsigned char)text.data[i]);
    out->is_class = len > 0 && len <= 2;
    out->is_script = !out->is_class && pcre2_knows("\\p{sc:%s}", out->name);
    FAIL_IF(!out->is_script && !pcre2_knows("\\p{%s}", out->name), ERR_UNSUPPORTED, "the property \\p{%.*s} isn't supported", (int)text.len,
            text.data);
    return OK;
}

/* Whether a row of tokenizer_unicode_ranges.def belongs to the property. The row of a script holds its name and its short name: "Han
 * Hani". */
static bool has_row(const Property *property, const char *row, bool is_script)
{
    if (is_script != property->is_script) return false;
    if (!is_script) return property->is_class && strncasecmp(property->name, row, strlen(property->name)) == 0;
    const char *short_name = strchr(row, ' ');
    size_t      len = (size_t)(short_name - row);
    return (strlen(property->name) == len && strncasecmp(property->name, row, len) == 0) || strcasecmp(property->name, short_name + 1) == 0;
}

/* Appends the members of a property, to be written inside []: the members that PCRE2 knows, and ranges that newer Unicode versions added.
 * Returns the number of those ranges. */
static int put_property(StrBuf *out, const Property *property)
{
    static const struct {
        const char *name;
        bool        is_script;
        uint32_t    first, last;
    } newer[] = {
#define RANGE(class, first, last) {#class, false, first, last},
#define SCRIPT(name, first, last) {name, true, first, last},
#include "text/tokenizer_unicode_ranges.def"
#undef RANGE
#undef SCRIPT
    };
    int count = 0;
    strbuf_printf(out, property->is_script ? "\\p{sc:%s}" : "\\p{%s}", property->name);
    for (size_t i = 0; i < sizeof newer / sizeof newer[0]; i++) {
        if (!has_row(property, newer[i].name, newer[i].is_script)) continue;
        strbuf_printf(out, "\\x{%X}-\\x{%X}", newer[i].first, newer[i].last);
        count++;
    }
    return count;
}

/* Appends the members of a general category; `name` is one or two letters. */
static void put_class(StrBuf *out, const char *name)
{
    Property property = {.is_class = true};
    strcpy(property.name, name);
    put_property(out, &property);
}

/* Appends the members of \w. Outside of [] Oniguruma's \w contains a few more Latin-1 characters. */
static void put_word(StrBuf *out, bool in_set)
{
    strbuf_puts(out, "\\p{Alphabetic}\\p{Pc}");
    if (!in_set) strbuf_puts(out, "\\xB2\\xB3\\xB9\\xBC-\\xBE");
    put_class(out, "L");
    put_class(out, "M");
    put_class(out, "Nd");
}

/* Appends the members of an escape like \s, to be written inside []; false: the escape means the same in PCRE2. */
static bool put_escape_set(StrBuf *out, char letter, bool in_set)
{
    switch (letter) {
    case 's':
        strbuf_puts(out, SPACE_SET);
        return true;
    case 'S':
        strbuf_puts(out, NOT_SPACE_SET);
        return true;
    case 'd':
        put_class(out, "Nd");
        return true;
    case 'h':
        strbuf_puts(out, "0-9A-Fa-f");
        return true;
    case 'H':
        strbuf_puts(out, "\\x00-/:-@G-`g-\\x{10FFFF}");
        return true;
    case 'w':
        put_word(out, in_set);
        return true;
    default:
        return false;
    }
}

/* Parses \p{name}, \P{name} or \p{^name} at t->at; returns its length, or 0 if there is none. */
static size_t property_at(const Translator *t, Str *out_name, bool *out_negated)
{
    const char *p = t->pattern + t->at;
    size_t      left = t->len - t->at, open = 3;
    if (left < 5 || (p[1] != 'p' && p[1] != 'P') || p[2] != '{') return 0;
    *out_negated = p[1] == 'P';
    if (p[3] == '^') {
        *out_negated = !*out_negated;
        open++;
    }
    const char *end = memchr(p + open, '}', left - open);
    if (!end) return 0;
    *out_name = (Str){p + open, (size_t)(end - p) - open};
    return (size_t)(end - p) + 1;
}

static Status translate_property(Translator *t, Str name, bool negated, bool in_set, size_t size)
{
    StrBuf  *out = t->out;
    Property property;
    TRY(find_property(name, &property));
    size_t before = out->len;
    if (!in_set) strbuf_puts(out, negated ? "[^" : "[");
    int num_newer = put_property(out, &property);
    FAIL_IF(in_set && negated && num_newer > 0, ERR_UNSUPPORTED, "%.*s inside [] isn't supported", (int)size, t->pattern + t->at);
    if (in_set && negated) out->data[before + 1] = 'P';
    if (!in_set) strbuf_putc(out, ']');
    t->at += size;
    return OK;
}

/* \b: a position between a word character and another character or an end of the text. \B (negated): any other position. */
static void put_boundary(StrBuf *out, bool negated)
{
    strbuf_puts(out, "(?:(?<=[");
    put_word(out, false);
    strbuf_puts(out, negated ? "])(?=[" : "])(?![");
    put_word(out, false);
    strbuf_puts(out, "])|(?<![");
    put_word(out, false);
    strbuf_puts(out, negated ? "])(?![" : "])(?=[");
    put_word(out, false);
    strbuf_puts(out, "]))");
}

static Status translate_escape(Translator *t, bool in_set)
{
    StrBuf     *out = t->out;
    const char *p = t->pattern + t->at;
    FAIL_IF(t->at + 1 == t->len, ERR_INVALID, "the expression ends with a backslash");
    Str    name;
    bool   negated;
    size_t size = property_at(t, &name, &negated);
    if (size) return translate_property(t, name, negated, in_set, size);
    FAIL_IF(in_set && (p[1] == 'W' || p[1] == 'D'), ERR_UNSUPPORTED, "\\%c inside [] isn't supported", p[1]);
    t->at += 2;
    if (p[1] == 'W' || p[1] == 'D') {
        strbuf_puts(out, "[^");
        if (p[1] == 'W')
            put_word(out, false);
        else
            put_class(out, "Nd");
        strbuf_putc(out, ']');
    } else if (!in_set && (p[1] == 'b' || p[1] == 'B')) {
        put_boundary(out, p[1] == 'B');
    } else if (p[1] == 'u' && t->len - t->at >= 4) {
        strbuf_printf(out, "\\x{%.4s}", t->pattern + t->at);
        t->at += 4;
    } else {
        size_t before = out->len;
        if (!in_set) strbuf_putc(out, '[');
        if (put_escape_set(out, p[1], in_set)) {
            if (!in_set) strbuf_putc(out, ']');
            return OK;
        }
        out->len = before;
        strbuf_append(out, p, 2);
        if (p[1] == 'x' || p[1] == 'k' || p[1] == 'g') {
            if (t->at < t->len && p[2] == '{')
                while (t->at < t->len && t->pattern[t->at - 1] != '}') strbuf_putc(out, t->pattern[t->at++]);
        }
    }
    return OK;
}

/* Translates [:name:] at t->at inside a set; false: there is none. */
static bool translate_posix(Translator *t)
{
    static const struct {
        const char *name, *members; /* members NULL: built by code below */
    } classes[] = {
        {"[:alpha:]", "\\p{Alphabetic}"},
        {"[:digit:]", NULL},
        {"[:alnum:]", "\\p{Alphabetic}\\p{Nd}"},
        {"[:space:]", SPACE_SET},
        {"[:upper:]", "\\p{Uppercase}"},
        {"[:lower:]", "\\p{Lowercase}"},
        {"[:cntrl:]", "\\p{Cc}"},
        {"[:blank:]", "\\p{Zs}\\t"},
        {"[:xdigit:]", "0-9A-Fa-f"},
        {"[:ascii:]", "\\x00-\\x7F"},
        {"[:word:]", NULL},
        {"[:punct:]", NULL},
    };
    const char *p = t->pattern + t->at;
    for (size_t i = 0; i < sizeof classes / sizeof classes[0]; i++) {
        size_t size = strlen(classes[i].name);
        if (t->len - t->at < size || memcmp(p, classes[i].name, size) != 0) continue;
        t->at += size;
        if (classes[i].members) {
            strbuf_puts(t->out, classes[i].members);
        } else if (classes[i].name[2] == 'd') {
            put_class(t->out, "Nd");
        } else if (classes[i].name[2] == 'w') {
            put_word(t->out, true);
        } else {
            put_class(t->out, "P");
            put_class(t->out, "S");
        }
        return true;
    }
    return false;
}

/* Enters a "[" inside a set. The members of an inner set are simply added to the outer set, so it can't be negated. A "-" next to it would
 * form a range, and isn't supported. */
static Status open_inner_set(Translator *t, int depth)
{
    const char *p = t->pattern + t->at;
    size_t      left = t->len - t->at;
    bool        is_plain = depth < MAX_SET_DEPTH && left > 1 && !strchr("^-]&:", p[1]) && p[-1] != '-';
    FAIL_IF(!is_plain, ERR_UNSUPPORTED, "a set inside a set (\"%.*s\") isn't supported", (int)(left < 12 ? left : 12), p);
    t->at++;
    return OK;
}

static Status close_inner_set(Translator *t)
{
    const char *p = t->pattern + t->at;
    FAIL_IF(p[-1] == '-' || (t->at + 1 < t->len && p[1] == '-'), ERR_UNSUPPORTED, "a - beside a set inside a set isn't supported");
    t->at++;
    return OK;
}

/* Translates the members of a set, up to its "]". */
static Status translate_members(Translator *t)
{
    int depth = 0;
    while (t->at < t->len && (t->pattern[t->at] != ']' || depth > 0)) {
        char c = t->pattern[t->at];
        if (c == '\\') {
            TRY(translate_escape(t, true));
        } else if (c == ']') {
            TRY(close_inner_set(t));
            depth--;
        } else if (c == '[') {
            if (translate_posix(t)) continue;
            TRY(open_inner_set(t, depth++));
        } else {
            FAIL_IF(c == '&' && t->at + 1 < t->len && t->pattern[t->at + 1] == '&', ERR_UNSUPPORTED,
                    "the set operation && isn't supported");
            strbuf_putc(t->out, c);
            t->at++;
        }
    }
    FAIL_IF(t->at == t->len, ERR_INVALID, "a [ has no ]");
    return OK;
}

static Status translate_set(Translator *t)
{
    StrBuf *out = t->out;
    strbuf_putc(out, t->pattern[t->at++]);
    if (t->at < t->len && t->pattern[t->at] == '^') strbuf_putc(out, t->pattern[t->at++]);
    if (t->at < t->len && t->pattern[t->at] == ']') {
        strbuf_puts(out, "\\]");
        t->at++;
    }
    TRY(translate_members(t));
    strbuf_putc(out, ']');
    t->at++;
    return OK;
}

static void strbuf_insert(StrBuf *buf, size_t at, const char *text)
{
    size_t len = strlen(text);
    strbuf_reserve(buf, len);
    memmove(buf->data + at + len, buf->data + at, buf->len - at + 1);
    memcpy(buf->data + at, text, len);
    buf->len += len;
}

/* Translates "{n,m}". "{,m}" becomes "{0,m}". In Oniguruma a "+" after it repeats the item; PCRE2 would make the quantifier possessive. */
static void translate_interval(Translator *t)
{
    size_t end = t->at + 1;
    while (end < t->len && (t->pattern[end] == ',' || (t->pattern[end] >= '0' && t->pattern[end] <= '9'))) end++;
    if (end == t->len || t->pattern[end] != '}' || end == t->at + 1) {
        strbuf_puts(t->out, "\\{");
        t->at++;
        return;
    }
    strbuf_putc(t->out, '{');
    if (t->pattern[t->at + 1] == ',') strbuf_putc(t->out, '0');
    strbuf_append(t->out, t->pattern + t->at + 1, end - t->at);
    t->at = end + 1;
    if (t->at < t->len && t->pattern[t->at] == '+') {
        strbuf_insert(t->out, t->atom, "(?:");
        strbuf_putc(t->out, ')');
    }
}

/* Translates "(" and the options after "(?". Ruby's option m is PCRE2's option s. */
static Status translate_group(Translator *t)
{
    FAIL_IF(t->depth == MAX_GROUP_DEPTH, ERR_UNSUPPORTED, "more than %d groups inside each other", MAX_GROUP_DEPTH);
    t->group_start[t->depth++] = t->out->len;
    strbuf_putc(t->out, '(');
    t->at++;
    if (t->at + 1 >= t->len || t->pattern[t->at] != '?') return OK;
    size_t end = t->at + 1;
    while (end < t->len && strchr("imx-", t->pattern[end]) && t->pattern[end]) end++;
    if (end < t->len && (t->pattern[end] == ':' || t->pattern[end] == ')')) {
        for (; t->at < end; t->at++) strbuf_putc(t->out, t->pattern[t->at] == 'm' ? 's' : t->pattern[t->at]);
    }
    return OK;
}

/* Appends the expression in PCRE2's syntax. */
static Status regex_translate(const char *pattern, size_t len, StrBuf *out)
{
    Translator t = {.pattern = pattern, .len = len, .out = out};
    while (t.at < t.len) {
        size_t start = out->len;
        char   c = pattern[t.at];
        if (c == '{') {
            translate_interval(&t);
            continue;
        }
        if (c == '\\') {
            TRY(translate_escape(&t, false));
        } else if (c == '[') {
            TRY(translate_set(&t));
        } else if (c == '(') {
            TRY(translate_group(&t));
        } else {
            strbuf_putc(out, c);
            t.at++;
            while (t.at < len && ((uint8_t)pattern[t.at] & 0xC0) == 0x80) strbuf_putc(out, pattern[t.at++]);
            if (c == ')') start = t.depth > 0 ? t.group_start[--t.depth] : start;
            if (strchr("*+?", c)) start = t.atom;
        }
        t.atom = start;
    }
    return OK;
}

Status regex_compile(const char *pattern, size_t len, Regex **out_regex)
{
    *out_regex = NULL;
    StrBuf translated = {0};
    Status status = regex_translate(pattern, len, &translated);
    if (status != OK) {
        strbuf_deinit(&translated);
        return status;
    }
    int                    error;
    size_t                 offset;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (!context) fatal_out_of_memory(0);
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)strbuf_cstr(&translated), translated.len,
                                     PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &offset, context);
    pcre2_compile_context_free(context);
    strbuf_deinit(&translated);
    if (!code) {
        PCRE2_UCHAR message[200];
        pcre2_get_error_message(error, message, sizeof message);
        FAIL(ERR_UNSUPPORTED, "%s", (const char *)message);
    }
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE); /* if this fails, matching uses the interpreter */
    Regex *regex = calloc_or_end(1, sizeof *regex);
    regex->code = code;
    *out_regex = regex;
    return OK;
}

void regex_destroy(Regex *regex)
{
    if (!regex) return;
    pcre2_code_free(regex->code);
    free(regex);
}

RegexScratch *regex_scratch_create(void)
{
    RegexScratch *scratch = calloc_or_end(1, sizeof *scratch);
    scratch->match = pcre2_match_data_create(1, NULL);
    scratch->context = pcre2_match_context_create(NULL);
    if (!scratch->match || !scratch->context) fatal_out_of_memory(0);
    pcre2_set_match_limit(scratch->context, MATCH_LIMIT);
    pcre2_set_heap_limit(scratch->context, HEAP_LIMIT_KIB);
    scratch->jit_stack = pcre2_jit_stack_create(32 << 10, JIT_STACK_BYTES, NULL); /* NULL if there is no JIT, which is fine */
    pcre2_jit_stack_assign(scratch->context, NULL, scratch->jit_stack);
    return scratch;
}

void regex_scratch_destroy(RegexScratch *scratch)
{
    if (!scratch) return;
    pcre2_match_data_free(scratch->match);
    pcre2_match_context_free(scratch->context);
    pcre2_jit_stack_free(scratch->jit_stack);
    free(scratch);
}

Status regex_find(const Regex *regex, RegexScratch *scratch, Str text, size_t from, bool *out_found, size_t *out_start, size_t *out_end)
{
    *out_found = false;
    int rc = pcre2_match(regex->code, (PCRE2_SPTR)text.data, text.len, from, PCRE2_NO_UTF_CHECK, scratch->match, scratch->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(regex->code, (PCRE2_SPTR)text.data, text.len, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, scratch->match,
                         scratch->context);
    if (rc == PCRE2_ERROR_NOMATCH) return OK;
    if (rc < 0) {
        PCRE2_UCHAR message[200];
        pcre2_get_error_message(rc, message, sizeof message);
        FAIL(ERR_INVALID, "the tokenizer's expression failed at byte %zu of a text: %s", from, (const char *)message);
    }
    const size_t *range = pcre2_get_ovector_pointer(scratch->match);
    FAIL_IF(range[0] > range[1] || range[0] < from, ERR_UNSUPPORTED, "the tokenizer's expression moves its match's start (\\K)");
    *out_found = true;
    *out_start = range[0];
    *out_end = range[1];
    return OK;
}

Status regex_replace(const Regex *regex, RegexScratch *scratch, Str text, Str content, StrBuf *out)
{
    size_t done = 0, at = 0, last_end = SIZE_MAX;
    while (at <= text.len) {
        bool   found;
        size_t start, end;
        TRY(regex_find(regex, scratch, text, at, &found, &start, &end));
        if (!found) break;
        if (start != end || end != last_end) { /* an empty match directly after a match doesn't count */
            strbuf_append(out, text.data + done, start - done);
            strbuf_append(out, content.data, content.len);
            done = end;
        }
        last_end = at = end;
        if (start == end) at += end < text.len ? utf8_size((uint8_t)text.data[end]) : 1;
    }
    strbuf_append(out, text.data + done, text.len - done);
    return OK;
}
