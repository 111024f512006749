/* Expressions, by recursive descent in Jinja's order of precedence: if-else, or, and, not, comparisons, + -, ~, * / // %,
 * unary, ** (left to right), then subscripts, calls, filters and tests. */
#include "text/template/ast.h"
#include "text/template/eval.h"

#include <stdio.h>
#include <string.h>

static Nodes nodes_of(NodeList list)
{
    return (Nodes){ list.items, list.count };
}

static void raise_height(Node *node, const Node *child)
{
    if (child && child->height >= node->height) node->height = (uint16_t)(child->height + 1);
}

/* Sets the height from the operands; chains like a + b + c ... are trees as deep as they are long. */
static Status finish_node(Parser *p, Node *node, Node **out)
{
    raise_height(node, node->a);
    raise_height(node, node->b);
    raise_height(node, node->c);
    for (uint32_t i = 0; i < node->items.count; i++) raise_height(node, node->items.items[i]);
    for (uint32_t i = 0; i < node->values.count; i++) raise_height(node, node->values.items[i]);
    if (node->height > TEMPLATE_MAX_NESTING)
        return parser_fail(p, ERR_INVALID, node->line, "the expression is nested deeper than %d", TEMPLATE_MAX_NESTING);
    *out = node;
    return OK;
}

static Status make_binary(Parser *p, NodeKind kind, TokenKind op, int line, Node *a, Node *b, Node **out)
{
    Node *node = parser_node(p, kind, line);
    node->op = (uint8_t)op;
    node->a = a;
    node->b = b;
    return finish_node(p, node, out);
}

static Status parse_or(Parser *p, Node **out);

static Status parse_name(Parser *p, bool with_namespace, Node **out)
{
    Token *token = &p->tokens[p->pos++];
    Str    name = value_str(token->value);
    Node  *node = parser_node(p, N_CONST, token->line);
    *out = node;
    if (str_equal(name, "true") || str_equal(name, "True")) {
        node->value = value_bool(true);
    } else if (str_equal(name, "false") || str_equal(name, "False")) {
        node->value = value_bool(false);
    } else if (str_equal(name, "none") || str_equal(name, "None")) {
        node->value = value_none();
    } else if (with_namespace && parser_skip(p, T_DOT)) {
        Token attribute;
        TRY(parser_expect(p, T_NAME, &attribute));
        node->kind = N_NSREF;
        node->name = template_intern(p->tmpl, name);
        node->index = template_intern(p->tmpl, value_str(attribute.value));
    } else {
        node->kind = N_NAME;
        node->name = template_intern(p->tmpl, name);
    }
    return OK;
}

/* Adjacent strings are one. */
static Status parse_strings(Parser *p, Node **out)
{
    size_t total = 0, first = p->pos;
    Node  *node = parser_node(p, N_CONST, parser_token(p)->line);
    for (; parser_at(p, T_STRING); p->pos++) total += parser_token(p)->value.len;
    node->value = p->tokens[first].value;
    if (p->pos > first + 1) {
        char  *text = arena_alloc(&p->tmpl->arena, total + 1);
        size_t at = 0;
        for (size_t i = first; i < p->pos; i++) {
            Str part = value_str(p->tokens[i].value);
            if (part.len) memcpy(text + at, part.data, part.len);
            at += part.len;
        }
        node->value = value_text(text, total);
    }
    *out = node;
    return OK;
}

static Status parse_list(Parser *p, Node **out)
{
    Token    begin;
    NodeList items = { 0 };
    TRY(parser_expect(p, T_LBRACKET, &begin));
    while (!parser_at(p, T_RBRACKET)) {
        Node *item;
        if (items.count) TRY(parser_expect(p, T_COMMA, NULL));
        if (parser_at(p, T_RBRACKET)) break;
        TRY(parse_expression(p, &item));
        node_list_add(p, &items, item);
    }
    TRY(parser_expect(p, T_RBRACKET, NULL));
    Node *node = parser_node(p, N_LIST, begin.line);
    node->items = nodes_of(items);
    return finish_node(p, node, out);
}

static Status parse_dict(Parser *p, Node **out)
{
    Token    begin;
    NodeList keys = { 0 }, values = { 0 };
    TRY(parser_expect(p, T_LBRACE, &begin));
    while (!parser_at(p, T_RBRACE)) {
        Node *key, *value;
        if (keys.count) TRY(parser_expect(p, T_COMMA, NULL));
        if (parser_at(p, T_RBRACE)) break;
        TRY(parse_expression(p, &key));
        TRY(parser_expect(p, T_COLON, NULL));
        TRY(parse_expression(p, &value));
        node_list_add(p, &keys, key);
        node_list_add(p, &values, value);
    }
    TRY(parser_expect(p, T_RBRACE, NULL));
    Node *node = parser_node(p, N_DICT, begin.line);
    node->items = nodes_of(keys);
    node->values = nodes_of(values);
    return finish_node(p, node, out);
}

static Status parse_primary(Parser *p, bool with_namespace, Node **out)
{
    Token *token = parser_token(p);
    char   got[96];
    switch (token->kind) {
    case T_NAME: return parse_name(p, with_namespace, out);
    case T_STRING: return parse_strings(p, out);
    case T_INTEGER:
    case T_FLOAT:
        *out = parser_node(p, N_CONST, token->line);
        (*out)->value = token->value;
        p->pos++;
        return OK;
    case T_LPAREN:
        p->pos++;
        TRY(parse_tuple(p, (TupleOptions){ .parentheses = true }, out));
        return parser_expect(p, T_RPAREN, NULL);
    case T_LBRACKET: return parse_list(p, out);
    case T_LBRACE: return parse_dict(p, out);
    default:
        return parser_fail(p, ERR_INVALID, token->line, "unexpected %s", token_describe(token, got, sizeof got));
    }
}

/* One index or slice of a subscript. */
static Status parse_subscribed(Parser *p, Node **out)
{
    Node *parts[3] = { 0 };
    int   line = parser_token(p)->line;
    if (!parser_at(p, T_COLON)) {
        TRY(parse_expression(p, &parts[0]));
        if (!parser_at(p, T_COLON)) {
            *out = parts[0];
            return OK;
        }
    }
    for (int i = 1; i < 3 && parser_skip(p, T_COLON); i++)
        if (!parser_at(p, T_COLON) && !parser_at(p, T_RBRACKET) && !parser_at(p, T_COMMA)) TRY(parse_expression(p, &parts[i]));
    Node *node = parser_node(p, N_SLICE, line);
    node->a = parts[0];
    node->b = parts[1];
    node->c = parts[2];
    return finish_node(p, node, out);
}

static Status parse_subscript(Parser *p, Node *object, Node **out)
{
    Token    begin = *parser_token(p), name;
    NodeList args = { 0 };
    p->pos++;
    if (begin.kind == T_DOT && parser_at(p, T_NAME)) {
        TRY(parser_expect(p, T_NAME, &name));
        Node *node = parser_node(p, N_GETATTR, begin.line);
        node->a = object;
        node->name = template_intern(p->tmpl, value_str(name.value));
        return finish_node(p, node, out);
    }
    Node *node = parser_node(p, N_GETITEM, begin.line);
    node->a = object;
    if (begin.kind == T_DOT) {
        node->b = parser_node(p, N_CONST, begin.line);
        if (!parser_at(p, T_INTEGER)) return parser_fail(p, ERR_INVALID, begin.line, "expected a name or a number after '.'");
        node->b->value = p->tokens[p->pos++].value;
        return finish_node(p, node, out);
    }
    while (!parser_at(p, T_RBRACKET)) {
        Node *arg;
        if (args.count) TRY(parser_expect(p, T_COMMA, NULL));
        TRY(parse_subscribed(p, &arg));
        node_list_add(p, &args, arg);
    }
    TRY(parser_expect(p, T_RBRACKET, NULL));
    if (args.count == 1) {
        node->b = args.items[0];
    } else {
        node->b = parser_node(p, N_TUPLE, begin.line);
        node->b->items = nodes_of(args);
        for (uint32_t i = 0; i < args.count; i++)
            if (args.items[i]->kind == N_SLICE)
                return parser_fail(p, ERR_INVALID, begin.line, "slices in several dimensions are not supported");
        TRY(finish_node(p, node->b, &node->b));
    }
    return finish_node(p, node, out);
}

/* Arguments into node->items: positional, N_KEYWORD, then at most one of each star (N_KEYWORD with op T_MUL, T_POW). */
static Status parse_call_args(Parser *p, Node *node)
{
    Token    begin;
    NodeList args = { 0 };
    bool     star = false, star_star = false, keywords = false;
    TRY(parser_expect(p, T_LPAREN, &begin));
    for (bool comma = false; !parser_at(p, T_RPAREN); comma = true) {
        Node *value, *keyword = NULL;
        bool  valid = true;
        if (comma) {
            TRY(parser_expect(p, T_COMMA, NULL));
            if (parser_at(p, T_RPAREN)) break;
        }
        TokenKind kind = parser_token(p)->kind;
        if (kind == T_MUL || kind == T_POW) {
            valid = !star_star && (kind == T_POW || !star);
            if (kind == T_MUL) star = true;
            if (kind == T_POW) star_star = true;
            keyword = parser_node(p, N_KEYWORD, parser_token(p)->line);
            keyword->op = (uint8_t)kind;
            p->pos++;
        } else if (kind == T_NAME && p->tokens[p->pos + 1].kind == T_ASSIGN) {
            valid = !star_star;
            keywords = true;
            keyword = parser_node(p, N_KEYWORD, parser_token(p)->line);
            keyword->name = template_intern(p->tmpl, value_str(parser_token(p)->value));
            keyword->op = T_ASSIGN;
            p->pos += 2;
        } else {
            valid = !star && !star_star && !keywords;
        }
        if (!valid) return parser_fail(p, ERR_INVALID, begin.line, "invalid order of arguments in a call");
        TRY(parse_expression(p, &value));
        if (keyword) {
            node->needs_dict_args = true;
            keyword->a = value;
            TRY(finish_node(p, keyword, &value));
        }
        node_list_add(p, &args, value);
    }
    node->items = nodes_of(args);
    return parser_expect(p, T_RPAREN, NULL);
}

static Status parse_call(Parser *p, Node *callee, Node **out)
{
    Node *node = parser_node(p, N_CALL, parser_token(p)->line);
    node->a = callee;
    TRY(parse_call_args(p, node));
    return finish_node(p, node, out);
}

/* name or name.name into the node's index in the table. The resolver complains about unknown ones: inside an if they
 * may stand as long as they are not reached. */
static Status parse_builtin_name(Parser *p, Node *node, const Builtin *table, uint32_t count)
{
    Token name;
    char  full[128];
    TRY(parser_expect(p, T_NAME, &name));
    snprintf(full, sizeof full, "%.*s", (int)name.value.len, name.value.text);
    while (parser_skip(p, T_DOT)) {
        TRY(parser_expect(p, T_NAME, &name));
        size_t n = strlen(full);
        snprintf(full + n, sizeof full - n, ".%.*s", (int)name.value.len, name.value.text);
    }
    node->name = template_intern(p->tmpl, str_of(full));
    node->index = builtin_find(table, count, str_of(full));
    return OK;
}

Status parse_filter_chain(Parser *p, Node *node, bool start_inline, Node **out)
{
    while (start_inline || parser_skip(p, T_PIPE)) {
        Node *filter = parser_node(p, N_FILTER, parser_token(p)->line);
        filter->a = node;
        start_inline = false;
        TRY(parse_builtin_name(p, filter, template_filters, template_num_filters));
        if (parser_at(p, T_LPAREN)) TRY(parse_call_args(p, filter));
        TRY(finish_node(p, filter, &node));
    }
    *out = node;
    return OK;
}

static Status parse_postfix(Parser *p, Node *node, Node **out)
{
    for (;;) {
        if (parser_at(p, T_DOT) || parser_at(p, T_LBRACKET)) {
            TRY(parse_subscript(p, node, &node));
        } else if (parser_at(p, T_LPAREN)) {
            TRY(parse_call(p, node, &node));
        } else {
            break;
        }
    }
    *out = node;
    return OK;
}

static bool at_test_argument(Parser *p)
{
    switch (parser_token(p)->kind) {
    case T_NAME: return !parser_at_name(p, "else") && !parser_at_name(p, "or") && !parser_at_name(p, "and");
    case T_STRING:
    case T_INTEGER:
    case T_FLOAT:
    case T_LBRACKET:
    case T_LBRACE: return true;
    default: return false;
    }
}

static Status parse_test(Parser *p, Node *object, Node **out)
{
    Node *node = parser_node(p, N_TEST, parser_token(p)->line);
    p->pos++;
    node->a = object;
    node->negated = parser_skip_name(p, "not");
    TRY(parse_builtin_name(p, node, template_tests, template_num_tests));
    if (parser_at(p, T_LPAREN)) {
        TRY(parse_call_args(p, node));
    } else if (at_test_argument(p)) {
        NodeList args = { 0 };
        Node    *arg;
        if (parser_at_name(p, "is")) return parser_fail(p, ERR_INVALID, node->line, "tests can't be chained with 'is'");
        TRY(parse_primary(p, false, &arg));
        TRY(parse_postfix(p, arg, &arg));
        node_list_add(p, &args, arg);
        node->items = nodes_of(args);
    }
    return finish_node(p, node, out);
}

static Status parse_unary(Parser *p, bool with_filter, Node **out)
{
    Token *token = parser_token(p);
    Node  *node;
    if (++p->depth > TEMPLATE_MAX_NESTING)
        return parser_fail(p, ERR_INVALID, token->line, "the expression is nested deeper than %d", TEMPLATE_MAX_NESTING);
    if (token->kind == T_SUB || token->kind == T_ADD) {
        Node *operand;
        p->pos++;
        TRY(parse_unary(p, false, &operand));
        TRY(make_binary(p, token->kind == T_SUB ? N_NEG : N_POS, token->kind, token->line, operand, NULL, &node));
    } else {
        TRY(parse_primary(p, false, &node));
    }
    TRY(parse_postfix(p, node, &node));
    while (with_filter) {
        if (parser_at(p, T_PIPE)) {
            TRY(parse_filter_chain(p, node, false, &node));
        } else if (parser_at_name(p, "is")) {
            TRY(parse_test(p, node, &node));
        } else if (parser_at(p, T_LPAREN)) {
            TRY(parse_call(p, node, &node));
        } else {
            break;
        }
    }
    p->depth--;
    *out = node;
    return OK;
}

static Status parse_pow(Parser *p, Node **out)
{
    Node *left, *right;
    TRY(parse_unary(p, true, &left));
    while (parser_at(p, T_POW)) {
        int line = parser_token(p)->line;
        p->pos++;
        TRY(parse_unary(p, true, &right));
        TRY(make_binary(p, N_BINARY, T_POW, line, left, right, &left));
    }
    *out = left;
    return OK;
}

static Status parse_product(Parser *p, Node **out)
{
    Node *left, *right;
    TRY(parse_pow(p, &left));
    while (parser_at(p, T_MUL) || parser_at(p, T_DIV) || parser_at(p, T_FLOORDIV) || parser_at(p, T_MOD)) {
        Token op = p->tokens[p->pos++];
        TRY(parse_pow(p, &right));
        TRY(make_binary(p, N_BINARY, op.kind, op.line, left, right, &left));
    }
    *out = left;
    return OK;
}

static Status parse_concat(Parser *p, Node **out)
{
    NodeList parts = { 0 };
    Node    *part;
    int      line = parser_token(p)->line;
    TRY(parse_product(p, &part));
    if (!parser_at(p, T_TILDE)) {
        *out = part;
        return OK;
    }
    node_list_add(p, &parts, part);
    while (parser_skip(p, T_TILDE)) {
        TRY(parse_product(p, &part));
        node_list_add(p, &parts, part);
    }
    Node *node = parser_node(p, N_CONCAT, line);
    node->items = nodes_of(parts);
    return finish_node(p, node, out);
}

static Status parse_sum(Parser *p, Node **out)
{
    Node *left, *right;
    TRY(parse_concat(p, &left));
    while (parser_at(p, T_ADD) || parser_at(p, T_SUB)) {
        Token op = p->tokens[p->pos++];
        TRY(parse_concat(p, &right));
        TRY(make_binary(p, N_BINARY, op.kind, op.line, left, right, &left));
    }
    *out = left;
    return OK;
}

/* a < b <= c: items are the operands after the first, each wrapped with its operator. */
static Status parse_compare(Parser *p, Node **out)
{
    NodeList operands = { 0 };
    Node    *first, *right;
    int      line = parser_token(p)->line;
    TRY(parse_sum(p, &first));
    for (;;) {
        TokenKind op = parser_token(p)->kind;
        if (op >= T_EQ && op <= T_GE) {
            p->pos++;
        } else if (parser_skip_name(p, "in")) {
            op = T_IN;
        } else if (parser_at_name(p, "not") && p->tokens[p->pos + 1].kind == T_NAME &&
                   str_equal(value_str(p->tokens[p->pos + 1].value), "in")) {
            p->pos += 2;
            op = T_NOTIN;
        } else {
            break;
        }
        TRY(parse_sum(p, &right));
        TRY(make_binary(p, N_KEYWORD, op, right->line, right, NULL, &right));
        node_list_add(p, &operands, right);
    }
    *out = first;
    if (!operands.count) return OK;
    Node *node = parser_node(p, N_COMPARE, line);
    node->a = first;
    node->items = nodes_of(operands);
    return finish_node(p, node, out);
}

static Status parse_not(Parser *p, Node **out)
{
    int line = parser_token(p)->line;
    if (!parser_skip_name(p, "not")) return parse_compare(p, out);
    Node *operand;
    if (++p->depth > TEMPLATE_MAX_NESTING)
        return parser_fail(p, ERR_INVALID, line, "the expression is nested deeper than %d", TEMPLATE_MAX_NESTING);
    TRY(parse_not(p, &operand));
    p->depth--;
    return make_binary(p, N_NOT, T_EOF, line, operand, NULL, out);
}

static Status parse_and(Parser *p, Node **out)
{
    Node *left, *right;
    TRY(parse_not(p, &left));
    while (parser_skip_name(p, "and")) {
        TRY(parse_not(p, &right));
        TRY(make_binary(p, N_AND, T_EOF, right->line, left, right, &left));
    }
    *out = left;
    return OK;
}

static Status parse_or(Parser *p, Node **out)
{
    Node *left, *right;
    TRY(parse_and(p, &left));
    while (parser_skip_name(p, "or")) {
        TRY(parse_and(p, &right));
        TRY(make_binary(p, N_OR, T_EOF, right->line, left, right, &left));
    }
    *out = left;
    return OK;
}

/* a if b else c; N_CONDEXPR keeps a, b, c. */
static Status parse_condition(Parser *p, Node **out)
{
    int   line = parser_token(p)->line;
    Node *value;
    TRY(parse_or(p, &value));
    while (parser_skip_name(p, "if")) {
        Node *node = parser_node(p, N_CONDEXPR, line);
        node->a = value;
        TRY(parse_or(p, &node->b));
        if (parser_skip_name(p, "else")) {
            if (++p->depth > TEMPLATE_MAX_NESTING)
                return parser_fail(p, ERR_INVALID, line, "the expression is nested deeper than %d", TEMPLATE_MAX_NESTING);
            TRY(parse_condition(p, &node->c));
            p->depth--;
        }
        TRY(finish_node(p, node, &value));
        line = parser_token(p)->line;
    }
    *out = value;
    return OK;
}

Status parse_expression(Parser *p, Node **out)
{
    if (++p->depth > TEMPLATE_MAX_NESTING)
        return parser_fail(p, ERR_INVALID, parser_token(p)->line, "the expression is nested deeper than %d", TEMPLATE_MAX_NESTING);
    TRY(parse_condition(p, out));
    p->depth--;
    return OK;
}

Status parse_tuple(Parser *p, TupleOptions options, Node **out)
{
    NodeList items = { 0 };
    bool     is_tuple = false;
    int      line = parser_token(p)->line;
    char     got[96];
    for (;;) {
        Node *item;
        if (items.count) TRY(parser_expect(p, T_COMMA, NULL));
        if (parser_at(p, T_VARIABLE_END) || parser_at(p, T_BLOCK_END) || parser_at(p, T_RPAREN)) break;
        if (options.simplified) {
            TRY(parse_primary(p, options.with_namespace, &item));
        } else if (options.no_condexpr) {
            TRY(parse_or(p, &item));
        } else {
            TRY(parse_expression(p, &item));
        }
        node_list_add(p, &items, item);
        if (!parser_at(p, T_COMMA)) break;
        is_tuple = true;
    }
    if (!is_tuple && items.count) {
        *out = items.items[0];
        return OK;
    }
    if (!is_tuple && !options.parentheses)
        return parser_fail(p, ERR_INVALID, line, "expected an expression, got %s",
                           token_describe(parser_token(p), got, sizeof got));
    Node *node = parser_node(p, N_TUPLE, line);
    node->items = nodes_of(items);
    return finish_node(p, node, out);
}

static Status mark_target(Parser *p, Node *node, bool with_namespace)
{
    if (node->kind == N_NAME) {
        if (p->in_for && str_equal(p->tmpl->names.names[node->name], "loop"))
            return parser_fail(p, ERR_INVALID, node->line, "'loop' can't be assigned to inside of a for");
        node->store = true;
        return OK;
    }
    if (node->kind == N_TUPLE) {
        for (uint32_t i = 0; i < node->items.count; i++) TRY(mark_target(p, node->items.items[i], with_namespace));
        return OK;
    }
    if (node->kind == N_NSREF && with_namespace) return OK;
    return parser_fail(p, ERR_INVALID, node->line, "can't assign to this: a name or names were expected");
}

Status parse_target(Parser *p, bool with_namespace, Node **out)
{
    TRY(parse_tuple(p, (TupleOptions){ .simplified = true, .with_namespace = with_namespace }, out));
    return mark_target(p, *out, with_namespace);
}
