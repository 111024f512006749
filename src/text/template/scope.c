/* Variables to slots, by Jinja's own rules (its idtracking): a scope (template, loop body, macro, with, set block, filter
 * block) owns the names it stores and those nobody outside has. On entry each is filled: from the render's variables, as
 * a copy of the outer variable of that name, or not at all. An if opens no scope, but what is stored only inside of one
 * starts as the outer value. Slots belong to the function around: the template, a macro, a call block, a recursive loop. */
#include "text/template/ast.h"
#include "text/template/eval.h"

#include <string.h>

typedef struct Function {
    uint32_t depth, num_slots;
} Function;

typedef struct Builder Builder;

typedef struct Entry {
    uint64_t  key; /* builder id and name */
    Builder  *builder;
    ScopeLoad load;
    bool      stored;
    uint32_t  next; /* of the same builder, index + 1 */
} Entry;

struct Builder {
    Builder  *parent;
    Function *function;
    uint32_t  id, first, last, count; /* entries: index + 1 */
};

typedef struct Resolver {
    Template *tmpl;
    Arena     arena; /* of this pass */
    Entry    *entries;
    uint32_t  count, capacity;
    uint32_t *buckets; /* index + 1 */
    uint32_t  num_buckets, num_builders;
    int       branches; /* ifs around, while analyzing */
    int       soft;     /* ifs and inline ifs around, while binding */
    uint32_t  caller, kwargs, varargs, loop; /* names */
} Resolver;

static Status bind_nodes(Resolver *rs, Builder *scope, const Nodes *nodes);

static uint32_t bucket_of(const Resolver *rs, uint64_t key)
{
    uint32_t at = (uint32_t)((key * 0x9E3779B97F4A7C15u) >> 32) & (rs->num_buckets - 1);
    while (rs->buckets[at] && rs->entries[rs->buckets[at] - 1].key != key) at = (at + 1) & (rs->num_buckets - 1);
    return at;
}

static void grow(Resolver *rs)
{
    uint32_t capacity = rs->capacity ? rs->capacity * 2 : 128;
    Entry   *entries = arena_array(&rs->arena, Entry, capacity);
    if (rs->count) memcpy(entries, rs->entries, rs->count * sizeof *entries);
    rs->entries = entries;
    rs->capacity = capacity;
    rs->num_buckets = capacity * 2;
    rs->buckets = arena_array(&rs->arena, uint32_t, rs->num_buckets);
    for (uint32_t i = 0; i < rs->count; i++) rs->buckets[bucket_of(rs, entries[i].key)] = i + 1;
}

static Entry *find_own(Resolver *rs, const Builder *scope, uint32_t name)
{
    if (!rs->count) return NULL;
    uint32_t index = rs->buckets[bucket_of(rs, (uint64_t)scope->id << 32 | name)];
    return index ? &rs->entries[index - 1] : NULL;
}

static Entry *find(Resolver *rs, const Builder *scope, uint32_t name)
{
    for (; scope; scope = scope->parent) {
        Entry *entry = find_own(rs, scope, name);
        if (entry) return entry;
    }
    return NULL;
}

static Entry *define(Resolver *rs, Builder *scope, uint32_t name, LoadKind kind)
{
    if (rs->count == rs->capacity) grow(rs);
    uint32_t at = bucket_of(rs, (uint64_t)scope->id << 32 | name);
    Entry   *entry = &rs->entries[rs->count++];
    *entry = (Entry){ .key = (uint64_t)scope->id << 32 | name, .builder = scope };
    entry->load = (ScopeLoad){ .kind = kind, .slot = scope->function->num_slots++, .name = name };
    rs->buckets[at] = rs->count;
    if (scope->last) rs->entries[scope->last - 1].next = rs->count;
    if (!scope->first) scope->first = rs->count;
    scope->last = rs->count;
    scope->count++;
    return entry;
}

static VarRef ref_from(const Builder *scope, const Entry *entry)
{
    return (VarRef){ .hops = (uint16_t)(scope->function->depth - entry->builder->function->depth), .slot = entry->load.slot };
}

/* The load of a variable that is stored here: the outer one when there is one. */
static void load_outer(Resolver *rs, Builder *scope, Entry *entry, LoadKind otherwise)
{
    Entry *outer = scope->parent ? find(rs, scope->parent, entry->load.name) : NULL;
    entry->load.kind = outer ? LOAD_ALIAS : otherwise;
    if (outer) entry->load.alias = ref_from(scope, outer);
}

static void note_store(Resolver *rs, Builder *scope, uint32_t name)
{
    Entry *entry = find_own(rs, scope, name);
    bool   fresh = !entry;
    if (fresh) entry = define(rs, scope, name, LOAD_UNDEFINED);
    if (!entry->stored && rs->branches) {
        load_outer(rs, scope, entry, LOAD_RESOLVE);
    } else if (fresh) {
        load_outer(rs, scope, entry, LOAD_UNDEFINED);
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
    if (node->kind == N_NAME && (as_parameter || node->store)) {
        if (as_parameter) {
            note_parameter(rs, scope, node->name);
        } else {
            note_store(rs, scope, node->name);
        }
    } else if ((node->kind == N_NAME || node->kind == N_NSREF) && !find(rs, scope, node->name)) {
        define(rs, scope, node->name, LOAD_RESOLVE);
    }
    for (uint32_t i = 0; i < num_children(node); i++) analyze_expr(rs, scope, child_of(node, i), as_parameter);
}

/* What names a statement uses in this scope; not in the scopes it opens. */
static void analyze_nodes(Resolver *rs, Builder *scope, const Nodes *nodes)
{
    for (uint32_t i = 0; i < nodes->count; i++) {
        const Node *node = nodes->items[i];
        switch (node->kind) {
        case N_PRINT:
            for (uint32_t j = 0; j < node->items.count; j++) analyze_expr(rs, scope, node->items.items[j], false);
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
        case N_FOR: analyze_expr(rs, scope, node->b, false); break;
        case N_SET:
            analyze_expr(rs, scope, node->b, false);
            analyze_expr(rs, scope, node->a, false);
            break;
        case N_SETBLOCK:
        case N_CALLBLOCK:
        case N_FILTERBLOCK: analyze_expr(rs, scope, node->a, false); break;
        case N_MACRO: note_store(rs, scope, node->name); break;
        case N_WITH:
            for (uint32_t j = 0; j < node->values.count; j++) analyze_expr(rs, scope, node->values.items[j], false);
            break;
        default: break;
        }
    }
}

/* Jinja's find_undeclared: which names a body reads before anything in it, in the tree's order, is called so. */
enum { NUM_SPECIAL = 4 };
typedef struct Undeclared {
    uint32_t names[NUM_SPECIAL];
    bool     hidden[NUM_SPECIAL], used[NUM_SPECIAL];
} Undeclared;

static void undeclared_in(Undeclared *u, const Nodes *nodes);

static void undeclared_in_expr(Undeclared *u, const Node *node)
{
    if (!node) return;
    for (int i = 0; node->kind == N_NAME && i < NUM_SPECIAL; i++) {
        if (node->name != u->names[i]) continue;
        if (node->store) u->hidden[i] = true;
        else if (!u->hidden[i]) u->used[i] = true;
    }
    for (uint32_t i = 0; i < num_children(node); i++) undeclared_in_expr(u, child_of(node, i));
}

static void undeclared_in_all(Undeclared *u, const Nodes *exprs)
{
    for (uint32_t i = 0; i < exprs->count; i++) undeclared_in_expr(u, exprs->items[i]);
}

static void undeclared_in_statement(Undeclared *u, const Node *node)
{
    bool body_first = node->kind == N_FILTERBLOCK;
    if (body_first) undeclared_in(u, &node->body);
    undeclared_in_expr(u, node->a);
    if (node->kind != N_IF) undeclared_in_expr(u, node->b);
    undeclared_in_all(u, &node->items);
    undeclared_in_all(u, &node->values);
    if (!body_first) undeclared_in(u, &node->body);
    undeclared_in(u, &node->orelse);
    undeclared_in_expr(u, node->c);
}

static void undeclared_in(Undeclared *u, const Nodes *nodes)
{
    for (uint32_t i = 0; i < nodes->count; i++)
        for (const Node *node = nodes->items[i]; node; node = node->kind == N_IF ? node->b : NULL)
            undeclared_in_statement(u, node);
}

static Undeclared find_undeclared(const Resolver *rs, const Nodes *body)
{
    Undeclared u = { .names = { rs->caller, rs->kwargs, rs->varargs, rs->loop } };
    undeclared_in(&u, body);
    return u;
}

static Builder *open_scope(Resolver *rs, Builder *parent, bool is_function)
{
    Builder *scope = arena_new(&rs->arena, Builder);
    scope->parent = parent;
    scope->id = rs->num_builders++;
    scope->function = parent ? parent->function : NULL;
    if (is_function) {
        scope->function = arena_new(&rs->arena, Function);
        scope->function->depth = parent ? parent->function->depth + 1 : 0;
    }
    return scope;
}

/* After everything inside is bound. */
static Scope *close_scope(Resolver *rs, const Builder *scope, bool is_function)
{
    Scope *out = arena_new(&rs->tmpl->arena, Scope);
    out->loads = arena_array(&rs->tmpl->arena, ScopeLoad, scope->count);
    for (uint32_t i = scope->first; i; i = rs->entries[i - 1].next)
        if (rs->entries[i - 1].load.kind != LOAD_PARAMETER) out->loads[out->count++] = rs->entries[i - 1].load;
    if (is_function) out->num_slots = scope->function->num_slots;
    return out;
}

static Status unknown_builtin(Resolver *rs, const Node *node)
{
    bool           is_filter = node->kind == N_FILTER;
    const Builtin *table = is_filter ? template_filters : template_tests;
    uint32_t       count = is_filter ? template_num_filters : template_num_tests;
    const char    *names[128], *name = rs->tmpl->names.names[node->name].data;
    static const char *const missing[] = { "pprint", "random", "urlize", "wordwrap" }; /* Jinja has them */
    CHECK(count <= 128);
    for (size_t i = 0; is_filter && i < sizeof missing / sizeof missing[0]; i++)
        if (strcmp(name, missing[i]) == 0)
            FAIL(ERR_UNSUPPORTED, "%s:%d: the filter '%s' is not supported", rs->tmpl->name, node->line, name);
    for (uint32_t i = 0; i < count; i++) names[i] = table[i].name;
    const char *near = nearest_name(name, names, count);
    FAIL(ERR_UNSUPPORTED, "%s:%d: no %s named '%s'%s%s%s", rs->tmpl->name, node->line, is_filter ? "filter" : "test", name,
         near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
}

static Status bind_expr(Resolver *rs, Builder *scope, Node *node)
{
    if (!node) return OK;
    if (node->kind == N_NAME || node->kind == N_NSREF) {
        Entry *entry = find(rs, scope, node->name);
        CHECK(entry);
        node->var = ref_from(scope, entry);
    }
    if ((node->kind == N_FILTER || node->kind == N_TEST) && node->index == UINT32_MAX && !rs->soft)
        return unknown_builtin(rs, node);
    rs->soft += node->kind == N_CONDEXPR;
    for (uint32_t i = 0; i < num_children(node); i++) TRY(bind_expr(rs, scope, child_of(node, i)));
    rs->soft -= node->kind == N_CONDEXPR;
    return OK;
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
static Status bind_for(Resolver *rs, Builder *outer, Node *node)
{
    Builder *home = node->recursive ? open_scope(rs, outer, true) : outer;
    Builder *body = open_scope(rs, home, false), *test = open_scope(rs, home, false), *other = open_scope(rs, home, false);
    TRY(bind_expr(rs, outer, node->b));
    bool has_loop = node->recursive || find_undeclared(rs, &node->body).used[3];
    node->var = note_parameter(rs, body, has_loop ? rs->loop : template_intern(rs->tmpl, str_of("")));
    if (node->c) {
        node->test_target = copy_target(rs, node->a);
        analyze_expr(rs, test, node->a, true);
        analyze_expr(rs, test, node->c, false);
        TRY(bind_expr(rs, test, node->test_target));
        TRY(bind_expr(rs, test, node->c));
    }
    analyze_expr(rs, body, node->a, true);
    analyze_nodes(rs, body, &node->body);
    analyze_nodes(rs, other, &node->orelse);
    TRY(bind_expr(rs, body, node->a));
    TRY(bind_nodes(rs, other, &node->orelse));
    TRY(bind_nodes(rs, body, &node->body));
    node->test_scope = close_scope(rs, test, false);
    node->else_scope = close_scope(rs, other, false);
    node->scope = close_scope(rs, body, false);
    if (node->recursive) node->scope->num_slots = home->function->num_slots;
    return OK;
}

/* caller, kwargs and varargs are parameters of a macro that reads them. */
static Status bind_specials(Resolver *rs, Builder *scope, Node *node)
{
    Undeclared u = find_undeclared(rs, &node->body);
    node->uses_caller = u.used[0];
    node->uses_kwargs = u.used[1];
    node->uses_varargs = u.used[2];
    for (uint32_t i = 0; i < node->items.count; i++) {
        uint32_t name = node->items.items[i]->name;
        if (name == rs->caller && u.used[0] && i + node->values.count < node->items.count)
            FAIL(ERR_INVALID, "%s:%d: the parameter 'caller' needs a default", rs->tmpl->name, node->line);
        if (name == rs->caller) node->uses_caller = false;
        if (name == rs->kwargs) node->uses_kwargs = false;
        if (name == rs->varargs) node->uses_varargs = false;
    }
    if (node->uses_caller) node->caller = note_parameter(rs, scope, rs->caller);
    if (node->uses_kwargs) node->kwargs = note_parameter(rs, scope, rs->kwargs);
    if (node->uses_varargs) node->varargs = note_parameter(rs, scope, rs->varargs);
    return OK;
}

static Status bind_macro(Resolver *rs, Builder *outer, Node *node)
{
    Builder *scope = open_scope(rs, outer, true);
    for (uint32_t i = 0; i < node->items.count; i++) note_parameter(rs, scope, node->items.items[i]->name);
    TRY(bind_specials(rs, scope, node));
    for (uint32_t i = 0; i < node->values.count; i++) analyze_expr(rs, scope, node->values.items[i], false);
    analyze_nodes(rs, scope, &node->body);
    for (uint32_t i = 0; i < node->items.count; i++) TRY(bind_expr(rs, scope, node->items.items[i]));
    for (uint32_t i = 0; i < node->values.count; i++) TRY(bind_expr(rs, scope, node->values.items[i]));
    TRY(bind_nodes(rs, scope, &node->body));
    node->scope = close_scope(rs, scope, true);
    return OK;
}

/* with, set block, filter block, generation, autoescape. */
static Status bind_scope(Resolver *rs, Builder *outer, Node *node)
{
    Builder *scope = open_scope(rs, outer, false);
    if (node->kind == N_GENERATION) TRY(bind_specials(rs, scope, node)); /* a macro that is called without arguments */
    for (uint32_t i = 0; i < node->items.count; i++) analyze_expr(rs, scope, node->items.items[i], true);
    if (node->kind == N_SETBLOCK) analyze_expr(rs, scope, node->b, false);
    analyze_nodes(rs, scope, &node->body);
    for (uint32_t i = 0; i < node->items.count; i++) TRY(bind_expr(rs, scope, node->items.items[i]));
    for (uint32_t i = 0; i < node->values.count; i++) TRY(bind_expr(rs, outer, node->values.items[i]));
    if (node->kind == N_SETBLOCK) TRY(bind_expr(rs, scope, node->b));
    TRY(bind_expr(rs, outer, node->a));
    TRY(bind_nodes(rs, scope, &node->body));
    node->scope = close_scope(rs, scope, false);
    return OK;
}

static Status bind_statement(Resolver *rs, Builder *scope, Node *node)
{
    switch (node->kind) {
    case N_PRINT:
        for (uint32_t i = 0; i < node->items.count; i++) TRY(bind_expr(rs, scope, node->items.items[i]));
        return OK;
    case N_IF:
        rs->soft++;
        for (Node *branch = node; branch; branch = branch->b) {
            TRY(bind_expr(rs, scope, branch->a));
            TRY(bind_nodes(rs, scope, &branch->body));
            TRY(bind_nodes(rs, scope, &branch->orelse));
        }
        rs->soft--;
        return OK;
    case N_SET:
        TRY(bind_expr(rs, scope, node->b));
        return bind_expr(rs, scope, node->a);
    case N_FOR: return bind_for(rs, scope, node);
    case N_MACRO:
        node->var = ref_from(scope, find(rs, scope, node->name));
        return bind_macro(rs, scope, node);
    case N_CALLBLOCK:
        TRY(bind_expr(rs, scope, node->a));
        return bind_macro(rs, scope, node);
    case N_WITH:
    case N_SETBLOCK:
    case N_FILTERBLOCK:
    case N_GENERATION:
    case N_SCOPE: return bind_scope(rs, scope, node);
    default: return OK;
    }
}

static Status bind_nodes(Resolver *rs, Builder *scope, const Nodes *nodes)
{
    for (uint32_t i = 0; i < nodes->count; i++) TRY(bind_statement(rs, scope, nodes->items[i]));
    return OK;
}

Status template_resolve(Template *tmpl)
{
    Resolver rs = { .tmpl = tmpl };
    rs.caller = template_intern(tmpl, str_of("caller"));
    rs.kwargs = template_intern(tmpl, str_of("kwargs"));
    rs.varargs = template_intern(tmpl, str_of("varargs"));
    rs.loop = template_intern(tmpl, str_of("loop"));
    Builder *root = open_scope(&rs, NULL, true);
    analyze_nodes(&rs, root, &tmpl->body);
    Status status = bind_nodes(&rs, root, &tmpl->body);
    if (status == OK) tmpl->root_scope = close_scope(&rs, root, true);
    arena_deinit(&rs.arena);
    return status;
}
