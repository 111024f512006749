/* Statements: the text between tags, and {% %} blocks. */
#include "text/template/ast.h"

#include <stdio.h>
#include <string.h>

static Status parse_block(Parser *p, const char *const *ends, Nodes *out);

static Nodes nodes_of(NodeList list)
{
    return (Nodes){ list.items, list.count };
}

static bool at_any(Parser *p, const char *const *names)
{
    for (; names && *names; names++)
        if (parser_at_name(p, *names)) return true;
    return false;
}

/* "%}", the statements, and the "{%" of the end tag; the parser then stands at the end's name. */
static Status parse_body(Parser *p, const char *const *ends, Nodes *out)
{
    parser_skip(p, T_COLON);
    TRY(parser_expect(p, T_BLOCK_END, NULL));
    int line = parser_token(p)->line;
    TRY(parse_block(p, ends, out));
    if (parser_at(p, T_EOF))
        return parser_fail(p, ERR_INVALID, parser_token(p)->line,
                           "unexpected end of template: the block of line %d needs '%s'", line, ends[0]);
    return OK;
}

/* As parse_body, with one end, which is skipped. */
static Status parse_body_to(Parser *p, const char *end, Nodes *out)
{
    const char *ends[] = { end, NULL };
    TRY(parse_body(p, ends, out));
    p->pos++;
    return OK;
}

static Status parse_for(Parser *p, Node **out)
{
    static const char *const ends[] = { "endfor", "else", NULL };
    Node *node = parser_node(p, N_FOR, parser_token(p)->line);
    bool  in_for = p->in_for;
    p->pos++;
    p->in_for = true;
    TRY(parse_target(p, false, &node->a));
    if (!parser_skip_name(p, "in")) return parser_fail(p, ERR_INVALID, node->line, "expected 'in' in a for loop");
    TRY(parse_tuple(p, (TupleOptions){ .no_condexpr = true }, &node->b));
    if (parser_skip_name(p, "if")) TRY(parse_expression(p, &node->c));
    node->recursive = parser_skip_name(p, "recursive");
    p->loops++;
    TRY(parse_body(p, ends, &node->body));
    p->loops--;
    if (parser_skip_name(p, "else")) {
        TRY(parse_body_to(p, "endfor", &node->orelse));
    } else {
        p->pos++;
    }
    p->in_for = in_for;
    *out = node;
    return OK;
}

/* elif is an if in the else. */
static Status parse_if(Parser *p, Node **out)
{
    static const char *const ends[] = { "endif", "elif", "else", NULL };
    Node *first = NULL, *last = NULL;
    for (;;) {
        Node *node = parser_node(p, N_IF, parser_token(p)->line);
        p->pos++; /* if or elif */
        TRY(parse_tuple(p, (TupleOptions){ .no_condexpr = true }, &node->a));
        TRY(parse_body(p, ends, &node->body));
        if (last) last->b = node;
        if (!first) first = node;
        last = node;
        if (!parser_at_name(p, "elif")) break;
    }
    if (parser_skip_name(p, "else")) {
        TRY(parse_body_to(p, "endif", &last->orelse));
    } else {
        p->pos++;
    }
    *out = first;
    return OK;
}

static Status parse_set(Parser *p, Node **out)
{
    Node *node = parser_node(p, N_SET, parser_token(p)->line);
    p->pos++;
    *out = node;
    TRY(parse_target(p, true, &node->a));
    if (parser_skip(p, T_ASSIGN)) return parse_tuple(p, (TupleOptions){ 0 }, &node->b);
    node->kind = N_SETBLOCK;
    TRY(parse_filter_chain(p, NULL, false, &node->b));
    return parse_body_to(p, "endset", &node->body);
}

/* What a macro or a parameter may be called. */
static Status parse_plain_name(Parser *p, Token *out)
{
    static const char *const constants[] = { "true", "false", "none", "True", "False", "None", NULL };
    if (at_any(p, constants)) return parser_fail(p, ERR_INVALID, parser_token(p)->line, "can't assign to a constant");
    return parser_expect(p, T_NAME, out);
}

/* (a, b=1): names into items, defaults of the last ones into values. */
static Status parse_signature(Parser *p, Node *node)
{
    NodeList names = { 0 }, defaults = { 0 };
    TRY(parser_expect(p, T_LPAREN, NULL));
    while (!parser_at(p, T_RPAREN)) {
        Token name;
        Node *value;
        if (names.count) TRY(parser_expect(p, T_COMMA, NULL));
        TRY(parse_plain_name(p, &name));
        Node *param = parser_node(p, N_NAME, name.line);
        param->name = template_intern(p->tmpl, value_str(name.value));
        param->store = true;
        for (uint32_t i = 0; i < names.count; i++)
            if (names.items[i]->name == param->name)
                return parser_fail(p, ERR_INVALID, name.line, "a macro has two parameters of one name");
        node_list_add(p, &names, param);
        if (parser_skip(p, T_ASSIGN)) {
            TRY(parse_expression(p, &value));
            node_list_add(p, &defaults, value);
        } else if (defaults.count) {
            return parser_fail(p, ERR_INVALID, name.line, "a parameter without default follows one with a default");
        }
    }
    node->items = nodes_of(names);
    node->values = nodes_of(defaults);
    return parser_expect(p, T_RPAREN, NULL);
}

/* The body of a macro or call block: loops outside of it don't count inside. */
static Status parse_macro_body(Parser *p, Node *node, const char *end)
{
    int loops = p->loops;
    p->loops = 0;
    TRY(parse_body_to(p, end, &node->body));
    p->loops = loops;
    return OK;
}

static Status parse_macro(Parser *p, Node **out)
{
    Node *node = parser_node(p, N_MACRO, parser_token(p)->line);
    Token name;
    p->pos++;
    TRY(parse_plain_name(p, &name));
    node->name = template_intern(p->tmpl, value_str(name.value));
    TRY(parse_signature(p, node));
    *out = node;
    return parse_macro_body(p, node, "endmacro");
}

static Status parse_call_block(Parser *p, Node **out)
{
    Node *node = parser_node(p, N_CALLBLOCK, parser_token(p)->line);
    p->pos++;
    if (parser_at(p, T_LPAREN)) TRY(parse_signature(p, node));
    TRY(parse_expression(p, &node->a));
    if (node->a->kind != N_CALL) return parser_fail(p, ERR_INVALID, node->line, "expected a call in a call block");
    *out = node;
    return parse_macro_body(p, node, "endcall");
}

static Status parse_filter_block(Parser *p, Node **out)
{
    Node *node = parser_node(p, N_FILTERBLOCK, parser_token(p)->line);
    p->pos++;
    *out = node;
    TRY(parse_filter_chain(p, NULL, true, &node->a));
    return parse_body_to(p, "endfilter", &node->body);
}

static Status parse_with(Parser *p, Node **out)
{
    Node    *node = parser_node(p, N_WITH, parser_token(p)->line);
    NodeList targets = { 0 }, values = { 0 };
    bool     in_for = p->in_for;
    p->pos++;
    while (!parser_at(p, T_BLOCK_END)) {
        Node *target, *value;
        if (targets.count) TRY(parser_expect(p, T_COMMA, NULL));
        p->in_for = false; /* with's own names may be anything */
        TRY(parse_target(p, false, &target));
        p->in_for = in_for;
        TRY(parser_expect(p, T_ASSIGN, NULL));
        TRY(parse_expression(p, &value));
        node_list_add(p, &targets, target);
        node_list_add(p, &values, value);
    }
    node->items = nodes_of(targets);
    node->values = nodes_of(values);
    *out = node;
    return parse_body_to(p, "endwith", &node->body);
}

static Status parse_generation(Parser *p, Node **out)
{
    Node *node = parser_node(p, N_GENERATION, parser_token(p)->line);
    int   loops = p->loops;
    p->pos++;
    p->loops = 0;
    *out = node;
    TRY(parse_body_to(p, "endgeneration", &node->body));
    p->loops = loops;
    return OK;
}

static Status parse_print(Parser *p, Node **out)
{
    Node    *node = parser_node(p, N_PRINT, parser_token(p)->line);
    NodeList items = { 0 };
    p->pos++;
    while (!parser_at(p, T_BLOCK_END)) {
        Node *item;
        if (items.count) TRY(parser_expect(p, T_COMMA, NULL));
        TRY(parse_expression(p, &item));
        node_list_add(p, &items, item);
    }
    node->items = nodes_of(items);
    *out = node;
    return OK;
}

/* Escaping stays off whatever the expression says, if it says false; true would change what is printed. */
static Status parse_autoescape(Parser *p, Node **out)
{
    Node *node = parser_node(p, N_SCOPE, parser_token(p)->line);
    Node *flag;
    p->pos++;
    TRY(parse_expression(p, &flag));
    if (flag->kind != N_CONST || flag->value.type != V_BOOL || flag->value.boolean)
        return parser_fail(p, ERR_UNSUPPORTED, node->line, "autoescape other than false is not supported");
    *out = node;
    return parse_body_to(p, "endautoescape", &node->body);
}

static Status parse_loop_control(Parser *p, Node **out)
{
    bool is_break = parser_at_name(p, "break");
    *out = parser_node(p, is_break ? N_BREAK : N_CONTINUE, parser_token(p)->line);
    p->pos++;
    if (!p->loops) return parser_fail(p, ERR_INVALID, (*out)->line, "'%s' outside of a loop", is_break ? "break" : "continue");
    return OK;
}

static const struct {
    const char *name;
    Status (*parse)(Parser *p, Node **out);
} statements[] = {
    { "for", parse_for }, { "if", parse_if }, { "set", parse_set }, { "macro", parse_macro },
    { "call", parse_call_block }, { "filter", parse_filter_block }, { "with", parse_with },
    { "generation", parse_generation }, { "print", parse_print }, { "autoescape", parse_autoescape },
    { "break", parse_loop_control }, { "continue", parse_loop_control },
};

static Status parse_statement(Parser *p, const char *const *ends, Node **out)
{
    static const char *const unsupported[] = { "block", "extends", "include", "import", "from", "trans", "do", "debug" };
    Token *token = parser_token(p);
    char   got[96];
    if (token->kind != T_NAME) return parser_fail(p, ERR_INVALID, token->line, "a tag's name was expected after '{%%'");
    for (size_t i = 0; i < sizeof statements / sizeof statements[0]; i++)
        if (parser_at_name(p, statements[i].name)) return statements[i].parse(p, out);
    for (size_t i = 0; i < sizeof unsupported / sizeof unsupported[0]; i++)
        if (parser_at_name(p, unsupported[i]))
            return parser_fail(p, ERR_UNSUPPORTED, token->line, "the tag '%s' is not supported", unsupported[i]);
    return parser_fail(p, ERR_INVALID, token->line, "unknown tag %s%s%s%s", token_describe(token, got, sizeof got),
                       ends ? "; the block it stands in needs '" : "", ends ? ends[0] : "", ends ? "'" : "");
}

/* Statements up to one of the ends (then the parser stands at its name) or to the end of the template. */
static Status parse_block(Parser *p, const char *const *ends, Nodes *out)
{
    NodeList list = { 0 };
    if (++p->depth > TEMPLATE_MAX_NESTING)
        return parser_fail(p, ERR_INVALID, parser_token(p)->line, "blocks are nested deeper than %d", TEMPLATE_MAX_NESTING);
    while (!parser_at(p, T_EOF)) {
        Token *token = parser_token(p);
        Node  *node;
        p->pos++;
        if (token->kind == T_DATA) {
            node = parser_node(p, N_DATA, token->line);
            node->value = token->value;
        } else if (token->kind == T_VARIABLE_BEGIN) {
            NodeList one = { 0 };
            Node    *value;
            TRY(parse_tuple(p, (TupleOptions){ 0 }, &value));
            TRY(parser_expect(p, T_VARIABLE_END, NULL));
            node_list_add(p, &one, value);
            node = parser_node(p, N_PRINT, token->line);
            node->items = nodes_of(one);
        } else {
            if (at_any(p, ends)) break;
            TRY(parse_statement(p, ends, &node));
            TRY(parser_expect(p, T_BLOCK_END, NULL));
        }
        node_list_add(p, &list, node);
    }
    p->depth--;
    *out = nodes_of(list);
    return OK;
}

static uint32_t name_hash(Str name)
{
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < name.len; i++) hash = (hash ^ (unsigned char)name.data[i]) * 16777619u;
    return hash;
}

static void rehash(Template *tmpl, uint32_t num_buckets)
{
    NameTable *table = &tmpl->names;
    table->buckets = arena_array(&tmpl->arena, uint32_t, num_buckets);
    table->num_buckets = num_buckets;
    for (uint32_t i = 0; i < table->count; i++) {
        uint32_t at = name_hash(table->names[i]) & (num_buckets - 1);
        while (table->buckets[at]) at = (at + 1) & (num_buckets - 1);
        table->buckets[at] = i + 1;
    }
}

uint32_t template_intern(Template *tmpl, Str name)
{
    NameTable *table = &tmpl->names;
    if (table->count * 2 >= table->num_buckets) rehash(tmpl, table->num_buckets ? table->num_buckets * 2 : 512);
    uint32_t at = name_hash(name) & (table->num_buckets - 1);
    for (; table->buckets[at]; at = (at + 1) & (table->num_buckets - 1))
        if (str_same(table->names[table->buckets[at] - 1], name)) return table->buckets[at] - 1;
    if (table->count == table->capacity) {
        uint32_t capacity = table->capacity ? table->capacity * 2 : 128;
        Str     *names = arena_array(&tmpl->arena, Str, capacity);
        if (table->count) memcpy(names, table->names, table->count * sizeof *names);
        table->names = names;
        table->capacity = capacity;
    }
    table->names[table->count] = (Str){ arena_strndup(&tmpl->arena, name.data, name.len), name.len };
    table->buckets[at] = table->count + 1;
    return table->count++;
}

Status template_parse_tokens(Template *tmpl, Token *tokens)
{
    Parser p = { .tmpl = tmpl, .tokens = tokens };
    return parse_block(&p, NULL, &tmpl->body);
}
