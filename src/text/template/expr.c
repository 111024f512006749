/* Parses expressions by recursive descent, with Jinja's precedences: inline if, then the binary levels, then subscripts, calls, filters and
 * tests. Also contains the token and node functions that parse.c uses. */
#include "text/template/render.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void parser_fail(Parser *p, Status status, int line, const char *fmt, ...)
{
    char    message[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    p->status = status_fail(status, "%s:%d: %s", p->tmpl->name, line, message);
    longjmp(p->failed, 1);
}

const char *const token_texts[] = {
#define TOKEN(kind, text) text,
#include "text/template/tokens.def"
};

TokenText token_describe(const Token *token)
{
    TokenText   described;
    bool        is_name = token->kind == T_NAME && token->value.text;
    Str         text = is_name ? value_str(token->value) : str_of(token_texts[token->kind]);
    const char *quote = is_name || token->kind >= T_VARIABLE_BEGIN ? "'" : "";
    snprintf(described.text, sizeof described.text, "%s%.*s%s", quote, (int)(text.len < 80 ? text.len : 80), text.data, quote);
    return described;
}

Token *parser_expect(Parser *p, TokenKind kind)
{
    Token *token = parser_token(p), wanted = {.kind = kind};
    if (token->kind != kind)
        parser_fail(p, ERR_INVALID, token->line, "expected %s, got %s", token_describe(&wanted).text, token_describe(token).text);
    p->pos++;
    return token;
}

static bool token_is(const Token *token, const char *name)
{
    return token->kind == T_NAME && str_equal(value_str(token->value), name);
}

bool parser_at_name(Parser *p, const char *name)
{
    return token_is(parser_token(p), name);
}

bool parser_skip_name(Parser *p, const char *name)
{
    bool skips = parser_at_name(p, name);
    p->pos += skips;
    return skips;
}

bool parser_skip(Parser *p, TokenKind kind)
{
    bool skips = parser_at(p, kind);
    p->pos += skips;
    return skips;
}

uint32_t parser_intern(Parser *p, const Token *name)
{
    return template_intern(p->tmpl, value_str(name->value));
}

void parser_note(Parser *p, uint32_t name, bool is_parameter, bool is_stored)
{
    enum { MOST_SYMBOLS = 4096 };
    Scope   *scope = p->scope;
    uint32_t i = 0;
    while (i < scope->count && scope->symbols[i].name != name) i++;
    if (i == MOST_SYMBOLS) parser_fail(p, ERR_INVALID, parser_token(p)->line, "more than %d names in one scope", MOST_SYMBOLS);
    scope->symbols = arena_room(&p->tmpl->arena, scope->symbols, scope->count + 1, &scope->capacity, sizeof *scope->symbols);
    Symbol *symbol = &scope->symbols[i];
    if (i == scope->count) {
        scope->count++;
        *symbol = (Symbol){.name = name, .resolves = !is_stored};
    }
    if (is_stored && !symbol->is_stored) symbol->resolves |= scope->branches > 0;
    symbol->is_parameter |= is_parameter;
    symbol->is_stored |= is_stored;
}

void parser_deeper(Parser *p)
{
    if (++p->depth > TEMPLATE_MAX_NESTING)
        parser_fail(p, ERR_INVALID, parser_token(p)->line, "the template is nested deeper than %d here", TEMPLATE_MAX_NESTING);
}

Node *parser_node(Parser *p, NodeKind kind, int line)
{
    Node *node = arena_new(&p->tmpl->arena, Node);
    node->kind = (uint8_t)kind;
    node->line = line;
    return node;
}

void nodes_add(Parser *p, Nodes *nodes, Node *node)
{
    nodes->items = arena_room(&p->tmpl->arena, nodes->items, nodes->count + 1, &nodes->capacity, sizeof *nodes->items);
    nodes->items[nodes->count++] = node;
}

static Node *make(Parser *p, NodeKind kind, const Token *token, Node *a, Node *b)
{
    Node *node = parser_node(p, kind, token->line);
    node->op = (uint8_t)token->kind;
    node->a = a;
    node->b = b;
    return node;
}

static Node *constant(Parser *p, int line, Value value)
{
    Node *node = parser_node(p, N_CONST, line);
    node->value = value;
    return node;
}

static Node *parse_name(Parser *p, bool with_namespace)
{
    Token *token = parser_expect(p, T_NAME);
    if (token_is(token, "true") || token_is(token, "True")) return constant(p, token->line, value_bool(true));
    if (token_is(token, "false") || token_is(token, "False")) return constant(p, token->line, value_bool(false));
    if (token_is(token, "none") || token_is(token, "None")) return constant(p, token->line, value_none());
    bool  is_attribute = with_namespace && parser_skip(p, T_DOT);
    Node *node = parser_node(p, is_attribute ? N_NSREF : N_NAME, token->line);
    node->name = parser_intern(p, token);
    for (int i = 0; p->function && i < NUM_SPECIAL; i++) p->function->uses[i] |= node->name == p->tmpl->specials[i];
    if (is_attribute) node->attribute = parser_intern(p, parser_expect(p, T_NAME));
    if (!p->in_target) parser_note(p, node->name, false, false);
    return node;
}

/* Joins adjacent string literals. */
static Node *parse_strings(Parser *p)
{
    Token *first = parser_token(p);
    size_t total = 0, at = 0;
    while (parser_at(p, T_STRING)) total += p->tokens[p->pos++].value.len;
    if (parser_token(p) == first + 1) return constant(p, first->line, first->value);
    char *text = arena_alloc(&p->tmpl->arena, total + 1);
    for (const Token *part = first; part < parser_token(p); at += part++->value.len)
        if (part->value.len) memcpy(text + at, part->value.text, part->value.len);
    return constant(p, first->line, value_text(text, total));
}

/* Skips the "," before the next item. True: an item follows. False: the list ends, maybe after a trailing ",". */
static bool another(Parser *p, const Nodes *items, TokenKind end)
{
    if (items->count && !parser_at(p, end)) parser_expect(p, T_COMMA);
    return !parser_at(p, end);
}

static Node *parse_list(Parser *p)
{
    Node *node = parser_node(p, N_LIST, parser_expect(p, T_LBRACKET)->line);
    while (another(p, &node->items, T_RBRACKET)) nodes_add(p, &node->items, parse_expression(p));
    parser_expect(p, T_RBRACKET);
    return node;
}

static Node *parse_dict(Parser *p)
{
    Node *node = parser_node(p, N_DICT, parser_expect(p, T_LBRACE)->line);
    while (another(p, &node->items, T_RBRACE)) {
        nodes_add(p, &node->items, parse_expression(p));
        parser_expect(p, T_COLON);
        nodes_add(p, &node->values, parse_expression(p));
    }
    parser_expect(p, T_RBRACE);
    return node;
}

static Node *parse_primary(Parser *p, bool with_namespace)
{
    Token *token = parser_token(p);
    Node  *node;
    switch (token->kind) {
    case T_NAME:
        return parse_name(p, with_namespace);
    case T_STRING:
        return parse_strings(p);
    case T_INTEGER:
    case T_FLOAT:
        p->pos++;
        return constant(p, token->line, token->value);
    case T_LPAREN:
        p->pos++;
        node = parse_tuple(p, (TupleOptions){.parentheses = true});
        parser_expect(p, T_RPAREN);
        return node;
    case T_LBRACKET:
        return parse_list(p);
    case T_LBRACE:
        return parse_dict(p);
    default:
        parser_fail(p, ERR_INVALID, token->line, "unexpected %s", token_describe(token).text);
    }
}

/* Parses an index or a slice. */
static Node *parse_subscribed(Parser *p)
{
    Node *parts[3] = {0};
    int   line = parser_token(p)->line;
    if (!parser_at(p, T_COLON)) {
        parts[0] = parse_expression(p);
        if (!parser_at(p, T_COLON)) return parts[0];
    }
    for (int i = 1; i < 3 && parser_skip(p, T_COLON); i++)
        if (!parser_at(p, T_COLON) && !parser_at(p, T_RBRACKET) && !parser_at(p, T_COMMA)) parts[i] = parse_expression(p);
    Node *node = parser_node(p, N_SLICE, line);
    node->a = parts[0];
    node->b = parts[1];
    node->c = parts[2];
    return node;
}

/* Parses .name or .0 after an object. */
static Node *parse_attribute(Parser *p, Node *object)
{
    Token *dot = parser_expect(p, T_DOT), *name = parser_token(p);
    if (name->kind != T_NAME && name->kind != T_INTEGER) parser_fail(p, ERR_INVALID, dot->line, "expected a name or a number after '.'");
    p->pos++;
    if (name->kind == T_INTEGER) return make(p, N_GETITEM, dot, object, constant(p, dot->line, name->value));
    Node *node = make(p, N_GETATTR, dot, object, NULL);
    node->name = parser_intern(p, name);
    node->builtin = builtin_find(template_methods, value_str(name->value));
    return node;
}

static Node *parse_subscript(Parser *p, Node *object)
{
    Token *begin = parser_expect(p, T_LBRACKET);
    Node  *node = make(p, N_GETITEM, begin, object, parse_subscribed(p));
    if (parser_at(p, T_COMMA)) parser_fail(p, ERR_UNSUPPORTED, begin->line, "several indices are not supported");
    parser_expect(p, T_RBRACKET);
    return node;
}

/* Parses arguments into node->items: positional ones, keywords (N_KEYWORD), and at most one * and one ** (N_KEYWORD with op T_MUL or
 * T_POW). */
static void parse_call_args(Parser *p, Node *node)
{
    Token *begin = parser_expect(p, T_LPAREN);
    bool   star = false, star_star = false, keywords = false;
    while (another(p, &node->items, T_RPAREN)) {
        Token *token = parser_token(p);
        bool   is_star = token->kind == T_MUL || token->kind == T_POW;
        bool   is_keyword = token->kind == T_NAME && token[1].kind == T_ASSIGN, valid = !star_star;
        if (token->kind == T_MUL) valid &= !star;
        if (!is_star && !is_keyword) valid &= !star && !keywords;
        if (!valid) parser_fail(p, ERR_INVALID, begin->line, "invalid order of arguments in a call");
        star |= token->kind == T_MUL;
        star_star |= token->kind == T_POW;
        keywords |= is_keyword;
        p->pos += is_star ? 1 : is_keyword ? 2 : 0;
        Node *value = parse_expression(p);
        if (is_star || is_keyword) value = make(p, N_KEYWORD, is_star ? token : token + 1, value, NULL);
        if (is_keyword) value->name = parser_intern(p, token);
        nodes_add(p, &node->items, value);
    }
    p->pos++;
}

static Node *parse_call(Parser *p, Node *callee)
{
    Node *node = make(p, N_CALL, parser_token(p), callee, NULL);
    parse_call_args(p, node);
    return node;
}

static Node *parse_builtin(Parser *p, NodeKind kind, int line, Node *object, const Builtin *table)
{
    Node *node = parser_node(p, kind, line);
    node->a = object;
    node->negated = kind == N_TEST && parser_skip_name(p, "not");
    Token *name = parser_expect(p, T_NAME);
    node->name = parser_intern(p, name);
    node->builtin = builtin_find(table, value_str(name->value));
    if ((!node->builtin || node->builtin->call == missing) && !p->soft && !p->unknown) p->unknown = node;
    return node;
}

void parser_check_unknown(Parser *p)
{
    enum { MOST = 128 };
    const Node *node = p->unknown;
    uint32_t    count = 0;
    if (!node) return;
    const char *names[MOST], *name = p->tmpl->names.names[node->name].data, *kind = node->kind == N_FILTER ? "filter" : "test";
    if (node->builtin) parser_fail(p, ERR_UNSUPPORTED, node->line, "the %s '%s' is not supported", kind, name);
    for (const Builtin *row = node->kind == N_FILTER ? template_filters : template_tests; row->name && count < MOST; row++)
        if (row->call != missing) names[count++] = row->name;
    const char *near = nearest_name(name, names, count);
    parser_fail(p, ERR_UNSUPPORTED, node->line, "no %s named '%s'%s%s%s", kind, name, near ? "; did you mean '" : "", near ? near : "",
                near ? "'?" : "");
}

Node *parse_filter_chain(Parser *p, Node *node, bool start_inline)
{
    while (start_inline || parser_skip(p, T_PIPE)) {
        start_inline = false;
        node = parse_builtin(p, N_FILTER, parser_token(p)->line, node, template_filters);
        if (parser_at(p, T_LPAREN)) parse_call_args(p, node);
    }
    return node;
}

static Node *parse_postfix(Parser *p, Node *node)
{
    for (;;) {
        if (parser_at(p, T_DOT)) {
            node = parse_attribute(p, node);
        } else if (parser_at(p, T_LBRACKET)) {
            node = parse_subscript(p, node);
        } else if (parser_at(p, T_LPAREN)) {
            node = parse_call(p, node);
        } else {
            return node;
        }
    }
}

static bool at_test_argument(Parser *p)
{
    const Token *token = parser_token(p);
    if (token->kind == T_NAME) return !token_is(token, "else") && !token_is(token, "or") && !token_is(token, "and");
    return token->kind == T_STRING || token->kind == T_INTEGER || token->kind == T_FLOAT || token->kind == T_LBRACKET ||
           token->kind == T_LBRACE;
}

static Node *parse_test(Parser *p, Node *object)
{
    int line = parser_token(p)->line;
    p->pos++; /* is */
    Node *node = parse_builtin(p, N_TEST, line, object, template_tests);
    if (parser_at(p, T_LPAREN)) {
        parse_call_args(p, node);
    } else if (at_test_argument(p)) {
        if (parser_at_name(p, "is")) parser_fail(p, ERR_INVALID, line, "tests can't be chained with 'is'");
        nodes_add(p, &node->items, parse_postfix(p, parse_primary(p, false)));
    }
    return node;
}

static Node *parse_unary(Parser *p, bool with_filter)
{
    Token *token = parser_token(p);
    Node  *node;
    parser_deeper(p);
    if (parser_skip(p, T_SUB) || parser_skip(p, T_ADD)) {
        node = make(p, token->kind == T_SUB ? N_NEG : N_POS, token, parse_unary(p, false), NULL);
    } else {
        node = parse_primary(p, false);
    }
    node = parse_postfix(p, node);
    while (with_filter) {
        if (parser_at(p, T_PIPE)) {
            node = parse_filter_chain(p, node, false);
        } else if (parser_at_name(p, "is")) {
            node = parse_test(p, node);
        } else if (parser_at(p, T_LPAREN)) {
            node = parse_call(p, node);
        } else {
            break;
        }
    }
    if (parser_at(p, T_POW)) parser_fail(p, ERR_UNSUPPORTED, parser_token(p)->line, "the operator ** is not supported");
    p->depth--;
    return node;
}

/* Levels of binary operators, loosest first; all associate to the left. LEVEL_NOT is the unary "not", between "and" and comparisons. */
typedef enum Level { LEVEL_OR, LEVEL_AND, LEVEL_NOT, LEVEL_COMPARE, LEVEL_SUM, LEVEL_CONCAT, LEVEL_PRODUCT, LEVEL_UNARY } Level;

/* The level of the binary operator at a token, and *op, its kind in the tree. LEVEL_UNARY: there is no binary operator. */
static Level level_of(const Token *token, TokenKind *op)
{
    *op = token->kind;
    switch (token->kind) {
    case T_ADD:
    case T_SUB:
        return LEVEL_SUM;
    case T_MUL:
    case T_DIV:
    case T_FLOORDIV:
    case T_MOD:
        return LEVEL_PRODUCT;
    case T_TILDE:
        return LEVEL_CONCAT;
    case T_NAME:
        *op = token_is(token, "in") ? T_IN : T_NOTIN;
        if (*op == T_IN || (token_is(token, "not") && token_is(token + 1, "in"))) return LEVEL_COMPARE;
        return token_is(token, "and") ? LEVEL_AND : token_is(token, "or") ? LEVEL_OR : LEVEL_UNARY;
    default:
        return token->kind >= T_EQ && token->kind <= T_GT ? LEVEL_COMPARE : LEVEL_UNARY;
    }
}

static Node *parse_level(Parser *p, Level level)
{
    Token    *first = parser_token(p);
    Node     *node, *chain = NULL;
    TokenKind op;
    if (level == LEVEL_UNARY) return parse_unary(p, true);
    if (level == LEVEL_NOT && parser_skip_name(p, "not")) {
        parser_deeper(p);
        node = make(p, N_NOT, first, parse_level(p, LEVEL_NOT), NULL);
        p->depth--;
        return node;
    }
    node = parse_level(p, level + 1);
    while (level_of(parser_token(p), &op) == level) {
        Token token = {.kind = op, .line = parser_token(p)->line};
        p->pos += op == T_NOTIN && level == LEVEL_COMPARE ? 2 : 1;
        Node *right = parse_level(p, level + 1);
        bool  begins = !chain && (level == LEVEL_COMPARE || level == LEVEL_CONCAT);
        if (begins) chain = make(p, level == LEVEL_COMPARE ? N_COMPARE : N_CONCAT, first, NULL, NULL);
        if (begins && level == LEVEL_COMPARE) chain->a = node;
        if (begins && level == LEVEL_CONCAT) nodes_add(p, &chain->items, node);
        if (chain)
            nodes_add(p, &chain->items, level == LEVEL_COMPARE ? make(p, N_KEYWORD, &token, right, NULL) : right);
        else
            node = make(p, level == LEVEL_OR ? N_OR : level == LEVEL_AND ? N_AND : N_BINARY, &token, node, right);
    }
    return chain ? chain : node;
}

/* a if b else c: N_CONDEXPR with operands a, b, c. */
static Node *parse_condition(Parser *p)
{
    Token      *first = parser_token(p);
    const Node *unknown = p->unknown;
    Node       *value = parse_level(p, LEVEL_OR);
    for (; parser_skip_name(p, "if"); first = parser_token(p)) {
        Node *node = parser_node(p, N_CONDEXPR, first->line);
        p->unknown = unknown; /* forgets an unknown filter in `value`: it may never be reached */
        p->soft++;
        node->a = value;
        node->b = parse_level(p, LEVEL_OR);
        if (parser_skip_name(p, "else")) {
            parser_deeper(p);
            node->c = parse_condition(p);
            p->depth--;
        }
        p->soft--;
        value = node;
    }
    return value;
}

Node *parse_expression(Parser *p)
{
    parser_deeper(p);
    Node *node = parse_condition(p);
    p->depth--;
    return node;
}

Node *parse_tuple(Parser *p, TupleOptions options)
{
    Node *node = parser_node(p, N_TUPLE, parser_token(p)->line);
    bool  is_tuple = false;
    for (;;) {
        if (node->items.count) parser_expect(p, T_COMMA);
        if (parser_at(p, T_VARIABLE_END) || parser_at(p, T_BLOCK_END) || parser_at(p, T_RPAREN)) break;
        nodes_add(p, &node->items,
                  options.simplified    ? parse_primary(p, options.with_namespace)
                  : options.no_condexpr ? parse_level(p, LEVEL_OR)
                                        : parse_expression(p));
        if (!parser_at(p, T_COMMA)) break;
        is_tuple = true;
    }
    if (!is_tuple && node->items.count) return node->items.items[0];
    if (!is_tuple && !options.parentheses)
        parser_fail(p, ERR_INVALID, node->line, "expected an expression, got %s", token_describe(parser_token(p)).text);
    return node;
}

static void mark_target(Parser *p, Node *node, bool with_namespace)
{
    bool is_loop = node->kind == N_NAME && str_equal(p->tmpl->names.names[node->name], "loop");
    if (is_loop && p->in_for) parser_fail(p, ERR_INVALID, node->line, "'loop' can't be assigned to inside of a for");
    if (node->kind != N_NAME && node->kind != N_TUPLE && !(node->kind == N_NSREF && with_namespace))
        parser_fail(p, ERR_INVALID, node->line, "can't assign to this: a name or names were expected");
    for (uint32_t i = 0; i < node->items.count; i++) mark_target(p, node->items.items[i], with_namespace);
}

Node *parse_target(Parser *p, bool with_namespace)
{
    p->in_target = true;
    Node *node = parse_tuple(p, (TupleOptions){.simplified = true, .with_namespace = with_namespace});
    p->in_target = false;
    mark_target(p, node, with_namespace);
    return node;
}
