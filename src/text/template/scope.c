/* Variables to slots, by Jinja's own rules (its idtracking): a scope (template, loop body, macro, with, set block, filter
 * block) owns the names it stores and those nobody outside has. On entry each is filled: from the render's variables, as
 * a copy of the outer variable of that name, or not at all. An if opens no scope, but what is stored only inside of one
 * starts as the outer value. Slots belong to the function around: the template, a macro, a call block, a recursive loop. */
#include "text/template/render.h"

#include <string.h>

typedef struct Function {
    uint32_t depth, num_slots;
} Function;

typedef struct Builder Builder;

/* A name of a scope that is open. */
typedef struct Entry Entry;
struct Entry {
    Builder  *builder;
    ScopeLoad load;
    bool      stored;
    Entry    *next, *outer; /* of the same scope; of the same name */
};

struct Builder {
    Builder  *parent;
    Function *function;
    Entry    *first, *last;
    uint32_t  count;
};

/* Names with a meaning of their own. */
typedef enum Special { SPECIAL_CALLER, SPECIAL_KWARGS, SPECIAL_VARARGS, SPECIAL_LOOP, NUM_SPECIAL } Special;

typedef struct Resolver {
    Parser   *parser;
    Template *tmpl;
    Entry   **entries;  /* (names.count) of each name, the newest first */
    int       branches; /* ifs around, while analyzing */
    int       soft;     /* ifs and inline ifs around, while binding */
    uint32_t  specials[NUM_SPECIAL], unnamed;
} Resolver;

static void bind_nodes(Resolver *rs, Builder *scope, const Nodes *nodes);

static Entry *find_own(const Resolver *rs, const Builder *scope, uint32_t name)
{
    Entry *entry = rs->entries[name];
    while (entry && entry->builder != scope) entry = entry->outer;
    return entry;
}

static Entry *find(const Resolver *rs, const Builder *scope, uint32_t name)
{
    for (; scope; scope = scope->parent) {
        Entry *entry = find_own(rs, scope, name);
        if (entry) return entry;
    }
    return NULL;
}

static Entry *define(Resolver *rs, Builder *scope, uint32_t name, LoadKind kind)
{
    Entry *entry = arena_new(&rs->tmpl->arena, Entry);
    *entry = (Entry){.builder = scope, .outer = rs->entries[name]};
    entry->load = (ScopeLoad){.kind = kind, .slot = scope->function->num_slots++, .name = name};
    rs->entries[name] = entry;
    if (scope->last)
        scope->last->next = entry;
    else
        scope->first = entry;
    scope->last = entry;
    scope->count++;
    return entry;
}

static VarRef ref_from(const Builder *scope, const Entry *entry)
{
    return (VarRef){.hops = (uint16_t)(scope->function->depth - entry->builder->function->depth), .slot = entry->load.slot};
}

/* A variable that is stored here starts as the outer one when there is one. */
static void note_store(Resolver *rs, Builder *scope, uint32_t name)
{
    Entry *entry = find_own(rs, scope, name);
    bool   is_fresh = !entry;
    if (is_fresh) entry = define(rs, scope, name, LOAD_UNDEFINED);
    if (is_fresh || (!entry->stored && rs->branches)) {
        Entry *outer = find(rs, scope->parent, name);
        entry->load.kind = outer ? LOAD_ALIAS : rs->branches ? LOAD_RESOLVE : LOAD_UNDEFINED;
        if (outer) entry->load.alias = ref_from(scope, outer);
    }
    entry->stored = true;
}

static VarRef note_parameter(Resolver *rs, Builder *scope, uint32_t name)
{
    Entry *entry = find_own(rs, scope, name);
    if (!entry) entry = define(rs, scope, name, LOAD_PARAMETER);
    entry->load.kind = LOAD_PARAMETER;
    entry->stored = true;
    return ref_from(scope, entry);
}

static uint32_t num_children(const Node *node)
{
    return 3 + node->items.count + node->values.count;
}

static Node *child_of(const Node *node, uint32_t i)
{
    if (i < 3) return i == 0 ? node->a : i == 1 ? node->b : node->c;
    i -= 3;
    return i < node->items.count ? node->items.items[i] : node->values.items[i - node->items.count];
}

/* What names an expression or target uses in this scope. */
static void analyze_expr(Resolver *rs, Builder *scope, const Node *node, bool as_parameter)
{
    if (!node) return;
    if (node->kind == N_NAME && as_parameter) {
        note_parameter(rs, scope, node->name);
    } else if (node->kind == N_NAME && node->store) {
        note_store(rs, scope, node->name);
    } else if ((node->kind == N_NAME || node->kind == N_NSREF) && !find(rs, scope, node->name)) {
        define(rs, scope, node->name, LOAD_RESOLVE);
    }
    for (uint32_t i = 0; i < num_children(node); i++) analyze_expr(rs, scope, child_of(node, i), as_parameter);
}

static void analyze_all(Resolver *rs, Builder *scope, const Nodes *exprs, bool as_parameter)
{
    for (uint32_t i = 0; i < exprs->count; i++) analyze_expr(rs, scope, exprs->items[i], as_parameter);
}

/* What names a statement uses in this scope; not in the scopes it opens. */
static void analyze_nodes(Resolver *rs, Builder *scope, const Nodes *nodes)
{
    for (uint32_t i = 0; i < nodes->count; i++) {
        const Node *node = nodes->items[i];
        switch (node->kind) {
        case N_PRINT:
            analyze_all(rs, scope, &node->items, false);
            break;
        case N_IF:
            analyze_expr(rs, scope, node->a, false);
            rs->branches++;
            for (const Node *branch = node; branch; branch = branch->b) {
                analyze_expr(rs, scope, branch->a, false);
                analyze_nodes(rs, scope, &branch->body);
                analyze_nodes(rs, scope, &branch->orelse);
            }
            rs->branches--;
            break;
        case N_FOR:
            analyze_expr(rs, scope, node->b, false);
            break;
        case N_SET:
            analyze_expr(rs, scope, node->b, false); /* fallthrough */
        case N_SETBLOCK:
        case N_CALLBLOCK:
            analyze_expr(rs, scope, node->a, false);
            break;
        case N_FILTERBLOCK:
            analyze_expr(rs, scope, node->b, false);
            break;
        case N_MACRO:
            note_store(rs, scope, node->name);
            break;
        case N_WITH:
            analyze_all(rs, scope, &node->values, false);
            break;
        default:
            break;
        }
    }
}

/* Jinja's find_undeclared: which special names a body reads before anything in it, in the tree's order, is called so. */
typedef struct Undeclared {
    const uint32_t *names;
    bool            hidden[NUM_SPECIAL], used[NUM_SPECIAL];
} Undeclared;

static void undeclared_in(Undeclared *u, const Nodes *nodes);

static void undeclared_in_expr(Undeclared *u, const Node *node)
{
    if (!node) return;
    for (int i = 0; node->kind == N_NAME && i < NUM_SPECIAL; i++) {
        if (node->name != u->names[i]) continue;
        if (node->store)
            u->hidden[i] = true;
        else if (!u->hidden[i])
            u->used[i] = true;
    }
    for (uint32_t i = 0; i < num_children(node); i++) undeclared_in_expr(u, child_of(node, i));
}

static void undeclared_in_statement(Undeclared *u, const Node *node)
{
    bool body_first = node->kind == N_FILTERBLOCK;
    if (body_first) undeclared_in(u, &node->body);
    undeclared_in_expr(u, node->a);
    if (node->kind != N_IF) undeclared_in_expr(u, node->b);
    for (uint32_t i = 3; i < num_children(node); i++) undeclared_in_expr(u, child_of(node, i));
    if (!body_first) undeclared_in(u, &node->body);
    undeclared_in(u, &node->orelse);
    undeclared_in_expr(u, node->c);
}

static void undeclared_in(Undeclared *u, const Nodes *nodes)
{
    for (uint32_t i = 0; i < nodes->count; i++)
        for (const Node *node = nodes->items[i]; node; node = node->kind == N_IF ? node->b : NULL) undeclared_in_statement(u, node);
}

static Undeclared find_undeclared(const Resolver *rs, const Nodes *body)
{
    Undeclared u = {.names = rs->specials};
    undeclared_in(&u, body);
    return u;
}

static Builder *open_scope(Resolver *rs, Builder *parent, bool is_function)
{
    Builder *scope = arena_new(&rs->tmpl->arena, Builder);
    scope->parent = parent;
    scope->function = is_function ? arena_new(&rs->tmpl->arena, Function) : parent->function;
    if (is_function) scope->function->depth = parent ? parent->function->depth + 1 : 0;
    return scope;
}

/* After everything inside is bound. */
static Scope *close_scope(Resolver *rs, const Builder *scope, bool is_function)
{
    Scope *out = arena_new(&rs->tmpl->arena, Scope);
    out->loads = arena_array(&rs->tmpl->arena, ScopeLoad, scope->count);
    if (is_function) out->num_slots = scope->function->num_slots;
    for (Entry *entry = scope->first; entry; entry = entry->next) {
        Entry **at = &rs->entries[entry->load.name];
        while (*at != entry) at = &(*at)->outer;
        *at = entry->outer;
        if (entry->load.kind != LOAD_PARAMETER) out->loads[out->count++] = entry->load;
    }
    return out;
}

static _Noreturn void unknown_builtin(Resolver *rs, const Node *node)
{
    enum { MOST = 128 };
    static const char *const missing[] = {"pprint", "random", "urlize", "wordwrap"}; /* Jinja has them */
    bool                     is_filter = node->kind == N_FILTER;
    uint32_t                 count = 0;
    const char              *names[MOST], *name = rs->tmpl->names.names[node->name].data;
    for (size_t i = 0; is_filter && i < sizeof missing / sizeof missing[0]; i++)
        if (strcmp(name, missing[i]) == 0) parser_fail(rs->parser, ERR_UNSUPPORTED, node->line, "the filter '%s' is not supported", name);
    for (const Builtin *row = is_filter ? template_filters : template_tests; row->name && count < MOST; row++) names[count++] = row->name;
    const char *near = nearest_name(name, names, count);
    parser_fail(rs->parser, ERR_UNSUPPORTED, node->line, "no %s named '%s'%s%s%s", is_filter ? "filter" : "test", name,
                near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
}

static void bind_expr(Resolver *rs, Builder *scope, Node *node)
{
    if (!node) return;
    if (node->kind == N_NAME || node->kind == N_NSREF) node->var = ref_from(scope, find(rs, scope, node->name));
    if ((node->kind == N_FILTER || node->kind == N_TEST) && !node->builtin && !rs->soft) unknown_builtin(rs, node);
    rs->soft += node->kind == N_CONDEXPR;
    for (uint32_t i = 0; i < num_children(node); i++) bind_expr(rs, scope, child_of(node, i));
    rs->soft -= node->kind == N_CONDEXPR;
}

static void bind_all(Resolver *rs, Builder *scope, const Nodes *exprs)
{
    for (uint32_t i = 0; i < exprs->count; i++) bind_expr(rs, scope, exprs->items[i]);
}

/* Targets of a loop with a filter are assigned twice: in the filter's scope and in the body's. The tree holds one slot a
 * name, so the body's targets are a copy. */
static Node *copy_target(Resolver *rs, const Node *node)
{
    Node *copy = arena_new(&rs->tmpl->arena, Node);
    *copy = *node;
    if (node->items.count) copy->items.items = arena_array(&rs->tmpl->arena, Node *, node->items.count);
    for (uint32_t i = 0; i < node->items.count; i++) copy->items.items[i] = copy_target(rs, node->items.items[i]);
    return copy;
}

/* Body, filter and else are scopes of their own; those of a recursive loop lie in a function of its own. */
static void bind_for(Resolver *rs, Builder *outer, Node *node)
{
    Builder *home = node->recursive ? open_scope(rs, outer, true) : outer;
    Builder *body = open_scope(rs, home, false), *test = open_scope(rs, home, false), *other = open_scope(rs, home, false);
    bind_expr(rs, outer, node->b);
    bool has_loop = node->recursive || find_undeclared(rs, &node->body).used[SPECIAL_LOOP];
    node->var = note_parameter(rs, body, has_loop ? rs->specials[SPECIAL_LOOP] : rs->unnamed);
    if (node->c) {
        node->test_target = copy_target(rs, node->a);
        analyze_expr(rs, test, node->a, true);
        analyze_expr(rs, test, node->c, false);
        bind_expr(rs, test, node->test_target);
        bind_expr(rs, test, node->c);
    }
    analyze_expr(rs, body, node->a, true);
    analyze_nodes(rs, body, &node->body);
    analyze_nodes(rs, other, &node->orelse);
    bind_expr(rs, body, node->a);
    bind_nodes(rs, other, &node->orelse);
    bind_nodes(rs, body, &node->body);
    node->test_scope = close_scope(rs, test, false);
    node->else_scope = close_scope(rs, other, false);
    node->scope = close_scope(rs, body, false);
    if (node->recursive) node->scope->num_slots = home->function->num_slots;
}

/* caller, kwargs and varargs are parameters of a macro that reads them and has none of that name. */
static void bind_specials(Resolver *rs, Builder *scope, Node *node)
{
    Undeclared u = find_undeclared(rs, &node->body);
    bool      *uses[] = {&node->uses_caller, &node->uses_kwargs, &node->uses_varargs};
    VarRef    *vars[] = {&node->caller, &node->kwargs, &node->varargs};
    for (int s = 0; s < SPECIAL_LOOP; s++) {
        *uses[s] = u.used[s];
        for (uint32_t i = 0; i < node->items.count; i++) {
            if (node->items.items[i]->name != rs->specials[s]) continue;
            if (s == SPECIAL_CALLER && u.used[s] && i + node->values.count < node->items.count)
                parser_fail(rs->parser, ERR_INVALID, node->line, "the parameter 'caller' needs a default");
            *uses[s] = false;
        }
        if (*uses[s]) *vars[s] = note_parameter(rs, scope, rs->specials[s]);
    }
}

static void bind_macro(Resolver *rs, Builder *outer, Node *node)
{
    Builder *scope = open_scope(rs, outer, true);
    analyze_all(rs, scope, &node->items, true);
    bind_specials(rs, scope, node);
    analyze_all(rs, scope, &node->values, false);
    analyze_nodes(rs, scope, &node->body);
    bind_all(rs, scope, &node->items);
    bind_all(rs, scope, &node->values);
    bind_nodes(rs, scope, &node->body);
    node->scope = close_scope(rs, scope, true);
}

/* with, set block, filter block, generation, autoescape. */
static void bind_scope(Resolver *rs, Builder *outer, Node *node)
{
    Builder *scope = open_scope(rs, outer, false), *chain_scope = node->kind == N_SETBLOCK ? scope : outer;
    if (node->kind == N_GENERATION) bind_specials(rs, scope, node); /* a macro that is called without arguments */
    analyze_all(rs, scope, &node->items, true);
    if (node->kind == N_SETBLOCK) analyze_expr(rs, scope, node->b, false);
    analyze_nodes(rs, scope, &node->body);
    bind_all(rs, scope, &node->items);
    bind_all(rs, outer, &node->values);
    bind_expr(rs, chain_scope, node->b);
    bind_expr(rs, outer, node->a);
    bind_nodes(rs, scope, &node->body);
    node->scope = close_scope(rs, scope, false);
}

static void bind_statement(Resolver *rs, Builder *scope, Node *node)
{
    switch (node->kind) {
    case N_PRINT:
        bind_all(rs, scope, &node->items);
        break;
    case N_IF:
        rs->soft++;
        for (Node *branch = node; branch; branch = branch->b) {
            bind_expr(rs, scope, branch->a);
            bind_nodes(rs, scope, &branch->body);
            bind_nodes(rs, scope, &branch->orelse);
        }
        rs->soft--;
        break;
    case N_SET:
        bind_expr(rs, scope, node->b);
        bind_expr(rs, scope, node->a);
        break;
    case N_FOR:
        bind_for(rs, scope, node);
        break;
    case N_MACRO:
        node->var = ref_from(scope, find(rs, scope, node->name));
        bind_macro(rs, scope, node);
        break;
    case N_CALLBLOCK:
        bind_expr(rs, scope, node->a);
        bind_macro(rs, scope, node);
        break;
    case N_WITH:
    case N_SETBLOCK:
    case N_FILTERBLOCK:
    case N_GENERATION:
    case N_SCOPE:
        bind_scope(rs, scope, node);
        break;
    default:
        break;
    }
}

static void bind_nodes(Resolver *rs, Builder *scope, const Nodes *nodes)
{
    for (uint32_t i = 0; i < nodes->count; i++) bind_statement(rs, scope, nodes->items[i]);
}

void template_resolve(Parser *p)
{
    static const char *const specials[NUM_SPECIAL] = {"caller", "kwargs", "varargs", "loop"};
    Template                *tmpl = p->tmpl;
    Resolver                 rs = {.parser = p, .tmpl = tmpl, .unnamed = template_intern(tmpl, str_of(""))};
    for (int i = 0; i < NUM_SPECIAL; i++) rs.specials[i] = template_intern(tmpl, str_of(specials[i]));
    rs.entries = arena_array(&tmpl->arena, Entry *, tmpl->names.count);
    Builder *root = open_scope(&rs, NULL, true);
    analyze_nodes(&rs, root, &tmpl->body);
    bind_nodes(&rs, root, &tmpl->body);
    tmpl->root_scope = close_scope(&rs, root, true);
}
