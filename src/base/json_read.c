/* The JSON reader: recursive descent of bounded depth, in one pass over the text. Decoded strings are stored in one arena allocation, as
 * long as the text. Open containers collect their items on a shared stack; when a container is closed, its items are copied to the
 * arena. */
#include "base/json.h"
#include "base/avx2.h"
#include "base/json_utf8.h"
#include "base/str.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>

enum { VECTOR = 32, FEW = 32 };

static const char NO_VALUE[] = "expected a value: an object, an array, a string, a number, true, false or null";

typedef struct Parser {
    const char *begin, *at, *end; /* pointers into the text */
    char       *out;              /* where the next string is stored; its offset in the output never exceeds `at`'s offset in the text */
    Arena      *arena;
    JsonMember *stack; /* items of open containers (of arrays only .value is set); points to `few`, later to the heap */
    JsonMember  few[FEW];
    size_t      count, capacity;
    int         depth;
    bool        is_row;  /* json_parse_row: numbers that are not finite become null */
    const char *problem; /* the error message, in the arena or static; NULL: none */
    size_t      problem_offset;
} Parser;

static bool fail_at(Parser *parser, const char *at, const char *problem)
{
    parser->problem = problem;
    parser->problem_offset = (size_t)(at - parser->begin);
    return false;
}

static void skip_blanks(Parser *parser)
{
    while (parser->at < parser->end && byte_is_blank(*parser->at)) parser->at++;
}

/* Consumes `c` and returns true; false: the next byte isn't `c`, nothing is consumed. */
static bool take(Parser *parser, char c)
{
    if (parser->at == parser->end || *parser->at != c) return false;
    parser->at++;
    return true;
}

/* ---- strings ---- */

/* Copies plain ASCII bytes up to the first quote, backslash, control character or non-ASCII byte. Stores whole vectors: the output has at
 * least as much room as the text has bytes left. */
static const char *copy_plain(const char *at, const char *end, char **to)
{
    const __m256i quote = _mm256_set1_epi8('"'), slash = _mm256_set1_epi8('\\'), blank = _mm256_set1_epi8(' ');
    char         *out = *to;
    for (; end - at >= VECTOR; at += VECTOR, out += VECTOR) {
        __m256i bytes = _mm256_loadu_si256((const __m256i *)at);
        _mm256_storeu_si256((__m256i *)out, bytes);
        __m256i stops = _mm256_or_si256(_mm256_cmpeq_epi8(bytes, quote), _mm256_cmpeq_epi8(bytes, slash));
        stops = _mm256_or_si256(stops, _mm256_cmpgt_epi8(blank, bytes)); /* signed bytes: those from 0x80 on are negative and stop too */
        unsigned mask = (unsigned)_mm256_movemask_epi8(stops);
        if (mask == 0) continue;
        *to = out + __builtin_ctz(mask);
        return at + __builtin_ctz(mask);
    }
    while (at < end && *at != '"' && *at != '\\' && (signed char)*at >= ' ') *out++ = *at++;
    *to = out;
    return at;
}

/* Value of the escape \uXXXX at `at`, or -1 if there is none. */
static int escape_unit(const char *at, const char *end)
{
    if (end - at < 6 || at[0] != '\\' || at[1] != 'u') return -1;
    int unit = 0;
    for (int i = 2; i < 6; i++) {
        char c = at[i];
        int  digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (digit < 0) return -1;
        unit = unit * 16 + digit;
    }
    return unit;
}

static char *put_code(char *out, unsigned code)
{
    if (code < 0x80) {
        *out++ = (char)code;
        return out;
    }
    if (code < 0x800) {
        *out++ = (char)(0xC0 | code >> 6);
    } else {
        if (code < 0x10000) {
            *out++ = (char)(0xE0 | code >> 12);
        } else {
            *out++ = (char)(0xF0 | code >> 18);
            *out++ = (char)(0x80 | (code >> 12 & 0x3F));
        }
        *out++ = (char)(0x80 | (code >> 6 & 0x3F));
    }
    *out++ = (char)(0x80 | (code & 0x3F));
    return out;
}

/* Decodes \uXXXX, or a surrogate pair of two of them. */
static bool read_unicode(Parser *parser, const char **at, char **to)
{
    int unit = escape_unit(*at, parser->end), next = -1;
    if (unit < 0) return fail_at(parser, *at, "expected four hexadecimal digits behind \\u");
    *at += 6;
    unsigned code = (unsigned)unit;
    if (unit >= 0xD800 && unit <= 0xDBFF) next = escape_unit(*at, parser->end);
    if (next >= 0xDC00 && next <= 0xDFFF) {
        code = 0x10000 + ((code - 0xD800) << 10) + ((unsigned)next - 0xDC00);
        *at += 6;
    } else if (unit >= 0xD800 && unit <= 0xDFFF) {
        code = 0xFFFD;
    }
    *to = put_code(*to, code);
    return true;
}

static bool read_escape(Parser *parser, const char **at, char **to)
{
    static const char plain[256] = {
        ['"'] = '"', ['\\'] = '\\', ['/'] = '/', ['b'] = '\b', ['f'] = '\f', ['n'] = '\n', ['r'] = '\r', ['t'] = '\t'};
    char c = parser->end - *at >= 2 ? (*at)[1] : 0;
    if (c == 'u') return read_unicode(parser, at, to);
    if (!plain[(unsigned char)c]) return fail_at(parser, *at, "no escape of JSON; a backslash is written \\\\");
    *(*to)++ = plain[(unsigned char)c];
    *at += 2;
    return true;
}

static bool read_beyond_ascii(Parser *parser, const char **at, char **to)
{
    while (*at < parser->end && (signed char)**at < 0) {
        size_t n = json_utf8_len((const unsigned char *)*at, (size_t)(parser->end - *at));
        if (n == 0) return fail_at(parser, *at, "a byte that isn't UTF-8");
        for (; n > 0; n--) *(*to)++ = *(*at)++;
    }
    return true;
}

/* Reads a string; the parser is after its opening quote. */
static bool read_string(Parser *parser, Str *out)
{
    const char *at = parser->at;
    char       *to = parser->out;
    for (;;) {
        at = copy_plain(at, parser->end, &to);
        if (at == parser->end) return fail_at(parser, at, "the text ends within a string");
        if (*at == '"') break;
        if (*at == '\\') {
            if (!read_escape(parser, &at, &to)) return false;
        } else if ((signed char)*at < 0) {
            if (!read_beyond_ascii(parser, &at, &to)) return false;
        } else {
            return fail_at(parser, at, "a control character within a string; it is written as an escape");
        }
    }
    *to = 0;
    *out = (Str){parser->out, (size_t)(to - parser->out)};
    parser->out = to + 1; /* the NUL fits where the closing quote was */
    parser->at = at + 1;
    return true;
}

/* ---- numbers ---- */

static bool read_digits(Parser *parser)
{
    const char *from = parser->at;
    while (parser->at < parser->end && *parser->at >= '0' && *parser->at <= '9') parser->at++;
    return parser->at > from || fail_at(parser, parser->at, "expected a digit");
}

/* Converts a number to JSON_INT if it is written as an integer that fits int64, else to JSON_DOUBLE. Keeps the digits of integers that
 * don't fit. */
static bool convert_number(Parser *parser, const char *from, bool is_whole, JsonValue *out)
{
    char        few[64];
    size_t      len = (size_t)(parser->at - from);
    const char *text = len < sizeof few ? few : arena_strndup(parser->arena, from, len);
    if (text == few) {
        memcpy(few, from, len);
        few[len] = 0;
    }
    errno = 0;
    long long integer = is_whole ? strtoll(text, NULL, 10) : 0;
    if (is_whole && errno == 0 && strcmp(text, "-0") != 0) {
        out->type = JSON_INT;
        out->integer = integer;
        return true;
    }
    out->type = JSON_DOUBLE;
    out->count = is_whole;
    out->number = strtod(text, NULL);
    if (is_whole) out->digits = text == few ? arena_strndup(parser->arena, few, len) : text;
    if (parser->is_row && !is_whole && !isfinite(out->number)) out->type = JSON_NULL; /* out->number keeps the value */
    return out->type == JSON_NULL || parser->is_row || isfinite(out->number) || fail_at(parser, from, "a number too large for a double");
}

static bool read_number(Parser *parser, JsonValue *out)
{
    const char *from = parser->at;
    bool        is_whole = true;
    (void)take(parser, '-');
    if (parser->at == parser->end || *parser->at < '0' || *parser->at > '9') return fail_at(parser, from, NO_VALUE);
    if (!take(parser, '0') && !read_digits(parser)) return false;
    if (take(parser, '.')) {
        is_whole = false;
        if (!read_digits(parser)) return false;
    }
    if (take(parser, 'e') || take(parser, 'E')) {
        is_whole = false;
        if (!take(parser, '-')) (void)take(parser, '+');
        if (!read_digits(parser)) return false;
    }
    return convert_number(parser, from, is_whole, out);
}

/* ---- containers ---- */

static void push(Parser *parser, const JsonMember *item)
{
    if (parser->count == parser->capacity) {
        parser->capacity *= 2;
        JsonMember *more = realloc_or_end(parser->stack == parser->few ? NULL : parser->stack, parser->capacity * sizeof *more);
        if (parser->stack == parser->few) memcpy(more, parser->few, parser->count * sizeof *more);
        parser->stack = more;
    }
    parser->stack[parser->count++] = *item;
}

static uint64_t turned(uint64_t x, int bits)
{
    return x << bits | x >> (64 - bits);
}

static void sip_round(uint64_t v[4])
{
    v[0] += v[1], v[1] = turned(v[1], 13) ^ v[0], v[0] = turned(v[0], 32);
    v[2] += v[3], v[3] = turned(v[3], 16) ^ v[2];
    v[0] += v[3], v[3] = turned(v[3], 21) ^ v[0];
    v[2] += v[1], v[1] = turned(v[1], 17) ^ v[2], v[2] = turned(v[2], 32);
}

/* SipHash-1-3 (Aumasson and Bernstein, 2012). The seed is secret, so nobody can construct a vocabulary whose keys collide. The seed affects
 * only the time, not results. */
static uint64_t hash_key(const uint64_t seed[2], Str key)
{
    uint64_t v[4] = {seed[0] ^ 0x736F6D6570736575u, seed[1] ^ 0x646F72616E646F6Du, seed[0] ^ 0x6C7967656E657261u,
                     seed[1] ^ 0x7465646279746573u};
    uint64_t part;
    size_t   at = 0;
    for (; key.len - at >= 8; at += 8) {
        memcpy(&part, key.data + at, 8);
        v[3] ^= part;
        sip_round(v);
        v[0] ^= part;
    }
    part = 0;
    memcpy(&part, key.data + at, key.len - at);
    part |= (uint64_t)key.len << 56;
    v[3] ^= part;
    sip_round(v);
    v[0] ^= part;
    v[2] ^= 0xFF;
    for (int i = 0; i < 3; i++) sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* The later of two members with the same key, or NULL. For many members (vocabularies) a hash table is used. */
static const JsonMember *find_duplicate(const JsonMember *members, size_t count)
{
    enum { COMPARED = 16 }; /* lines of metrics.jsonl have fewer members: reading them uses no heap */
    if (count <= COMPARED) {
        for (size_t i = 1; i < count; i++)
            for (size_t j = 0; j < i; j++)
                if (str_same(members[i].key, members[j].key)) return &members[i];
        return NULL;
    }
    size_t size = 32;
    while (size < count * 2) size *= 2;
    uint32_t *table = calloc_or_end(size, sizeof *table); /* index of a member + 1; 0: free */
    uint64_t  seed[2];
    memcpy(seed, (const void *)getauxval(AT_RANDOM), sizeof seed); /* random bytes that the kernel gives to each process */
    const JsonMember *found = NULL;
    for (size_t i = 0; i < count && !found; i++) {
        size_t at = hash_key(seed, members[i].key) & (size - 1);
        while (table[at] && !str_same(members[table[at] - 1].key, members[i].key)) at = (at + 1) & (size - 1);
        if (table[at]) found = &members[i];
        table[at] = (uint32_t)i + 1;
    }
    free(table);
    return found;
}

static bool read_value(Parser *parser, JsonValue *out);

/* Reads the items of a container; the parser is after its opening bracket. Pushes them on the stack from stack[parser->count] on. */
static bool read_items(Parser *parser, bool has_keys)
{
    char closing = has_keys ? '}' : ']';
    skip_blanks(parser);
    if (take(parser, closing)) return true;
    for (;;) {
        JsonMember item = {0};
        if (has_keys) {
            skip_blanks(parser);
            if (!take(parser, '"')) return fail_at(parser, parser->at, "expected a key in double quotes");
            if (!read_string(parser, &item.key)) return false;
            skip_blanks(parser);
            if (!take(parser, ':')) return fail_at(parser, parser->at, "expected ':' behind a key");
        }
        if (!read_value(parser, &item.value)) return false;
        push(parser, &item);
        skip_blanks(parser);
        if (take(parser, closing)) return true;
        if (!take(parser, ',')) return fail_at(parser, parser->at, has_keys ? "expected ',' or '}'" : "expected ',' or ']'");
    }
}

static bool read_container(Parser *parser, JsonValue *out)
{
    bool   has_keys = *parser->at == '{';
    size_t first = parser->count;
    if (parser->depth == JSON_MAX_DEPTH)
        return fail_at(parser, parser->at, arena_printf(parser->arena, "nested deeper than %d levels", JSON_MAX_DEPTH));
    parser->at++;
    parser->depth++;
    if (!read_items(parser, has_keys)) return false;
    parser->depth--;
    const JsonMember *items = parser->stack + first;
    size_t            count = parser->count - first;
    parser->count = first;
    out->type = has_keys ? JSON_OBJECT : JSON_ARRAY;
    out->count = (uint32_t)count;
    if (!has_keys) {
        out->items = arena_array(parser->arena, JsonValue, count);
        for (size_t i = 0; i < count; i++) out->items[i] = items[i].value;
        return true;
    }
    const JsonMember *twice = find_duplicate(items, count);
    if (twice)
        return fail_at(parser, parser->begin + twice->value.offset,
                       arena_printf(parser->arena, "the key \"%.200s\" occurs twice in one object", twice->key.data));
    out->members = arena_array(parser->arena, JsonMember, count);
    if (count) memcpy(out->members, items, count * sizeof *items);
    return true;
}

static bool read_literal(Parser *parser, const char *literal)
{
    size_t len = strlen(literal);
    if ((size_t)(parser->end - parser->at) < len || memcmp(parser->at, literal, len) != 0) return fail_at(parser, parser->at, NO_VALUE);
    parser->at += len;
    return true;
}

/* Consumes NaN, Infinity or -Infinity: the type stays JSON_NULL, and out->number keeps the value. */
static bool take_non_finite(Parser *parser, JsonValue *out)
{
    static const Str    words[] = {{"NaN", 3}, {"Infinity", 8}, {"-Infinity", 9}};
    static const double numbers[] = {(double)NAN, (double)INFINITY, -(double)INFINITY};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if ((size_t)(parser->end - parser->at) < words[i].len || memcmp(parser->at, words[i].data, words[i].len) != 0) continue;
        parser->at += words[i].len;
        out->number = numbers[i];
        return true;
    }
    return false;
}

/* *out must be zeroed. */
static bool read_value(Parser *parser, JsonValue *out)
{
    bool is_read;
    skip_blanks(parser);
    switch (parser->at < parser->end ? *parser->at : 0) {
    case '{':
    case '[':
        is_read = read_container(parser, out);
        break;
    case '"':
        parser->at++;
        out->type = JSON_STRING;
        is_read = read_string(parser, &out->string);
        break;
    case 't':
    case 'f':
        out->type = JSON_BOOL;
        out->boolean = *parser->at == 't';
        is_read = read_literal(parser, out->boolean ? "true" : "false");
        break;
    case 'n':
        is_read = read_literal(parser, "null");
        break;
    default:
        is_read = (parser->is_row && take_non_finite(parser, out)) || read_number(parser, out);
    }
    out->offset = (size_t)(parser->at - parser->begin) - 1;
    return is_read;
}

static bool read_document(Parser *parser, JsonValue *out)
{
    if (!read_value(parser, out)) return false;
    skip_blanks(parser);
    return parser->at == parser->end || fail_at(parser, parser->at, "more text behind the value");
}

static Status parse(Arena *arena, const char *name, const char *text, size_t len, bool is_row, JsonValue *out)
{
    FAIL_IF(len > UINT32_MAX, ERR_INVALID, "%s: JSON texts above 4 GiB are not read", name);
    FAIL_IF(len >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0, ERR_INVALID,
            "%s:1:1: a byte order mark, which JSON doesn't have; save the file as UTF-8 without one", name);
    Parser parser; /* not zero-initialised, because `few` needs no zeros */
    parser.begin = parser.at = len ? text : "";
    parser.end = parser.begin + len;
    parser.out = arena_alloc(arena, len);
    parser.arena = arena;
    parser.stack = parser.few;
    parser.capacity = FEW;
    parser.count = 0;
    parser.depth = 0;
    parser.is_row = is_row;
    JsonValue value = {0};
    bool      is_read = read_document(&parser, &value);
    if (parser.stack != parser.few) free(parser.stack);
    if (!is_read) {
        int line, column;
        json_position(text, len, parser.problem_offset, &line, &column);
        FAIL(ERR_INVALID, "%s:%d:%d: %s", name, line, column, parser.problem);
    }
    *out = value;
    return OK;
}

Status json_parse(Arena *arena, const char *name, const char *text, size_t len, JsonValue *out)
{
    return parse(arena, name, text, len, false, out);
}

Status json_parse_row(Arena *arena, const char *name, const char *text, size_t len, JsonValue *out)
{
    return parse(arena, name, text, len, true, out);
}
