/* Parses statements: the text between tags, and {% %} blocks. */
#include "text/template/ast.h"

#include "base/hash.h"
#include "text/template/builtin.h"

#include <string.h>

static void parse_block(Parser *p, const char *const *ends, Nodes *out);

static bool at_any(Parser *p, const char *const *names)
{
    for (; names && *names; names++)
        if (parser_at_name(p, *names)) return true;
    return false;
}

/* Parses "%}", the statements of a body, and the "{%" of its end tag; the next token is then the end tag's name. */
static void parse_body(Parser *p, const char *const *ends, Nodes *out)
{
    parser_skip(p, T_COLON);
    parser_expect(p, T_BLOCK_END);
    int line = parser_token(p)->line;
    parse_block(p, ends, out);
    if (parser_at(p, T_EOF))
        parser_fail(p, ERR_INVALID, parser_token(p)->line, "unexpected end of template: the block of line %d needs '%s'", line, ends[0]);
}

/* As parse_body with a single end, whose name is skipped. */
static void parse_body_to(Parser *p, const char *end, Nodes *out)
{
    parse_body(p, (const char *const[]){end, NULL}, out);
    p->pos++;
}

/* Parses the else of a for or an if, if there is one, up to the end. */
static void parse_else(Parser *p, const char *end, Nodes *out)
{
    if (parser_skip_name(p, "else"))
        parse_body_to(p, end, out);
    else
        p->pos++;
}

/* ---- scopes ---- */

static Scope *scope_new(Parser *p)
{
    return arena_new(&p->tmpl->arena, Scope);
}

/* Makes `scope` the current scope, in which names are noted. */
static void scope_enter(Parser *p, Scope *scope)
{
    scope->outer = p->scope;
    p->scope = scope;
}

static void scope_leave(Parser *p)
{
    p->scope = p->scope->outer;
}

static void note_target(Parser *p, const Node *target, bool is_parameter)
{
    if (target->kind != N_TUPLE) parser_note(p, target->name, is_parameter, target->kind == N_NAME);
    for (uint32_t i = 0; i < target->items.count; i++) note_target(p, target->items.items[i], is_parameter);
}

/* Parses a body that has its own scope. */
static Node *parse_scoped_body(Parser *p, Node *node, const char *end)
{
    if (!node->scope) node->scope = scope_new(p);
    scope_enter(p, node->scope);
    parse_body_to(p, end, &node->body);
    scope_leave(p);
    return node;
}

/* ---- statements ---- */

static Node *parse_for(Parser *p, Node *node)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    bool                     in_for = p->in_for;
    p->in_for = true;
    node->kind = N_FOR;
    node->a = parse_target(p, false);
    if (!parser_skip_name(p, "in")) parser_fail(p, ERR_INVALID, node->line, "expected 'in' in a for loop");
    node->b = parse_tuple(p, (TupleOptions){.no_condexpr = true});
    node->scope = scope_new(p);
    node->test_scope = scope_new(p);
    node->else_scope = scope_new(p);
    scope_enter(p, node->test_scope);
    note_target(p, node->a, true);
    if (parser_skip_name(p, "if")) node->c = parse_expression(p);
    node->recursive = parser_skip_name(p, "recursive");
    scope_leave(p);
    scope_enter(p, node->scope);
    parser_note(p, p->tmpl->specials[SPECIAL_LOOP], true, true);
    note_target(p, node->a, true);
    p->loops++;
    parse_body(p, ends, &node->body);
    p->loops--;
    scope_leave(p);
    scope_enter(p, node->else_scope);
    parse_else(p, "endfor", &node->orelse);
    scope_leave(p);
    p->in_for = in_for;
    return node;
}

/* Parses an if; each elif is an N_IF in the previous one's `b`. */
static Node *parse_if(Parser *p, Node *node)
{
    static const char *const ends[] = {"endif", "elif", "else", NULL};
    node->kind = N_IF;
    p->soft++;
    for (Node *branch = node;; branch = branch->b) {
        branch->a = parse_tuple(p, (TupleOptions){.no_condexpr = true});
        if (branch == node) p->scope->branches++;
        parse_body(p, ends, &branch->body);
        int line = parser_token(p)->line;
        if (parser_skip_name(p, "elif")) {
            branch->b = parser_node(p, N_IF, line);
            continue;
        }
        parse_else(p, "endif", &branch->orelse);
        p->scope->branches--;
        p->soft--;
        return node;
    }
}

static Node *parse_set(Parser *p, Node *node)
{
    node->kind = N_SET;
    node->a = parse_target(p, true);
    if (parser_skip(p, T_ASSIGN)) {
        node->b = parse_tuple(p, (TupleOptions){0});
    } else {
        node->kind = N_SETBLOCK;
        node->scope = scope_new(p);
        scope_enter(p, node->scope);
        node->b = parse_filter_chain(p, NULL, false);
        parse_body_to(p, "endset", &node->body);
        scope_leave(p);
    }
    note_target(p, node->a, false);
    return node;
}

/* Parses a name for a macro or parameter, which can't be a constant. */
static Token *parse_plain_name(Parser *p)
{
    static const char *const constants[] = {"true", "false", "none", "True", "False", "None", NULL};
    if (at_any(p, constants)) parser_fail(p, ERR_INVALID, parser_token(p)->line, "can't assign to a constant");
    return parser_expect(p, T_NAME);
}

/* Parses (a, b=1): parameters into items; the defaults of the last ones into values. */
static void parse_signature(Parser *p, Node *node)
{
    scope_enter(p, node->scope);
    parser_expect(p, T_LPAREN);
    while (!parser_at(p, T_RPAREN)) {
        if (node->items.count) parser_expect(p, T_COMMA);
        Token *name = parse_plain_name(p);
        Node  *param = parser_node(p, N_NAME, name->line);
        param->name = parser_intern(p, name);
        for (uint32_t i = 0; i < node->items.count; i++)
            if (node->items.items[i]->name == param->name)
                parser_fail(p, ERR_INVALID, name->line, "a macro has two parameters of one name");
        nodes_add(p, &node->items, param);
        parser_note(p, param->name, true, true);
        if (parser_skip(p, T_ASSIGN))
            nodes_add(p, &node->values, parse_expression(p));
        else if (node->values.count)
            parser_fail(p, ERR_INVALID, name->line, "a parameter without default follows one with a default");
    }
    p->pos++;
    scope_leave(p);
}

/* A special name that the body mentions becomes a parameter, unless the macro already has a parameter of that name. */
static void bind_special(Parser *p, Node *node, Special special)
{
    for (uint32_t i = 0; i < node->items.count; i++) {
        if (node->items.items[i]->name != p->tmpl->specials[special]) continue;
        if (special == SPECIAL_CALLER && node->uses[special] && i + node->values.count < node->items.count)
            parser_fail(p, ERR_INVALID, node->line, "the parameter 'caller' needs a default");
        node->uses[special] = false;
    }
    if (node->uses[special]) parser_note(p, p->tmpl->specials[special], true, true);
}

/* Parses the body of a macro, call block or generation; break and continue can't refer to loops outside it. */
static Node *parse_function_body(Parser *p, Node *node, const char *end)
{
    int   loops = p->loops;
    Node *outer = p->function;
    scope_enter(p, node->scope);
    p->loops = 0;
    p->function = node;
    parse_body_to(p, end, &node->body);
    p->loops = loops;
    p->function = outer;
    for (int i = 0; outer && i < NUM_SPECIAL; i++) outer->uses[i] |= node->uses[i];
    for (int i = 0; i < SPECIAL_LOOP; i++) bind_special(p, node, (Special)i);
    scope_leave(p);
    return node;
}

static Node *parse_macro(Parser *p, Node *node)
{
    node->kind = N_MACRO;
    node->name = parser_intern(p, parse_plain_name(p));
    parser_note(p, node->name, false, true);
    node->scope = scope_new(p);
    parse_signature(p, node);
    return parse_function_body(p, node, "endmacro");
}

static Node *parse_call_block(Parser *p, Node *node)
{
    node->kind = N_CALLBLOCK;
    node->scope = scope_new(p);
    if (parser_at(p, T_LPAREN)) parse_signature(p, node);
    node->a = parse_expression(p);
    if (node->a->kind != N_CALL) parser_fail(p, ERR_INVALID, node->line, "expected a call in a call block");
    return parse_function_body(p, node, "endcall");
}

static Node *parse_generation(Parser *p, Node *node)
{
    node->kind = N_GENERATION;
    node->scope = scope_new(p);
    return parse_function_body(p, node, "endgeneration");
}

static Node *parse_filter_block(Parser *p, Node *node)
{
    node->kind = N_FILTERBLOCK;
    node->b = parse_filter_chain(p, NULL, true);
    return parse_scoped_body(p, node, "endfilter");
}

static Node *parse_with(Parser *p, Node *node)
{
    bool in_for = p->in_for;
    node->kind = N_WITH;
    while (!parser_at(p, T_BLOCK_END)) {
        if (node->items.count) parser_expect(p, T_COMMA);
        p->in_for = false; /* the names of with may include loop, even inside a for */
        nodes_add(p, &node->items, parse_target(p, false));
        p->in_for = in_for;
        parser_expect(p, T_ASSIGN);
        nodes_add(p, &node->values, parse_expression(p));
    }
    node->scope = scope_new(p);
    scope_enter(p, node->scope);
    for (uint32_t i = 0; i < node->items.count; i++) note_target(p, node->items.items[i], true);
    scope_leave(p);
    return parse_scoped_body(p, node, "endwith");
}

static Node *parse_loop_control(Parser *p, Node *node)
{
    bool is_break = str_equal(value_str(p->tokens[p->pos - 1].value), "break");
    if (!p->loops) parser_fail(p, ERR_INVALID, node->line, "'%s' outside of a loop", is_break ? "break" : "continue");
    node->kind = is_break ? N_BREAK : N_CONTINUE;
    return node;
}

/* Each function parses the rest of a tag into `node`; the tag's name is already skipped. */
static const struct {
    const char *name;
    Node *(*parse)(Parser *p, Node *node);
} statements[] = {
    {"for", parse_for},
    {"if", parse_if},
    {"set", parse_set},
    {"macro", parse_macro},
    {"call", parse_call_block},
    {"filter", parse_filter_block},
    {"with", parse_with},
    {"generation", parse_generation},
    {"break", parse_loop_control},
    {"continue", parse_loop_control},
};

static Node *parse_statement(Parser *p, const char *const *ends)
{
    Token *token = parser_token(p);
    if (token->kind != T_NAME) parser_fail(p, ERR_INVALID, token->line, "a tag's name was expected after '{%%'");
    for (size_t i = 0; i < sizeof statements / sizeof statements[0]; i++) {
        if (!parser_skip_name(p, statements[i].name)) continue;
        return statements[i].parse(p, parser_node(p, N_DATA, token->line));
    }
    if (has_name("autoescape block debug do extends from import include print trans", value_str(token->value)))
        parser_fail(p, ERR_UNSUPPORTED, token->line, "the tag %s is not supported", token_describe(token).text);
    parser_fail(p, ERR_INVALID, token->line, "unknown tag %s%s%s%s", token_describe(token).text,
                ends ? "; the block it stands in needs '" : "", ends ? ends[0] : "", ends ? "'" : "");
}

/* Parses statements up to the end of the template or up to an end tag; in that case the next token is the end tag's name. */
static void parse_block(Parser *p, const char *const *ends, Nodes *out)
{
    parser_deeper(p);
    while (!parser_at(p, T_EOF)) {
        Token *token = parser_token(p);
        Node  *node = parser_node(p, token->kind == T_DATA ? N_DATA : N_PRINT, token->line);
        p->pos++;
        if (token->kind == T_DATA) {
            node->value = token->value;
        } else if (token->kind == T_VARIABLE_BEGIN) {
            nodes_add(p, &node->items, parse_tuple(p, (TupleOptions){0}));
            parser_expect(p, T_VARIABLE_END);
        } else {
            if (at_any(p, ends)) break;
            node = parse_statement(p, ends);
            parser_expect(p, T_BLOCK_END);
        }
        parser_check_unknown(p);
        nodes_add(p, out, node);
    }
    p->depth--;
}

static uint32_t bucket_of(Str name)
{
    return (uint32_t)(hash_bytes(name.data, name.len, 0) % NAME_BUCKETS);
}

uint32_t template_find_name(const Template *tmpl, Str name)
{
    uint32_t i = tmpl->names.buckets[bucket_of(name)];
    while (i && !str_same(tmpl->names.names[i - 1], name)) i = tmpl->names.next[i - 1];
    return i ? i - 1 : UINT32_MAX;
}

uint32_t template_intern(Template *tmpl, Str name)
{
    NameTable *table = &tmpl->names;
    uint32_t   found = template_find_name(tmpl, name), *bucket = &table->buckets[bucket_of(name)];
    if (found != UINT32_MAX) return found;
    table->names = arena_room(&tmpl->arena, table->names, table->count + 1, &table->names_capacity, sizeof *table->names);
    table->next = arena_room(&tmpl->arena, table->next, table->count + 1, &table->next_capacity, sizeof *table->next);
    table->names[table->count] = (Str){arena_strndup(&tmpl->arena, name.data, name.len), name.len};
    table->next[table->count] = *bucket;
    return (*bucket = ++table->count) - 1;
}

void template_parse_tokens(Parser *p)
{
    static const char *const specials[NUM_SPECIAL] = {"caller", "kwargs", "varargs", "loop"};
    for (int i = 0; i < NUM_SPECIAL; i++) p->tmpl->specials[i] = template_intern(p->tmpl, str_of(specials[i]));
    p->scope = &p->tmpl->scope;
    parse_block(p, NULL, &p->tmpl->body);
}
