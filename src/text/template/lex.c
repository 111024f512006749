/* The lexer: text outside of tags, and the tokens inside. It also handles white space: "-" strips white space beside the tag, "+" keeps it.
 * Without a sign, lstrip_blocks removes the blanks before a block or comment that begins its line, and trim_blocks removes the newline
 * after it. */
#include "text/template/ast.h"
#include "text/template/text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LEX_FAIL(p, ...) parser_fail((p), ERR_INVALID, (p)->line, __VA_ARGS__)

static Token *add_token(Parser *p, TokenKind kind)
{
    p->tokens = arena_room(&p->tmpl->arena, p->tokens, p->num_tokens + 1, &p->capacity, sizeof *p->tokens);
    p->tokens[p->num_tokens] = (Token){.kind = kind, .line = p->line};
    return &p->tokens[p->num_tokens++];
}

static bool at(const Parser *p, size_t pos, const char *what)
{
    size_t n = strlen(what);
    return p->len - pos >= n && memcmp(p->text + pos, what, n) == 0;
}

static char char_at(const Parser *p, size_t pos)
{
    return pos < p->len ? p->text[pos] : 0;
}

static size_t skip_space(const Parser *p, size_t pos)
{
    return p->len - text_strip((Str){p->text + pos, p->len - pos}, true, false).len;
}

/* Moves the position to `end` and counts lines. */
static void advance(Parser *p, size_t end)
{
    for (size_t i = p->at; i < end; i++) p->line += p->text[i] == '\n';
    p->at = end;
    if (end > 0) p->line_starting = p->text[end - 1] == '\n';
}

/* Adds the text before a tag. sign '-': strips white space at its end; '+': keeps it; 0: lstrip_blocks applies, unless is_variable. */
static void add_data(Parser *p, size_t end, char sign, bool is_variable)
{
    Str text = {p->text + p->at, end - p->at};
    if (sign == '-') text = text_strip(text, false, true);
    if (!sign && !is_variable) {
        size_t line = text.len;
        while (line > 0 && text.data[line - 1] != '\n') line--;
        bool starts_line = line > 0 || p->line_starting;
        if (starts_line && text_strip((Str){text.data + line, text.len - line}, true, false).len == 0) text.len = line;
    }
    if (text.len) add_token(p, T_DATA)->value = value_of_str(text);
}

/* Returns the end of a tag whose `close` is at pos, maybe after a sign; 0: there is none. After '-' the end includes white space; with
 * `trim` it includes a newline. plus: the sign '+' is allowed too. */
static size_t tag_end(const Parser *p, size_t pos, const char *close, bool plus, bool trim)
{
    size_t len = strlen(close);
    char   sign = char_at(p, pos);
    if ((sign == '-' || (plus && sign == '+')) && at(p, pos + 1, close)) return sign == '-' ? skip_space(p, pos + 1 + len) : pos + 1 + len;
    if (!at(p, pos, close)) return 0;
    return pos + len + (trim && char_at(p, pos + len) == '\n');
}

static char sign_at(const Parser *p, size_t pos)
{
    char c = char_at(p, pos);
    return c == '-' || c == '+' ? c : 0;
}

/* Returns the end of "{%[-+] raw %}" at pos (or of endraw, by `word`); 0: there is none. The tag of raw doesn't trim the newline after
 * it. */
static size_t raw_tag(const Parser *p, size_t pos, const char *word)
{
    if (!at(p, pos, "{%")) return 0;
    pos = skip_space(p, pos + 2 + (sign_at(p, pos + 2) != 0));
    if (!at(p, pos, word)) return 0;
    bool end = word[0] == 'e';
    return tag_end(p, skip_space(p, pos + strlen(word)), "%}", end, end);
}

static void lex_raw(Parser *p)
{
    if (p->at == p->len) return; /* Jinja accepts a raw or a comment that begins at the end of the text */
    size_t end = 0, pos = p->at;
    while (pos < p->len && !(end = raw_tag(p, pos, "endraw"))) pos++;
    if (!end) LEX_FAIL(p, "missing end of raw directive");
    add_data(p, pos, sign_at(p, pos + 2), false);
    advance(p, end);
}

static void lex_comment(Parser *p)
{
    if (p->at == p->len) return;
    size_t end = 0;
    for (size_t pos = p->at; pos < p->len && !end; pos++)
        if (strchr("-+#", p->text[pos])) end = tag_end(p, pos, "#}", true, true);
    if (!end) LEX_FAIL(p, "missing end of comment tag");
    advance(p, end);
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if ((c | 32) >= 'a' && (c | 32) <= 'f') return (c | 32) - 'a' + 10;
    return -1;
}

/* Reads a character code of up to `most` digits at *s. */
static uint32_t escaped_code(Str *s, int base, int most, int *out_digits)
{
    uint32_t cp = 0;
    for (*out_digits = 0; *out_digits < most && s->len; ++*out_digits, s->data++, s->len--) {
        int digit = hex_digit(s->data[0]);
        if (digit < 0 || digit >= base) break;
        cp = cp * (uint32_t)base + (uint32_t)digit;
    }
    return cp;
}

/* Reads one escape at *s, after its backslash, and writes it to `out`; returns the number of bytes written. */
static size_t lex_escape(Parser *p, Str *s, char *out)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    char              c = s->data[0];
    const char       *simple = strchr(from, c);
    int               digits;
    if (c >= '0' && c <= '7') return utf8_encode(escaped_code(s, 8, 3, &digits), out);
    if ((unsigned char)c >= 0x80) LEX_FAIL(p, "a backslash before a character beyond ASCII is not supported");
    if (c == 'N') LEX_FAIL(p, "\\N escapes in strings are not supported");
    int wanted = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    *out = '\\';
    if (!wanted && c != '\n' && (!c || !simple)) return 1;
    *s = (Str){s->data + 1, s->len - 1};
    if (c == '\n') return 0;
    if (simple) *out = to[simple - from];
    if (!wanted) return 1;
    uint32_t cp = escaped_code(s, 16, wanted, &digits);
    if (digits < wanted) LEX_FAIL(p, "truncated \\x, \\u or \\U escape in a string: %d hexadecimal digits are needed", wanted);
    if (cp > 0x10FFFF || (cp >= 0xD800 && cp <= 0xDFFF)) LEX_FAIL(p, "a string escape gives U+%X, which is no character", cp);
    return utf8_encode(cp, out);
}

static Str unescaped(Parser *p, Str body)
{
    char  *text = arena_alloc(&p->tmpl->arena, body.len * 3 + 16); /* an escape is at most tripled in length */
    size_t n = 0;
    while (body.len) {
        char c = body.data[0];
        body = (Str){body.data + 1, body.len - 1};
        if (c == '\\')
            n += lex_escape(p, &body, text + n);
        else
            text[n++] = c;
    }
    return (Str){text, n};
}

static void lex_string(Parser *p)
{
    char   quote = p->text[p->at];
    size_t end = p->at + 1;
    while (end < p->len && p->text[end] != quote) end += 1 + (p->text[end] == '\\');
    if (end >= p->len) LEX_FAIL(p, "a string that starts here has no end");
    Str body = {p->text + p->at + 1, end - p->at - 1};
    if (body.len && memchr(body.data, '\\', body.len)) body = unescaped(p, body);
    add_token(p, T_STRING)->value = value_of_str(body);
    advance(p, end + 1);
}

static bool digit_at(const Parser *p, size_t pos)
{
    return char_at(p, pos) >= '0' && char_at(p, pos) <= '9';
}

static size_t digits_end(const Parser *p, size_t pos)
{
    while (digit_at(p, pos)) pos++;
    return pos;
}

/* Reads a number. After a dot, as in x.0.1, it can't be a float. */
static void lex_number(Parser *p)
{
    const char *text = p->text + p->at;
    size_t      whole = digits_end(p, p->at), end = whole;
    bool        may_be_float = p->at == 0 || text[-1] != '.';
    if (may_be_float && char_at(p, end) == '.' && digit_at(p, end + 1)) end = digits_end(p, end + 1);
    size_t exponent = end + 1 + (sign_at(p, end + 1) != 0);
    if (may_be_float && (char_at(p, end) | 32) == 'e' && digit_at(p, exponent)) end = digits_end(p, exponent);
    bool has_base = *text == '0' && (whole > p->at + 1 || strchr("xXoObB", char_at(p, whole) ? char_at(p, whole) : '0'));
    if (has_base || char_at(p, end) == '_')
        parser_fail(p, ERR_UNSUPPORTED, p->line, "numbers with leading zeros, a base or underscores are not supported");
    errno = 0;
    Value value = end > whole ? value_float(strtod(text, NULL)) : value_int(strtoll(text, NULL, 10));
    if (end == whole && errno)
        LEX_FAIL(p, "the integer %.*s does not fit 64 bits, larger ones are not supported", shown(end - p->at), text);
    add_token(p, end > whole ? T_FLOAT : T_INTEGER)->value = value;
    advance(p, end);
}

static bool is_letter(char c)
{
    return (c | 32) >= 'a' && (c | 32) <= 'z';
}

/* Reads a name of ASCII letters, digits and underscores. */
static void lex_name(Parser *p)
{
    size_t end = p->at;
    while (is_letter(char_at(p, end)) || char_at(p, end) == '_' || (end > p->at && digit_at(p, end))) end++;
    if (end == p->at && (unsigned char)p->text[end] >= 0x80) LEX_FAIL(p, "names of characters beyond ASCII are not supported");
    if (end == p->at) LEX_FAIL(p, "unexpected character '%c'", p->text[end]);
    add_token(p, T_NAME)->value = value_text(p->text + p->at, end - p->at);
    advance(p, end);
}

/* Reads the tokens of a block or printed expression, and its closing tag. */
static void lex_tag(Parser *p, bool is_block)
{
    int num_open = 0; /* number of open brackets; the tag can't end inside them */
    while (p->at < p->len) {
        size_t end = num_open ? 0 : tag_end(p, p->at, is_block ? "%}" : "}}", is_block, is_block);
        int    op = T_ADD;
        size_t space = skip_space(p, p->at);
        if (end) {
            add_token(p, is_block ? T_BLOCK_END : T_VARIABLE_END);
            advance(p, end);
            return;
        }
        while (op < NUM_TOKENS && !at(p, p->at, token_texts[op])) op++;
        if (space > p->at) {
            advance(p, space);
        } else if (digit_at(p, p->at)) {
            lex_number(p);
        } else if (p->text[p->at] == '\'' || p->text[p->at] == '"') {
            lex_string(p);
        } else if (op == NUM_TOKENS) {
            lex_name(p);
        } else {
            num_open += strchr("([{", p->text[p->at]) != NULL;
            num_open -= num_open && strchr(")]}", p->text[p->at]);
            add_token(p, (TokenKind)op);
            advance(p, p->at + strlen(token_texts[op]));
        }
    }
}

/* Reads the text up to the next tag, then the tag. */
static void lex_root(Parser *p)
{
    for (size_t pos = p->at; pos + 1 < p->len; pos++) {
        const char *brace = memchr(p->text + pos, '{', p->len - pos - 1);
        if (!brace) break;
        pos = (size_t)(brace - p->text);
        char kind = p->text[pos + 1];
        if (kind != '{' && kind != '%' && kind != '#') continue;
        size_t raw_end = raw_tag(p, pos, "raw");
        char   sign = sign_at(p, pos + 2);
        add_data(p, pos, sign, kind == '{');
        advance(p, raw_end ? raw_end : pos + 2 + (sign != 0));
        if (raw_end) {
            lex_raw(p);
        } else if (kind == '#') {
            lex_comment(p);
        } else {
            add_token(p, kind == '{' ? T_VARIABLE_BEGIN : T_BLOCK_BEGIN);
            lex_tag(p, kind == '%');
        }
        return;
    }
    add_data(p, p->len, '+', false);
    advance(p, p->len);
}

/* Copies the text to the arena, NUL-terminated, with all newlines as \n, and without a newline at the end. */
static void normalize_newlines(Parser *p)
{
    char  *text = arena_alloc(&p->tmpl->arena, p->len + 1);
    size_t n = 0;
    for (size_t i = 0; i < p->len; i++) {
        if (p->text[i] == '\r' && char_at(p, i + 1) == '\n') continue;
        text[n++] = p->text[i] == '\r' ? '\n' : p->text[i];
    }
    if (n && text[n - 1] == '\n') n--;
    text[n] = 0;
    p->text = text;
    p->len = n;
}

void template_lex(Parser *p)
{
    p->line = 1;
    p->line_starting = true;
    if (utf8_valid_prefix(p->text, p->len) < p->len) LEX_FAIL(p, "the template is not valid UTF-8");
    normalize_newlines(p);
    while (p->at < p->len) lex_root(p);
    add_token(p, T_EOF);
}
