/* The lexer: text outside of tags, and the tokens inside. White space control happens here: "-" strips to the tag, "+"
 * keeps, otherwise lstrip_blocks removes the blanks before a block or comment that starts its line, and trim_blocks the
 * newline after it. */
#include "text/template/ast.h"
#include "text/template/text.h"
#include "text/tokenizer_unicode.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Lexer {
    Template   *tmpl;
    const char *text;
    size_t      len, pos;
    int         line;
    bool        line_starting; /* the last match ended with a newline */
    Token      *tokens;
    size_t      count, capacity;
    char        closers[TEMPLATE_MAX_NESTING];
    int         num_closers;
} Lexer;

#define LEX_FAIL(lx, ...) return lex_fail((lx), __VA_ARGS__)

__attribute__((format(printf, 2, 3))) static Status lex_fail(const Lexer *lx, const char *fmt, ...)
{
    char    message[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    FAIL(ERR_INVALID, "%s:%d: %s", lx->tmpl->name, lx->line, message);
}

static Token *add_token(Lexer *lx, TokenKind kind)
{
    if (lx->count == lx->capacity) {
        size_t capacity = lx->capacity ? lx->capacity * 2 : 256;
        Token *tokens = arena_array(&lx->tmpl->arena, Token, capacity);
        if (lx->count) memcpy(tokens, lx->tokens, lx->count * sizeof *tokens);
        lx->tokens = tokens;
        lx->capacity = capacity;
    }
    Token *token = &lx->tokens[lx->count++];
    *token = (Token){ .kind = kind, .line = lx->line };
    return token;
}

static bool at(const Lexer *lx, size_t pos, const char *what)
{
    size_t n = strlen(what);
    return lx->len - pos >= n && memcmp(lx->text + pos, what, n) == 0;
}

static size_t skip_space(const Lexer *lx, size_t pos)
{
    while (pos < lx->len) {
        size_t next = pos;
        if (!cp_is_space(utf8_next(lx->text, lx->len, &next))) break;
        pos = next;
    }
    return pos;
}

/* Moves to `end`, counting lines. */
static void advance(Lexer *lx, size_t end)
{
    for (size_t i = lx->pos; i < end; i++) lx->line += lx->text[i] == '\n';
    lx->pos = end;
    if (end > 0) lx->line_starting = lx->text[end - 1] == '\n';
}

/* The text before a tag as its sign leaves it: '-' stripped, 0 with lstrip_blocks for blocks and comments. */
static Str strip_before(const Lexer *lx, size_t begin, size_t end, char sign, bool is_variable)
{
    Str text = { lx->text + begin, end - begin };
    if (sign == '-') return text_strip(text, false, true);
    if (sign == '+' || is_variable) return text;
    size_t line = text.len;
    while (line > 0 && text.data[line - 1] != '\n') line--;
    if ((line > 0 || lx->line_starting) && line < text.len && text_strip((Str){ text.data + line, text.len - line }, true, false).len == 0)
        text.len = line;
    return text;
}

static void add_data(Lexer *lx, Str text)
{
    if (text.len) add_token(lx, T_DATA)->value = value_text(text.data, text.len);
}

/* After "name" at pos: the end of a block's tag, or 0. `minus_only`: the tag of raw, which trims no newline. */
static size_t tag_end(const Lexer *lx, size_t pos, const char *close, bool plus, bool trim)
{
    if (pos < lx->len && lx->text[pos] == '-' && at(lx, pos + 1, close)) return skip_space(lx, pos + 1 + strlen(close));
    if (plus && pos < lx->len && lx->text[pos] == '+' && at(lx, pos + 1, close)) return pos + 1 + strlen(close);
    if (!at(lx, pos, close)) return 0;
    pos += strlen(close);
    return trim && pos < lx->len && lx->text[pos] == '\n' ? pos + 1 : pos;
}

/* "{%[-+] raw %}" or endraw at pos; returns the end of it or 0. */
static size_t raw_tag(const Lexer *lx, size_t pos, const char *word, char *sign)
{
    if (!at(lx, pos, "{%")) return 0;
    pos += 2;
    *sign = 0;
    if (pos < lx->len && (lx->text[pos] == '-' || lx->text[pos] == '+')) *sign = lx->text[pos++];
    pos = skip_space(lx, pos);
    if (!at(lx, pos, word)) return 0;
    pos = skip_space(lx, pos + strlen(word));
    bool end = word[0] == 'e';
    return tag_end(lx, pos, "%}", end, end);
}

static Status lex_raw(Lexer *lx)
{
    if (lx->pos == lx->len) return OK; /* Jinja doesn't mind a raw or a comment that starts at the very end */
    for (size_t pos = lx->pos; pos < lx->len; pos++) {
        const char *brace = memchr(lx->text + pos, '{', lx->len - pos);
        if (!brace) break;
        pos = (size_t)(brace - lx->text);
        char   sign;
        size_t end = raw_tag(lx, pos, "endraw", &sign);
        if (!end) continue;
        add_data(lx, strip_before(lx, lx->pos, pos, sign, false));
        advance(lx, end);
        return OK;
    }
    LEX_FAIL(lx, "missing end of raw directive");
}

static Status lex_comment(Lexer *lx)
{
    if (lx->pos == lx->len) return OK;
    for (size_t pos = lx->pos; pos < lx->len; pos++) {
        size_t end = 0;
        if (lx->text[pos] == '-' || lx->text[pos] == '+' || lx->text[pos] == '#') end = tag_end(lx, pos, "#}", true, true);
        if (!end) continue;
        advance(lx, end);
        return OK;
    }
    LEX_FAIL(lx, "missing end of comment tag");
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if ((c | 32) >= 'a' && (c | 32) <= 'f') return (c | 32) - 'a' + 10;
    return -1;
}

/* \xhh, \uhhhh, \Uhhhhhhhh; pos is behind the letter. */
static Status lex_hex_escape(Lexer *lx, Str body, size_t *pos, int digits, StrBuf *out)
{
    uint32_t cp = 0;
    for (int i = 0; i < digits; i++, (*pos)++) {
        int digit = *pos < body.len ? hex_digit(body.data[*pos]) : -1;
        if (digit < 0) LEX_FAIL(lx, "truncated \\x, \\u or \\U escape in a string: %d hexadecimal digits are needed", digits);
        cp = cp << 4 | (uint32_t)digit;
    }
    if (cp > 0x10FFFF || (cp >= 0xD800 && cp <= 0xDFFF)) LEX_FAIL(lx, "a string escape gives U+%X, which is no character", cp);
    char bytes[4];
    strbuf_append(out, bytes, utf8_encode(cp, bytes));
    return OK;
}

static void octal_escape(Str body, size_t *pos, StrBuf *out)
{
    uint32_t cp = 0;
    for (int i = 0; i < 3 && *pos < body.len && body.data[*pos] >= '0' && body.data[*pos] <= '7'; i++)
        cp = cp * 8 + (uint32_t)(body.data[(*pos)++] - '0');
    char bytes[4];
    strbuf_append(out, bytes, utf8_encode(cp, bytes));
}

/* One escape; pos is behind the backslash. Python's "unicode-escape" after writing non-ASCII as escapes itself. */
static Status lex_escape(Lexer *lx, Str body, size_t *pos, StrBuf *out)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    char              c = body.data[*pos];
    const char       *simple = strchr(from, c);
    if (c && simple) {
        strbuf_putc(out, to[simple - from]);
        ++*pos;
        return OK;
    }
    if (c == '\n') {
        ++*pos;
        return OK;
    }
    if (c >= '0' && c <= '7') {
        octal_escape(body, pos, out);
        return OK;
    }
    int digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits) {
        ++*pos;
        return lex_hex_escape(lx, body, pos, digits, out);
    }
    if (c == 'N') LEX_FAIL(lx, "\\N escapes in strings are not supported");
    strbuf_putc(out, '\\');
    if ((unsigned char)c < 0x80) return OK;
    uint32_t cp = utf8_next(body.data, body.len, pos);
    strbuf_printf(out, cp < 0x100 ? "x%02x" : cp < 0x10000 ? "u%04x" : "U%08x", cp);
    return OK;
}

static Status lex_string(Lexer *lx)
{
    char   quote = lx->text[lx->pos];
    size_t end = lx->pos + 1;
    bool   escaped = false;
    while (end < lx->len && lx->text[end] != quote) {
        if (lx->text[end] == '\\') {
            escaped = true;
            end++;
        }
        end++;
    }
    if (end >= lx->len) LEX_FAIL(lx, "a string that starts here has no end");
    Str    body = { lx->text + lx->pos + 1, end - lx->pos - 1 };
    Token *token = add_token(lx, T_STRING);
    size_t index = lx->count - 1;
    token->value = value_text(body.data, body.len);
    if (escaped) {
        StrBuf out = { 0 };
        Status status = OK;
        for (size_t pos = 0; pos < body.len && status == OK;) {
            if (body.data[pos] != '\\') {
                strbuf_putc(&out, body.data[pos++]);
            } else {
                pos++;
                status = lex_escape(lx, body, &pos, &out);
            }
        }
        lx->tokens[index].value = value_text(arena_strndup(&lx->tmpl->arena, strbuf_cstr(&out), out.len), out.len);
        strbuf_deinit(&out);
        TRY(status);
    }
    if (text_is_ascii(lx->tokens[index].value.text, lx->tokens[index].value.len)) lx->tokens[index].value.flags = VALUE_ASCII;
    advance(lx, end + 1);
    return OK;
}

/* Digits that may be parted by single underscores; returns the end. */
static size_t digits_end(const Lexer *lx, size_t pos, int base)
{
    while (pos < lx->len) {
        size_t next = pos + (lx->text[pos] == '_');
        int    digit = next < lx->len ? hex_digit(lx->text[next]) : -1;
        if (digit < 0 || digit >= base) break;
        pos = next + 1;
    }
    return pos;
}

/* The end of a float at the position, or 0. */
static size_t float_end(const Lexer *lx)
{
    size_t pos = digits_end(lx, lx->pos, 10), end = 0;
    if (lx->pos > 0 && lx->text[lx->pos - 1] == '.') return 0;
    if (pos + 1 < lx->len && lx->text[pos] == '.' && lx->text[pos + 1] >= '0' && lx->text[pos + 1] <= '9')
        pos = end = digits_end(lx, pos + 1, 10);
    if (pos < lx->len && (lx->text[pos] | 32) == 'e') {
        size_t digits = pos + 1;
        if (digits < lx->len && (lx->text[digits] == '+' || lx->text[digits] == '-')) digits++;
        if (digits < lx->len && lx->text[digits] >= '0' && lx->text[digits] <= '9') end = digits_end(lx, digits, 10);
    }
    return end;
}

static void copy_digits(const Lexer *lx, size_t end, char *out, size_t size)
{
    size_t n = 0;
    for (size_t i = lx->pos; i < end && n + 1 < size; i++)
        if (lx->text[i] != '_') out[n++] = lx->text[i];
    out[n] = 0;
}

static Status lex_number(Lexer *lx)
{
    char   digits[512];
    size_t end = float_end(lx);
    if (end) {
        copy_digits(lx, end, digits, sizeof digits);
        add_token(lx, T_FLOAT)->value = value_float(strtod(digits, NULL));
        advance(lx, end);
        return OK;
    }
    int  base = 10;
    char letter = lx->pos + 1 < lx->len && lx->text[lx->pos] == '0' ? (char)(lx->text[lx->pos + 1] | 32) : 0;
    if (letter == 'x') base = 16;
    if (letter == 'o') base = 8;
    if (letter == 'b') base = 2;
    size_t start = base == 10 ? lx->pos : lx->pos + 2;
    end = digits_end(lx, start, base);
    if (base != 10 && end == start) { /* "0x" without digits: the number 0, then a name */
        base = 10;
        end = lx->pos + 1;
    } else if (base == 10 && lx->text[lx->pos] == '0') {
        end = lx->pos + 1;
        while (end < lx->len && (lx->text[end] == '0' || (lx->text[end] == '_' && end + 1 < lx->len && lx->text[end + 1] == '0')))
            end++;
    } else {
        lx->pos = start;
    }
    copy_digits(lx, end, digits, sizeof digits);
    errno = 0;
    long long value = strtoll(digits, NULL, base);
    if (errno || end - lx->pos >= sizeof digits)
        LEX_FAIL(lx, "the integer %.40s does not fit 64 bits, larger ones are not supported", digits);
    add_token(lx, T_INTEGER)->value = value_int(value);
    advance(lx, end);
    return OK;
}

static Status lex_name(Lexer *lx)
{
    size_t end = lx->pos;
    while (end < lx->len) {
        size_t next = end;
        if (!cp_is_identifier(utf8_next(lx->text, lx->len, &next), end == lx->pos)) break;
        end = next;
    }
    if (end == lx->pos) {
        size_t next = end;
        utf8_next(lx->text, lx->len, &next);
        LEX_FAIL(lx, "unexpected character '%.*s'", (int)(next - end), lx->text + end);
    }
    add_token(lx, T_NAME)->value = value_text(lx->text + lx->pos, end - lx->pos);
    advance(lx, end);
    return OK;
}

static const struct {
    char      text[3];
    TokenKind kind;
} operators[] = {
    { "//", T_FLOORDIV }, { "**", T_POW }, { "==", T_EQ }, { "!=", T_NE }, { ">=", T_GE }, { "<=", T_LE },
    { "+", T_ADD }, { "-", T_SUB }, { "/", T_DIV }, { "*", T_MUL }, { "%", T_MOD }, { "~", T_TILDE },
    { "[", T_LBRACKET }, { "]", T_RBRACKET }, { "(", T_LPAREN }, { ")", T_RPAREN }, { "{", T_LBRACE },
    { "}", T_RBRACE }, { ">", T_GT }, { "<", T_LT }, { "=", T_ASSIGN }, { ".", T_DOT }, { ":", T_COLON },
    { "|", T_PIPE }, { ",", T_COMMA }, { ";", T_SEMICOLON },
};

static Status balance(Lexer *lx, TokenKind kind)
{
    char c = lx->text[lx->pos];
    if (kind == T_LBRACE || kind == T_LPAREN || kind == T_LBRACKET) {
        if (lx->num_closers == TEMPLATE_MAX_NESTING) LEX_FAIL(lx, "brackets are nested deeper than %d", TEMPLATE_MAX_NESTING);
        lx->closers[lx->num_closers++] = kind == T_LBRACE ? '}' : kind == T_LPAREN ? ')' : ']';
    } else if (kind == T_RBRACE || kind == T_RPAREN || kind == T_RBRACKET) {
        if (!lx->num_closers) LEX_FAIL(lx, "unexpected '%c'", c);
        char expected = lx->closers[--lx->num_closers];
        if (expected != c) LEX_FAIL(lx, "unexpected '%c', expected '%c'", c, expected);
    }
    return OK;
}

/* The tokens of a block or of an expression to print, with its end. */
static Status lex_tag(Lexer *lx, bool is_block)
{
    lx->num_closers = 0;
    for (;;) {
        if (lx->pos >= lx->len) return OK;
        size_t end = lx->num_closers ? 0 : tag_end(lx, lx->pos, is_block ? "%}" : "}}", is_block, is_block);
        if (end) {
            add_token(lx, is_block ? T_BLOCK_END : T_VARIABLE_END);
            advance(lx, end);
            return OK;
        }
        size_t space = skip_space(lx, lx->pos);
        if (space > lx->pos) {
            advance(lx, space);
            continue;
        }
        char c = lx->text[lx->pos];
        if (c >= '0' && c <= '9') {
            TRY(lex_number(lx));
            continue;
        }
        if (c == '\'' || c == '"') {
            TRY(lex_string(lx));
            continue;
        }
        size_t op = 0, num_ops = sizeof operators / sizeof operators[0];
        while (op < num_ops && !at(lx, lx->pos, operators[op].text)) op++;
        if (op == num_ops) {
            TRY(lex_name(lx));
            continue;
        }
        TRY(balance(lx, operators[op].kind));
        add_token(lx, operators[op].kind);
        advance(lx, lx->pos + strlen(operators[op].text));
    }
}

/* Text up to the next tag, then the tag. */
static Status lex_root(Lexer *lx)
{
    size_t begin = lx->pos;
    for (size_t pos = begin; pos + 1 < lx->len; pos++) {
        const char *brace = memchr(lx->text + pos, '{', lx->len - pos - 1);
        if (!brace) break;
        pos = (size_t)(brace - lx->text);
        char kind = lx->text[pos + 1], sign = 0;
        if (kind != '{' && kind != '%' && kind != '#') continue;
        size_t raw_end = raw_tag(lx, pos, "raw", &sign), end = pos + 2;
        if (!raw_end) {
            sign = 0;
            if (end < lx->len && (lx->text[end] == '-' || lx->text[end] == '+')) sign = lx->text[end++];
        }
        add_data(lx, strip_before(lx, begin, pos, sign, kind == '{'));
        advance(lx, raw_end ? raw_end : end);
        if (raw_end) return lex_raw(lx);
        if (kind == '#') return lex_comment(lx);
        add_token(lx, kind == '{' ? T_VARIABLE_BEGIN : T_BLOCK_BEGIN);
        return lex_tag(lx, kind == '%');
    }
    add_data(lx, (Str){ lx->text + begin, lx->len - begin });
    advance(lx, lx->len);
    return OK;
}

/* A copy in the arena with \n for every newline and without the last one. */
static Str normalize_newlines(Arena *arena, const char *source, size_t len)
{
    char  *text = arena_alloc(arena, len + 1);
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        if (source[i] == '\r') {
            text[n++] = '\n';
            if (i + 1 < len && source[i + 1] == '\n') i++;
        } else {
            text[n++] = source[i];
        }
    }
    if (n && text[n - 1] == '\n') n--;
    return (Str){ text, n };
}

Status template_lex(Template *tmpl, const char *source, size_t len, Token **out_tokens, size_t *out_count)
{
    Str   text = normalize_newlines(&tmpl->arena, source, len);
    Lexer lx = { .tmpl = tmpl, .text = text.data, .len = text.len, .line = 1, .line_starting = true };
    if (!utf8_is_valid(text.data, text.len)) LEX_FAIL(&lx, "the template is not valid UTF-8");
    while (lx.pos < lx.len) TRY(lex_root(&lx));
    add_token(&lx, T_EOF);
    *out_tokens = lx.tokens;
    *out_count = lx.count;
    return OK;
}
