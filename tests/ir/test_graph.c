/* Graphs: building, editing, what graph_verify refuses, and the text form in both directions. */
#include "fake_ops.h"

static Arena arena;

static Graph *new_graph(void)
{
    return graph_create(&arena, "test", fake_ops, NUM_FAKE_OPS);
}

static Value *outside(Graph *graph, ValueKind kind, const char *name, int64_t len)
{
    TensorType type = type_make(DT_F32, 1, len);
    return graph_add_value(graph, kind, name, &type);
}

static Node *apply(Graph *graph, const OpDef *op, const char *name, Value *a, Value *b)
{
    Node  *node = NULL;
    Value *in[] = {a, b};
    EXPECT_OK(graph_add_node(graph, op, NULL, name, in, op->num_in < 2 ? op->num_in : 2, ~0u, &node));
    return node;
}

static void done(void)
{
    arena_deinit(&arena);
}

/* ---- types ---- */

static void types(void)
{
    char       buf[64];
    TensorType type = type_make(DT_BF16, 3, (int64_t)2, (int64_t)3, (int64_t)5), none = {0};
    EXPECT_INT(type_numel(&type), 30);
    EXPECT_INT(type_bytes(&type), 60);
    EXPECT_INT(type_rows(&type), 6);
    EXPECT_INT(type_cols(&type), 5);
    EXPECT_STR(type_text(&type, buf), "bf16[2,3,5]");
    EXPECT_INT(type_numel(&none), 0);
    EXPECT_INT(type_rows(&none), 0);
    EXPECT_INT(type_cols(&none), 0);
    TensorType other = type;
    EXPECT(type_equal(&type, &other));
    other.dtype = DT_F32;
    EXPECT(!type_equal(&type, &other) && type_same_dims(&type, &other));
    other.dim[1] = 4;
    EXPECT(!type_same_dims(&type, &other));
    other.dim[1] = 0;
    EXPECT_FAILS(type_check(&other), ERR_INVALID, "a dim would be 0");
    other.dim[1] = TYPE_MAX_NUMEL;
    EXPECT_FAILS(type_check(&other), ERR_INVALID, "elements; at most");
    TensorType small = type_make(DT_E2M1, 2, (int64_t)3, (int64_t)6);
    EXPECT_OK(type_check(&small));
    EXPECT_INT(type_bytes(&small), 9);
    small = type_make(DT_NF4, 2, (int64_t)6, (int64_t)3);
    EXPECT_FAILS(type_check(&small), ERR_INVALID, "rows of 3 elements of nf4, which are stored in blocks of 2");
    Part part;
    for (int i = 0; i < PART_COUNT; i++) EXPECT(part_parse(part_name((Part)i), &part) && part == (Part)i);
    EXPECT(!part_parse("nothing", &part));
}

/* ---- building and editing ---- */

static void names_are_unique_and_found(void)
{
    Graph *graph = new_graph();
    EXPECT(!graph_find(graph, "x"));
    for (int i = 0; i < 2000; i++) outside(graph, VALUE_INPUT, "x", 4);
    EXPECT_STR(graph->values[0]->name, "x");
    EXPECT_STR(graph->values[1999]->name, "x~2000");
    EXPECT(graph_find(graph, "x~1234") == graph->values[1233]);
    char name[2000];
    memset(name, 'n', sizeof name);
    name[sizeof name - 1] = 0;
    outside(graph, VALUE_INPUT, name, 4);
    EXPECT(outside(graph, VALUE_INPUT, name, 4)->name[1999] == '~');
    EXPECT_OK(graph_verify(graph));
    done();
}

static void a_value_can_be_renamed(void)
{
    Graph *graph = new_graph();
    Value *a = outside(graph, VALUE_INPUT, "a", 4), *b = outside(graph, VALUE_INPUT, "b", 4);
    graph_rename(graph, a, "c");
    EXPECT(!graph_find(graph, "a") && graph_find(graph, "c") == a);
    graph_rename(graph, b, "c");
    EXPECT_STR(b->name, "c~2");
    graph_rename(graph, a, "a");
    EXPECT(graph_find(graph, "a") == a && !graph_find(graph, "c"));
    for (int i = 0; i < 2000; i++) outside(graph, VALUE_INPUT, "x", 4); /* so many that the table of names grows */
    EXPECT(graph_find(graph, "a") == a && graph_find(graph, "c~2") == b && !graph_find(graph, "b"));
    EXPECT_OK(graph_verify(graph));
    done();
}

static void missing_inputs_and_bad_types_are_named(void)
{
    Graph *graph = new_graph();
    Value *x = outside(graph, VALUE_INPUT, "x", 4), *y = outside(graph, VALUE_INPUT, "y", 5);
    Value *in[] = {x, y}, *half[] = {x};
    graph->source = "model.py:7";
    EXPECT_FAILS(graph_add_node(graph, &op_add, NULL, "z", in, 2, ~0u, NULL), ERR_INVALID,
                 "model.py:7: z = add(x: f32[4], y: f32[5]): a and b differ");
    EXPECT_FAILS(graph_add_node(graph, &op_add, NULL, "z", half, 1, ~0u, NULL), ERR_INVALID,
                 "z = add(x: f32[4], _): input 1 of add is missing; it is a + b");
    SourceAttrs empty = {.len = 0};
    EXPECT_FAILS(graph_add_node(graph, &op_source, &empty, "z", NULL, 0, ~0u, NULL), ERR_INVALID, "a dim would be 0");
    EXPECT_INT(graph->num_nodes, 0);
    EXPECT_OK(graph_verify(graph));
    done();
}

static void nodes_are_put_moved_and_removed(void)
{
    Graph *graph = new_graph();
    Value *x = outside(graph, VALUE_INPUT, "x", 4);
    Node  *a = apply(graph, &op_add, "a", x, x), *b = apply(graph, &op_add, "b", a->out[0], x);
    graph->cursor = b;
    Node *between = apply(graph, &op_add, "between", x, a->out[0]);
    EXPECT(a->next == between && between->next == b && b->prev == between);
    graph->cursor = between;
    graph_add_output(graph, "y", b->out[0]);
    EXPECT(graph_output(graph, "y") == b->out[0] && !graph_output(graph, "z"));
    EXPECT_INT(x->num_uses, 4);
    EXPECT_INT(a->out[0]->num_uses, 2);
    EXPECT_INT(b->out[0]->num_uses, 1);
    graph_replace_uses(graph, a->out[0], x, between->next);
    EXPECT(b->in[0] == x && between->in[1] == a->out[0]);
    graph_replace_uses(graph, b->out[0], between->out[0], NULL);
    EXPECT(graph_output(graph, "y") == between->out[0]);
    graph_remove_node(graph, between);
    EXPECT(graph->cursor == b && a->next == b);
    graph_replace_uses(graph, between->out[0], b->out[0], NULL);
    graph_move_before(graph, a, NULL);
    graph_move_before(graph, a, a);
    EXPECT(graph->first == b && graph->last == a);
    EXPECT_OK(graph_verify(graph));
    done();
}

/* How often `node` occurs in the value's list of readers; -1: the list doesn't have num_uses entries. */
static int times_listed(const Value *value, const Node *node)
{
    int listed = 0, count = 0;
    for (const Use *use = value->first_use; use; use = use->next, count++) listed += use->node == node;
    return count == value->num_uses ? listed : -1;
}

static void every_value_knows_its_readers(void)
{
    Graph *graph = new_graph();
    Value *x = outside(graph, VALUE_INPUT, "x", 4), *y = outside(graph, VALUE_INPUT, "y", 4);
    Node  *a = apply(graph, &op_add, "a", x, x), *b = apply(graph, &op_add, "b", a->out[0], x);
    EXPECT_INT(times_listed(x, a), 2);
    EXPECT_INT(times_listed(x, b), 1);
    node_set_input(a, 0, y);
    EXPECT(a->in[0] == y && a->in[1] == x);
    EXPECT_INT(times_listed(x, a), 1);
    EXPECT_INT(times_listed(y, a), 1);
    graph_replace_uses(graph, x, x, NULL);
    EXPECT_INT(x->num_uses, 2);
    graph_add_output(graph, "one", x);
    graph_add_output(graph, "two", x);
    EXPECT_INT(times_listed(x, NULL), 2);
    graph_replace_uses(graph, x, y, b);
    EXPECT_INT(times_listed(x, a), 1);
    EXPECT_INT(x->num_uses, 1);
    EXPECT_INT(times_listed(y, NULL), 2);
    EXPECT(graph_output(graph, "one") == y && graph_output(graph, "two") == y);
    EXPECT_OK(graph_verify(graph));
    graph_clear_outputs(graph);
    EXPECT_INT(graph->num_outputs, 0);
    EXPECT_INT(times_listed(y, NULL), 0);
    node_set_input(b, 1, NULL);
    node_set_input(b, 1, x);
    graph_remove_node(graph, b);
    EXPECT(!b->in[0] && !b->in[1] && !a->out[0]->num_uses);
    EXPECT_OK(graph_verify(graph));
    done();
}

/* Nodes are inserted at one place over and over, and moved: node order is answered as by walking the list. */
static void order_is_known_without_a_walk(void)
{
    enum { COUNT = 600 };
    Graph *graph = new_graph();
    Value *x = outside(graph, VALUE_INPUT, "x", 4);
    Node  *nodes[COUNT], *again = NULL;
    for (int i = 0; i < COUNT; i++) {
        graph->cursor = i < 100 ? NULL : i < 300 ? nodes[50] : i < 500 ? nodes[i - 1] : graph->first;
        nodes[i] = apply(graph, &op_add, "node", x, x);
    }
    for (int i = 0; i < COUNT; i += 3) graph_move_before(graph, nodes[i], i % 2 ? graph->first : nodes[(i * 7 + 1) % COUNT]);
    for (const Node *node = graph->first; node->next; node = node->next) {
        EXPECT(node_precedes(node, node->next) && !node_precedes(node->next, node) && !node_precedes(node, node));
    }
    graph->cursor = NULL;
    for (int i = 0; i < 100000; i++) { /* inserts at the same place until no number is free there */
        again = nodes[50]->prev;
        graph_move_before(graph, again, NULL);
        graph_move_before(graph, again, nodes[50]);
    }
    EXPECT(node_precedes(again, nodes[50]) && node_precedes(again->prev, again));
    EXPECT_OK(graph_verify(graph));
    done();
}

static void roots_of_all_values_are_found_at_once(void)
{
    Graph *graph = new_graph();
    Value *packed = outside(graph, VALUE_PARAM, "packed", 12), *view = outside(graph, VALUE_PARAM, "view", 4);
    Value *state = outside(graph, VALUE_GRAD, "state", 4), *acc = NULL;
    value_place_in(view, packed, 8);
    Node *flat = apply(graph, &op_flat, "flat", view, NULL);
    for (int i = 0; i < 5; i++) acc = apply(graph, &op_sum, "sum", flat->out[0], acc)->out[0];
    apply(graph, &op_sum, "lasting", acc, state);
    value_place_in(apply(graph, &op_add, "home", view, view)->out[0], state, 0);
    const Root *roots = graph_roots(graph);
    for (int i = 0; i < graph->num_values; i++) {
        int64_t offset;
        EXPECT(roots[i].value == value_root(graph->values[i], &offset) && roots[i].offset == offset);
    }
    EXPECT(roots[acc->id].value == graph_find(graph, "sum"));
    done();
}

static void members_are_listed_as_they_lie(void)
{
    Graph *graph = new_graph();
    Value *base = outside(graph, VALUE_PARAM, "base", 12), *other = outside(graph, VALUE_PARAM, "other", 12);
    Value *a = outside(graph, VALUE_PARAM, "a", 4), *b = outside(graph, VALUE_PARAM, "b", 4), *c = outside(graph, VALUE_PARAM, "c", 4);
    value_place_in(b, base, 4);
    value_place_in(c, base, 8);
    value_place_in(a, base, 0);
    EXPECT(base->first_member == a && a->next_member == b && b->next_member == c && base->last_member == c && !c->next_member);
    value_place_in(c, other, 0); /* removes base's last member, then two members from its end */
    EXPECT(base->last_member == b && other->first_member == c && other->last_member == c);
    value_place_in(b, other, 4);
    value_place_in(a, other, 8);
    EXPECT(!base->first_member && !base->last_member && other->first_member == c && c->next_member == b && other->last_member == a);
    EXPECT_OK(graph_verify(graph));
    done();
}

static void memory_is_followed_to_where_it_is(void)
{
    Graph  *graph = new_graph();
    int64_t offset;
    Value  *packed = outside(graph, VALUE_PARAM, "packed", 12), *view = outside(graph, VALUE_PARAM, "view", 4);
    value_place_in(view, packed, 8);
    Node *flat = apply(graph, &op_flat, "flat", view, NULL), *sum = apply(graph, &op_sum, "sum", flat->out[0], NULL);
    EXPECT(value_root(flat->out[0], &offset) == packed && offset == 8);
    EXPECT(value_root(sum->out[0], NULL) == sum->out[0]);
    EXPECT_INT(node_accumulate_mask(sum), 0);
    Value *state = outside(graph, VALUE_GRAD, "state", 4);
    Node  *more = apply(graph, &op_sum, "more", view, state);
    EXPECT(value_root(more->out[0], &offset) == state && offset == 0);
    EXPECT(more->out[0]->storage == state && more->out[0]->kind == VALUE_GRAD);
    EXPECT_INT(node_accumulate_mask(more), 1);
    Node *home = apply(graph, &op_add, "home", view, view);
    value_place_in(home->out[0], state, 0);
    EXPECT(value_root(home->out[0], NULL) == state);
    EXPECT_OK(graph_verify(graph));
    done();
}

static bool lives(const Value *value, Sharing sharing, const Value *storage, int64_t offset)
{
    return value->sharing == sharing && value->storage == storage && value->offset == offset;
}

static void storage_follows_the_inputs(void)
{
    Graph *graph = new_graph();
    Value *x = outside(graph, VALUE_INPUT, "x", 4), *state = outside(graph, VALUE_STATE, "state", 4);
    Value *grad = outside(graph, VALUE_GRAD, "grad", 4);
    Value *sum = apply(graph, &op_sum, "sum", x, NULL)->out[0], *flat = apply(graph, &op_flat, "flat", sum, NULL)->out[0];
    EXPECT(lives(sum, STORAGE_OWN, NULL, 0) && sum->kind == VALUE_ACTIVATION);
    EXPECT(lives(flat, STORAGE_VIEW, sum, 0) && flat->kind == VALUE_ACTIVATION);
    node_set_input(sum->producer, 1, state);
    EXPECT(lives(sum, STORAGE_UPDATE, state, 0) && sum->kind == VALUE_STATE);
    EXPECT(value_root(flat, NULL) == state);
    EXPECT_OK(graph_verify(graph));
    node_set_input(sum->producer, 1, grad);
    EXPECT(lives(sum, STORAGE_UPDATE, grad, 0) && sum->kind == VALUE_GRAD);
    node_set_input(sum->producer, 1, NULL);
    EXPECT(lives(sum, STORAGE_OWN, NULL, 0) && sum->kind == VALUE_ACTIVATION);
    node_set_input(flat->producer, 0, x);
    EXPECT(lives(flat, STORAGE_VIEW, x, 0));
    EXPECT_OK(graph_verify(graph));
    value_place_in(sum, grad, 0);
    node_set_input(sum->producer, 0, flat);
    EXPECT(lives(sum, STORAGE_HOME, grad, 0) && sum->kind == VALUE_GRAD);
    node_drop_output(sum->producer, 0);
    EXPECT(lives(sum, STORAGE_OWN, NULL, 0) && sum->kind == VALUE_ACTIVATION && !sum->producer);
    graph_remove_node(graph, flat->producer);
    EXPECT(lives(flat, STORAGE_OWN, NULL, 0) && !flat->producer);
    done();
}

static void homes_may_be_parts(void)
{
    Graph *graph = new_graph();
    Value *x = outside(graph, VALUE_INPUT, "x", 4), *packed = outside(graph, VALUE_PARAM, "packed", 12);
    Value *member = outside(graph, VALUE_PARAM, "member", 8);
    value_place_in(member, packed, 4);
    Value  *first = apply(graph, &op_add, "first", x, x)->out[0], *second = apply(graph, &op_add, "second", x, x)->out[0];
    int64_t offset;
    value_place_in(first, packed, 0);
    value_place_in(second, member, 4);
    EXPECT(lives(second, STORAGE_HOME, member, 4) && second->kind == VALUE_PARAM);
    EXPECT(value_root(second, &offset) == packed && offset == 8);
    EXPECT(graph_roots(graph)[second->id].value == packed && graph_roots(graph)[second->id].offset == 8);
    EXPECT_OK(graph_verify(graph));
    for (offset = -1; offset < 12; offset += 6) {
        value_place_in(second, member, offset);
        EXPECT_FAILS(graph_verify(graph), ERR_INTERNAL, "output leaves its home, or starts within a block of it: member: second: f32[4]");
    }
    done();
}

/* ---- what graph_verify refuses ---- */

/* x -> a = x + x -> b = a + x, and `state`, overwritten by `new`. */
typedef struct Sample {
    Graph *graph;
    Value *x, *state;
    Node  *a, *b, *newer;
} Sample;

static Sample sample(void)
{
    Sample s = {.graph = new_graph()};
    s.x = outside(s.graph, VALUE_INPUT, "x", 4);
    s.state = outside(s.graph, VALUE_STATE, "state", 4);
    s.a = apply(s.graph, &op_add, "a", s.x, s.x);
    s.b = apply(s.graph, &op_add, "b", s.a->out[0], s.x);
    s.newer = apply(s.graph, &op_sum, "newer", s.b->out[0], s.state);
    EXPECT_OK(graph_verify(s.graph));
    return s;
}

static void reads_of_old_versions_are_refused(void)
{
    Sample s = sample();
    apply(s.graph, &op_add, "late", s.state, s.x);
    EXPECT_FAILS(graph_verify(s.graph), ERR_INTERNAL, "read of memory that a later version took over: state: late: f32[4] = add(state, x)");
    s = sample();
    apply(s.graph, &op_add, "fine", s.newer->out[0], s.x);
    EXPECT_OK(graph_verify(s.graph));
    s = sample(); /* a read of the old version, by a view or of a viewed value, after the overwrite */
    Value *view = apply(s.graph, &op_flat, "view", s.x, NULL)->out[0];
    apply(s.graph, &op_sum, "over", s.a->out[0], view);
    apply(s.graph, &op_add, "late", s.x, s.a->out[0]);
    EXPECT_FAILS(graph_verify(s.graph), ERR_INTERNAL, "took over: x: late");
    s = sample();
    view = apply(s.graph, &op_flat, "view", s.x, NULL)->out[0];
    apply(s.graph, &op_sum, "over", s.a->out[0], s.x);
    apply(s.graph, &op_add, "late", view, s.a->out[0]);
    EXPECT_FAILS(graph_verify(s.graph), ERR_INTERNAL, "took over: view: late");
    s = sample(); /* the same for a value that is placed in x's memory */
    value_place_in(s.a->out[0], s.x, 0);
    EXPECT_FAILS(graph_verify(s.graph), ERR_INTERNAL, "took over: x: b: f32[4] = add(a, x)");
    s = sample(); /* an overwritten base overwrites its views too */
    Value *part = outside(s.graph, VALUE_STATE, "part", 2);
    value_place_in(part, s.state, 0);
    apply(s.graph, &op_flat, "late", part, NULL);
    EXPECT_FAILS(graph_verify(s.graph), ERR_INTERNAL, "took over: part");
    done();
}

static void what_does_not_hold_together_is_refused(void)
{
    Sample s = sample();
    graph_move_before(s.graph, s.a, NULL);
    EXPECT_FAILS(graph_verify(s.graph), ERR_INTERNAL, "read before it is produced: a: b: f32[4] = add(a, x)");
    s = sample();
    node_drop_output(s.newer, 0);
    EXPECT_FAILS(graph_verify(s.graph), ERR_INTERNAL, "none of its outputs is wanted: _ = sum(b, state)");
    s = sample();
    s.b->out[0]->type.dim[0] = 5;
    EXPECT_FAILS(graph_verify(s.graph), ERR_INTERNAL, "type differs from what the op infers: b: b: f32[5]");
    s = sample();
    s.x->type.dim[0] = 5;
    EXPECT_FAILS(graph_verify(s.graph), ERR_INTERNAL, "type differs from what the op infers: a");
    s = sample();
    node_set_input(s.b, 1, outside(s.graph, VALUE_INPUT, "y", 5));
    EXPECT_FAILS(graph_verify(s.graph), ERR_INTERNAL, "a and b differ: b: f32[4] = add(a, y)");
    s = sample();
    node_set_input(s.b, 1, NULL);
    EXPECT_FAILS(graph_verify(s.graph), ERR_INTERNAL, "input 1 of add is missing");
    s = sample();
    node_set_input(s.b, 1, sample().x);
    EXPECT_FAILS(graph_verify(s.graph), ERR_INTERNAL, "foreign value x");
    s = sample();
    s.b->out[0] = s.a->out[0];
    EXPECT_FAILS(graph_verify(s.graph), ERR_INTERNAL, "output not its own: a");
    s = sample();
    s.a->out[0]->kind = VALUE_INPUT; /* the value claims to be an input, but a node produces it */
    s.a->out[0]->producer = NULL;
    EXPECT_FAILS(graph_verify(s.graph), ERR_INTERNAL, "output not its own: a");
    s = sample();
    apply(s.graph, &op_sum, "more", s.b->out[0], outside(s.graph, VALUE_GRAD, "g", 5));
    EXPECT_FAILS(graph_verify(s.graph), ERR_INTERNAL, "alias of another size: g");
    s = sample();
    value_place_in(s.b->out[0], s.a->out[0], 0);
    EXPECT_FAILS(graph_verify(s.graph), ERR_INTERNAL, "a home is memory from outside, unlike a");
    s = sample();
    graph_add_output(s.graph, "gone", s.b->out[0]);
    graph_remove_node(s.graph, s.newer);
    graph_remove_node(s.graph, s.b);
    EXPECT_FAILS(graph_verify(s.graph), ERR_INTERNAL, "output gone is never produced");
    s = sample();
    s.graph->num_nodes++;
    EXPECT_FAILS(graph_verify(s.graph), ERR_INTERNAL, "3 nodes listed, 4 counted");
    s = sample();
    s.b->prev = NULL;
    EXPECT_FAILS(graph_verify(s.graph), ERR_INTERNAL, "node list broken");
    s = sample();
    s.b->order = s.a->order;
    EXPECT_FAILS(graph_verify(s.graph), ERR_INTERNAL, "node list broken");
    done();
}

static void storage_that_does_not_hold_is_refused(void)
{
    Sample s = sample(); /* recorded though the op doesn't share; not recorded; recorded for another value */
    s.b->out[0]->sharing = STORAGE_UPDATE;
    s.b->out[0]->storage = s.a->out[0];
    EXPECT_FAILS(graph_verify(s.graph), ERR_INTERNAL, "storage differs from what the op says: b: b: f32[4] = add(a, x)");
    s = sample();
    s.newer->out[0]->sharing = STORAGE_OWN;
    s.newer->out[0]->storage = NULL;
    EXPECT_FAILS(graph_verify(s.graph), ERR_INTERNAL, "storage differs from what the op says: newer: newer: f32[4] = sum(b, state)");
    s = sample();
    s.newer->out[0]->storage = outside(s.graph, VALUE_STATE, "other", 4);
    EXPECT_FAILS(graph_verify(s.graph), ERR_INTERNAL, "storage differs from what the op says: newer");
    s = sample();
    s.newer->out[0]->offset = 1;
    EXPECT_FAILS(graph_verify(s.graph), ERR_INTERNAL, "storage differs from what the op says: newer");
    s = sample(); /* placed in another value's memory, although its op updates `state` */
    value_place_in(s.newer->out[0], outside(s.graph, VALUE_STATE, "other", 4), 0);
    EXPECT_FAILS(graph_verify(s.graph), ERR_INTERNAL, "storage differs from what the op says: newer");
    s = sample();
    s.x->storage = s.state;
    EXPECT_FAILS(graph_verify(s.graph), ERR_INTERNAL, "graph: value x has memory of its own and storage");
    s = sample();
    s.x->sharing = STORAGE_MEMBER;
    EXPECT_FAILS(graph_verify(s.graph), ERR_INTERNAL, "graph: value x has neither memory of its own nor storage");
    s = sample();
    s.state->sharing = STORAGE_HOME;
    s.state->storage = outside(s.graph, VALUE_STATE, "other", 4);
    EXPECT_FAILS(graph_verify(s.graph), ERR_INTERNAL, "graph: value state from outside has the storage of an output");
    s = sample();
    value_place_in(s.b->out[0], sample().state, 0);
    EXPECT_FAILS(graph_verify(s.graph), ERR_INTERNAL, "graph: storage of b is the foreign value state");
    s = sample();
    s.newer->out[0]->kind = VALUE_GRAD;
    EXPECT_FAILS(graph_verify(s.graph), ERR_INTERNAL, "graph: value newer is of another kind than its storage state");
    s = sample(); /* circles */
    Value *v = apply(s.graph, &op_flat, "v", s.x, NULL)->out[0], *w = apply(s.graph, &op_flat, "w", v, NULL)->out[0];
    v->storage = w;
    EXPECT_FAILS(graph_verify(s.graph), ERR_INTERNAL, "storage differs from what the op says: v: v: f32[4] = flat(x)");
    s = sample();
    value_place_in(s.x, s.x, 0);
    EXPECT_FAILS(graph_verify(s.graph), ERR_INTERNAL, "graph: view x of x: both must be from outside, and the base no view");
    done();
}

static void lists_that_do_not_hold_are_refused(void)
{
    Sample s = sample(); /* an input changed without updating the lists; a reader that isn't counted; a reader that isn't listed */
    ((Value **)s.b->in)[1] = s.a->out[0];
    EXPECT_FAILS(graph_verify(s.graph), ERR_INTERNAL, "list of uses of x broken");
    s = sample();
    s.x->num_uses--;
    EXPECT_FAILS(graph_verify(s.graph), ERR_INTERNAL, "list of uses of x broken");
    s = sample();
    s.a->out[0]->first_use = NULL;
    s.a->out[0]->num_uses = 0;
    EXPECT_FAILS(graph_verify(s.graph), ERR_INTERNAL, "5 uses listed, 6 counted");
    s = sample();
    s.x->first_member = s.x->last_member = s.state;
    EXPECT_FAILS(graph_verify(s.graph), ERR_INTERNAL, "list of members of x broken");
    s = sample();
    Value *part = outside(s.graph, VALUE_INPUT, "part", 2);
    part->sharing = STORAGE_MEMBER;
    part->storage = s.x;
    EXPECT_FAILS(graph_verify(s.graph), ERR_INTERNAL, "0 members listed, 1 counted");
    s = sample();
    s.x->name = "a";
    EXPECT_FAILS(graph_verify(s.graph), ERR_INTERNAL, "two values named a");
    s = sample();
    s.x->id = 1;
    EXPECT_FAILS(graph_verify(s.graph), ERR_INTERNAL, "value x has id 1 at index 0");
    s = sample();
    s.x->type.ndim = 0;
    EXPECT_FAILS(graph_verify(s.graph), ERR_INTERNAL, "value x has no proper type");
    done();
}

static void views_stay_in_their_base(void)
{
    static const struct {
        int64_t     offset, len;
        DType       dtype;
        const char *message;
    } cases[] = {
        {0, 12, DT_F32, NULL},     {8, 4, DT_F32, NULL},      {9, 4, DT_F32, "leaves"},
        {-1, 4, DT_F32, "leaves"}, {0, 13, DT_F32, "leaves"}, {INT64_MAX, 4, DT_F32, "leaves"},
        {0, 4, DT_BF16, "leaves"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Graph     *graph = new_graph();
        Value     *base = outside(graph, VALUE_PARAM, "base", 12);
        TensorType type = type_make(cases[i].dtype, 1, cases[i].len);
        Value     *view = graph_add_value(graph, VALUE_PARAM, "view", &type);
        value_place_in(view, base, cases[i].offset);
        if (cases[i].message)
            EXPECT_FAILS(graph_verify(graph), ERR_INTERNAL, cases[i].message);
        else
            EXPECT_OK(graph_verify(graph));
    }
    for (int64_t offset = 2; offset < 4; offset++) { /* elements of half a byte */
        Graph     *graph = new_graph();
        TensorType whole = type_make(DT_E2M1, 1, (int64_t)8), part = type_make(DT_E2M1, 1, (int64_t)4);
        Value     *base = graph_add_value(graph, VALUE_PARAM, "base", &whole), *view = graph_add_value(graph, VALUE_PARAM, "view", &part);
        value_place_in(view, base, offset);
        if (offset % 2)
            EXPECT_FAILS(graph_verify(graph), ERR_INTERNAL, "starts within a block");
        else
            EXPECT_OK(graph_verify(graph));
    }
    Graph *graph = new_graph();
    Value *a = outside(graph, VALUE_PARAM, "a", 4), *b = outside(graph, VALUE_PARAM, "b", 4);
    value_place_in(a, b, 0);
    value_place_in(b, a, 0);
    EXPECT_FAILS(graph_verify(graph), ERR_INTERNAL, "graph: view a of b: both must be from outside, and the base no view");
    done();
}

static Status no_kernel(const KernelArgs *args)
{
    (void)args;
    return OK;
}

/* A kernel is chosen only for the float dtypes that it is written for; the same holds for index and counter inputs. */
static void kernels_serve_only_their_formats(void)
{
    static const OpDef op = {
        .name = "copy", .num_in = 1, .num_out = 1, .min_in = 1, .infer = same_infer, .cpu = {{DT_SET_FLOAT, no_kernel, "copy"}}};
    static const OpDef *table[] = {&op};
    for (int dtype = 0; dtype < DT_COUNT; dtype++) {
        Graph     *graph = graph_create(&arena, "g", table, 1);
        TensorType type = type_make((DType)dtype, 1, (int64_t)4);
        Value     *in[] = {graph_add_value(graph, VALUE_INPUT, "x", &type)};
        Node      *node;
        EXPECT_OK(graph_add_node(graph, &op, NULL, "y", in, 1, ~0u, &node));
        bool served = dtype == DT_F32 || dtype == DT_BF16 || dtype == DT_I32 || dtype == DT_I64;
        EXPECT_INT(op_cpu_kernel(node) != NULL, served);
    }
    done();
}

/* ---- the text form ---- */

static const char every_feature[] =
    "graph \"every \\\"feature\\\"\"\n"
    "input tokens: i32[2,4]\n"
    "param packed: f32[12] layer=0\n"
    "param a.weight: f32[8] layer=0 base=packed@0 {trained decay linear init=normal:0.25 module=\"m.a\" hf=whole "
    "\"m.a.weight\"}\n"
    "param b.weight: f32[4] layer=0 base=packed@8 {trained linear init=uniform:0.5 hf=slice:4:4:8 \"b\\\\c\"}\n"
    "param c.weight: bf16[4] {adapter init=ones hf=concat \"x\" \"y z\"}\n"
    "param d.weight: f32[2,2] {head init=zeros matrices=1:1 hf=transpose \"d\"}\n"
    "param e.weight: f32[2] {init=zeros}\n"
    "grad g: f32[4]\n"
    "state input: f32[4]\n"
    "cache k: f32[2,1,4,4] layer=1048576\n"
    "const table: f32[3]\n"
    "const segments: i64[2,2] data=[0,-4,9223372036854775807,-9223372036854775808]\n"
    "s: f32[4] = source() {len=4, scale=0.1, flip=true} layer=0 part=norm stream=copy_out source=\"a \\\"b\\\".py:3\"\n"
    "output: f32[4] = source() {len=4, scale=-1e-300, flip=false, list=[1, -0.1, 1e+300]} once\n"
    "x: f32[4], _, x.2: f32[1] = split(s, _, output) layer=3 part=block backward clone\n"
    "v: f32[4] = flat(x)\n"
    "g.1: f32[4] = sum(v, g) after=output after=x\n"
    "h: f32[4] home=input = add(x, v)\n"
    "w: f32[4] space=host = add(x, v)\n"
    "p: f32[2] home=input@2 = source() {len=2, scale=0.5, flip=false}\n"
    "n: f32[4] = sum(h)\n"
    "output loss = h\n"
    "output output = n\n";

static void printing_what_was_parsed_is_the_same_text(void)
{
    Graph *graph;
    StrBuf text = {0};
    EXPECT_OK(graph_parse(&arena, "f", every_feature, strlen(every_feature), fake_ops, NUM_FAKE_OPS, &graph));
    EXPECT_OK(graph_verify(graph));
    graph_print(graph, &text);
    EXPECT_STR(strbuf_cstr(&text), every_feature);
    const Param *a = graph_find(graph, "a.weight")->param, *b = graph_find(graph, "b.weight")->param,
                *c = graph_find(graph, "c.weight")->param;
    EXPECT(a->trained && a->decay && a->is_linear && !a->is_head && !a->is_adapter && a->init == INIT_NORMAL && a->layer == 0);
    EXPECT_STR(a->module, "m.a");
    EXPECT(b->hf.kind == HF_SLICE && b->hf.begin == 4 && b->hf.rows == 4 && b->hf.total_rows == 8 && b->init == INIT_UNIFORM);
    EXPECT_STR(b->hf.names[0], "b\\c");
    EXPECT(c->hf.kind == HF_CONCAT && c->hf.num_names == 2 && c->is_adapter && c->layer == -1);
    EXPECT_INT(graph->num_params, 5);
    EXPECT(graph_find(graph, "b.weight")->storage == graph_find(graph, "packed") && graph_find(graph, "b.weight")->offset == 8);
    EXPECT_INT(((const int64_t *)graph_find(graph, "segments")->const_data)[2], INT64_MAX);
    const Node *source = graph_find(graph, "s")->producer, *split = graph_find(graph, "x")->producer;
    EXPECT(source->stream == 2 && source->part == PART_NORM && source->layer == 0 && ((const SourceAttrs *)source->attrs)->flip);
    EXPECT_STR(source->source, "a \"b\".py:3");
    EXPECT(split->flags == (NODE_BACKWARD | NODE_CLONE) && !split->out[1] && graph_find(graph, "x.2")->layer == 3);
    EXPECT(graph_find(graph, "g.1")->kind == VALUE_GRAD && graph_find(graph, "h")->kind == VALUE_STATE);
    strbuf_deinit(&text);
    done();
}

static void blanks_and_comments_say_nothing(void)
{
    static const char text[] = "# first\n\n   graph g  \n  input   x :  f32[ 4 ]  \n#\nx2: f32[4]=add( x,x )\n\noutput y=x2";
    Graph            *graph;
    StrBuf            out = {0};
    EXPECT_OK(graph_parse(&arena, "f", text, strlen(text), fake_ops, NUM_FAKE_OPS, &graph));
    graph_print(graph, &out);
    EXPECT_STR(strbuf_cstr(&out), "graph \"g\"\ninput x: f32[4]\nx2: f32[4] = add(x, x)\noutput y = x2\n");
    strbuf_deinit(&out);
    done();
}

/* Turns "f:3:5: text" into "f:3: text"; the column must be inside the line or right after it. */
static const char *without_column(const char *message, char out[512])
{
    int         line = 0, column = 0, used = 0;
    const char *rest = message;
    if (sscanf(message, "f:%d:%d: %n", &line, &column, &used) == 2 && used && column > 0 && column < 100) rest += used;
    if (rest != message) snprintf(out, 512, "f:%d: %s", line, rest);
    return rest == message ? message : out;
}

static void syntax_errors_say_where(void)
{
    /* The line is line 3, after `graph g` and `input x: f32[4]`. */
    static const struct {
        const char *line, *message;
    } cases[] = {
        {"input x: f32[4]", "f:3: second value named x"},
        {"input y f32[4]", "f:3: expected NAME: type"},
        {"input y:: f32[4]", "f:3: \"y:\" isn't fit for a name"},
        {"input \"a b\": f32[4]", "f:3: \"a b\" isn't fit for a name"},
        {"input _: f32[4]", "f:3: \"_\" isn't fit for a name"},
        {"input y: f33[4]", "f:3: expected a dtype, found f33"},
        {"input y: [4]", "f:3: expected a dtype, found nothing"},
        {"input y: f32", "f:3: expected [ after the dtype"},
        {"input y: f32[]", "f:3: a tensor has at least one dim"},
        {"input y: f32[1,1,1,1,1]", "f:3: at most 4 dims"},
        {"input y: f32[0]", "f:3: a dim would be 0"},
        {"input y: f32[-4]", "f:3: a dim would be -4"},
        {"input y: f32[4", "f:3: expected an integer, found nothing"},
        {"input y: f32[99999999999999999999]", "f:3: 99999999999999999999 doesn't fit into 64 bits"},
        {"input y: f32[4294967296,4294967296]", "f:3: a tensor of "},
        {"input y: f32[4] colour=red", "f:3: unknown property of value y"},
        {"input y: f32[4] layer=-1", "f:3: layer -1; expected 0 to 1048576"},
        {"input y: f32[4] layer=x", "f:3: expected an integer, found x"},
        {"input y: f32[4] base=x", "f:3: expected base=NAME@offset"},
        {"input y: f32[4] base=z@0", "f:3: view y of unknown z"},
        {"input y: f32[4] base=y@0", "f:3: view y: its base y must be from outside and no view"},
        {"y: f32[4] = add(x, x)\ninput z: f32[2] base=y@0", "f:4: view z: its base y must be from outside"},
        {"input y: i64[1] data=[1]", "f:3: expected data=[numbers] of an i64 or f32 constant"},
        {"const y: bf16[1] data=[1]", "f:3: expected data=[numbers] of an i64 or f32 constant"},
        {"const y: f32[1] data=[one]", "f:3: expected a number, found one"},
        {"const y: f32[1] data=[]", "f:3: expected a number, found nothing"},
        {"const y: i64[2] data=[1]", "f:3: expected an integer"},
        {"const y: i64[2] data=[1,2,3]", "f:3: expected ] after 2 numbers"},
        {"const y: i64[99999999] data=[1]", "f:3: expected 99999999 numbers"},
        {"param y: f32[4] {", "f:3: expected }"},
        {"param y: f32[4] {shiny}", "f:3: unknown property of a parameter"},
        {"param y: f32[4] {init=}", "f:3: expected a kind after init="},
        {"param y: f32[4] {init=odd}", "f:3: unknown init odd"},
        {"param y: f32[4] {init=normal}", "f:3: init normal needs a number"},
        {"param y: f32[4] {init=zeros:1}", "f:3: init zeros takes no number"},
        {"param y: f32[4] {init=normal:x}", "f:3: expected a number, found x"},
        {"param y: f32[4,2] {matrices=}", "f:3: expected the rows of each of 1 to 4096 matrices, as 64:32:32"},
        {"param y: f32[4,2] {matrices=2:two}", "f:3: expected the rows of each matrix, as 64:32:32"},
        {"param y: f32[4,2] {matrices=2:}", "f:3: y: its matrix 2 has 0 rows"},
        {"param y: f32[4,2] {matrices=2:1}", "f:3: y: its matrices have 3 rows, which don't divide its 4"},
        {"param y: f32[4] {matrices=2:2}", "f:3: y holds 2 matrices, but has 1 dims; expected 2"},
        {"param y: f32[4] {hf=}", "f:3: expected a kind after hf="},
        {"param y: f32[4] {hf=concat \"a\" \"b\" \"c\" \"d\" hf=concat \"e\"}", "f:3: second hf= of a parameter"},
        {"param y: f32[4] {hf=odd \"a\"}", "f:3: unknown hf kind odd"},
        {"param y: f32[4] {hf=slice:1:2 \"a\"}", "f:3: expected slice:begin:rows:total"},
        {"param y: f32[4] {init=ones} layer=0", "f:3: unexpected text after }"},
        {"param y: f32[4] nothing {init=ones}", "f:3: unknown property of value y"},
        {"output y = z", "f:3: output y: unknown value z"},
        {"output y z", "f:3: expected output NAME = VALUE"},
        {"output \"a,b\" = x", "f:3: \"a,b\" isn't fit for a name"},
        {"output y = x\noutput y = x", "f:4: second value named y"},
        {"output y = x z", "f:3: unexpected text at the end of the line"},
        {"y: f32[4]", "f:3: expected NAME: type, ... = op(...)"},
        {"y = add(x, x)", "f:3: expected : after y"},
        {"( = add(x, x)", "f:3: expected an output's name"},
        {"x: f32[4] = add(x, x)", "f:3: second value named x"},
        {"y: f32[4], y: f32[4] = split(x, _, x)", "f:3: second value named y"},
        {"y: f32[4] home=z = add(x, x)", "f:3: unknown home z"},
        {"y: f32[4] home=x@z = add(x, x)", "f:3: expected an integer, found z"},
        {"y: f32[4] home=x@1 = add(x, x)", "f:3: graph: output leaves its home, or starts within a block of it: x"},
        {"y: f32[4] home=x = sum(x, x)", "f:3: graph: storage differs from what the op says: y"},
        {"y: f32[4] home=x = flat(x)", "f:3: graph: storage differs from what the op says: y"},
        {"y: f32[4] = multiply(x, x)", "f:3: unknown op multiply"},
        {"y: f32[4] = add x", "f:3: expected ( after add"},
        {"a: f32[4], b: f32[4] = add(x, x)", "f:3: add has 1 outputs"},
        {"_, _, _, _, _, _, _, _, _ = add(x, x)", "f:3: expected NAME: type"},
        {"y: f32[4] = add(x, z)", "f:3: unknown value z"},
        {"y: f32[4] = add(x, x, x)", "f:3: add takes at most 2 inputs"},
        {"y: f32[4] = add(x, x", "f:3: add takes at most 2 inputs"},
        {"y: f32[4] = add(x, _)", "f:3: y = add(x: f32[4], _): input 1 of add is missing"},
        {"y: f32[4] = add(x, x) {eps=1}", "f:3: add has no attribute eps"},
        {"y: f32[4] = source() {len}", "f:3: expected attribute=value"},
        {"y: f32[4] = source() {len=}", "f:3: attribute len has no value"},
        {"y: f32[4] = source() {len=4.5}", "f:3: attribute len: expected an integer, found 4.5"},
        {"y: f32[4] = source() {len=99999999999999999999}", "f:3: attribute len: expected an integer"},
        {"y: f32[4] = source() {len=-4}", "f:3: y = source(): a dim would be -4"},
        {"y: f32[4] = source() {scale=big}", "f:3: expected a number, found big"},
        {"y: f32[4] = source() {flip=maybe}", "f:3: attribute flip: expected true or false, found maybe"},
        {"y: f32[4] = source() {flip=true", "f:3: expected attribute=value"},
        {"y: f32[4] = source() {list=3}", "f:3: attribute list: expected [numbers]"},
        {"y: f32[4] = source() {list=[3}", "f:3: attribute list: expected a number"},
        {"y: f32[4] = source() {list=[3, x]}", "f:3: expected a number, found x"},
        {"y: f32[4] = add(x, x) part=odd", "f:3: unknown part odd"},
        {"y: f32[4] = add(x, x) stream=64", "f:3: unknown stream 64; expected compute, copy_in, copy_out or comm"},
        {"y: f32[4] space=disk = add(x, x)", "f:3: unknown space disk; expected device or host"},
        {"y: f32[4] = add(x, x) after=y", "f:3: after=: no earlier node makes y"},
        {"y: f32[4] = add(x, x) shiny", "f:3: unknown property of a node"},
        {"y: f32[4] = add(x, x) source=\"open", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char   text[512];
        Graph *graph;
        snprintf(text, sizeof text, "graph g\ninput x: f32[4]\n%s\n", cases[i].line);
        Status      status = graph_parse(&arena, "f", text, strlen(text), fake_ops, NUM_FAKE_OPS, &graph);
        const char *want = cases[i].message;
        char        plain[512];
        if (want ? status != ERR_INVALID || strncmp(without_column(status_message(), plain), want, strlen(want)) != 0 : status != OK)
            test_fail(__FILE__, __LINE__, "%s\n  gives \"%s\"\n  expected \"%s\"", cases[i].line, status == OK ? "OK" : status_message(),
                      want ? want : "OK");
        /* The text cut off anywhere never crashes the parser. */
        for (size_t len = 0; len < strlen(text); len++)
            if (graph_parse(&arena, "f", text, len, fake_ops, NUM_FAKE_OPS, &graph) == OK) (void)!graph_verify(graph);
        arena_deinit(&arena);
    }
    Graph *graph;
    EXPECT_FAILS(graph_parse(&arena, "f", "", 0, fake_ops, NUM_FAKE_OPS, &graph), ERR_INVALID, "f: no graph in it");
    EXPECT_FAILS(graph_parse(&arena, "f", "\ninput x", 8, fake_ops, NUM_FAKE_OPS, &graph), ERR_INVALID,
                 "f:2:1: expected graph \"NAME\" first");
    EXPECT_FAILS(graph_parse(&arena, "f", "graph g\0x", 9, fake_ops, NUM_FAKE_OPS, &graph), ERR_INVALID, "f:1:8: unexpected text");
    done();
}

static void errors_point_at_what_is_wrong(void)
{
    static const struct {
        const char *line, *message;
    } cases[] = {
        {"input x: f32[4]", "f:3:7: second value named x"},
        {"input y: f33[4]", "f:3:10: expected a dtype"},
        {"input y: f32[0]", "f:3:10: a dim would be 0"},
        {"input y: f32[4] colour=red", "f:3:17: unknown property"},
        {"input y: f32[2] base=z@0", "f:3:22: view y of unknown z"},
        {"input y: f32[2] base=x@3", "f:3:7: graph: view y leaves its base x"},
        {"y: f32[4] = multiply(x, x)", "f:3:13: unknown op multiply"},
        {"y: f32[4] = add(x, z)", "f:3:20: unknown value z"},
        {"y: f32[4] = add(x, _)", "f:3:13: y = add"},
        {"y: f32[4] = source() {len=4, eps=1}", "f:3:30: source has no attribute eps"},
        {"y: f32[5] = add(x, x)", "f:3:13: graph: type differs from what the op infers: y: y: f32[5] = add(x, x)"},
        {"y: f32[4] = add(x, x)\nz: f32[4] home=x = add(y, y)\nlate: f32[4] = add(x, x)", "f:5:16: graph: read of memory that a later"},
        {"y: f32[4] = add(x, x) shiny", "f:3:23: unknown property of a node"},
        {"output y = x z", "f:3:14: unexpected text"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char   text[512];
        Graph *graph;
        snprintf(text, sizeof text, "graph g\ninput x: f32[4]\n%s\n", cases[i].line);
        EXPECT_FAILS(graph_parse(&arena, "f", text, strlen(text), fake_ops, NUM_FAKE_OPS, &graph), ERR_INVALID, cases[i].message);
        arena_deinit(&arena);
    }
}

static void many_pieces_come_back(void)
{
    StrBuf text = {0}, again = {0};
    Graph *graph;
    strbuf_puts(&text, "graph \"g\"\nparam w: f32[4096] {init=ones hf=concat");
    for (int i = 0; i < 4096; i++) strbuf_printf(&text, " \"p%d\"", i);
    strbuf_puts(&text, "}\n");
    EXPECT_OK(graph_parse(&arena, "f", text.data, text.len, fake_ops, NUM_FAKE_OPS, &graph));
    graph_print(graph, &again);
    EXPECT_STR(strbuf_cstr(&again), strbuf_cstr(&text));
    text.len -= 2;
    strbuf_puts(&text, " \"more\"}\n");
    EXPECT_FAILS(graph_parse(&arena, "f", text.data, text.len, fake_ops, NUM_FAKE_OPS, &graph), ERR_INVALID,
                 "f:2:31699: more than 4096 pieces");
    strbuf_deinit(&text);
    strbuf_deinit(&again);
    done();
}

TEST_MAIN(TEST(types), TEST(names_are_unique_and_found), TEST(a_value_can_be_renamed), TEST(missing_inputs_and_bad_types_are_named),
          TEST(nodes_are_put_moved_and_removed), TEST(every_value_knows_its_readers), TEST(order_is_known_without_a_walk),
          TEST(roots_of_all_values_are_found_at_once), TEST(members_are_listed_as_they_lie), TEST(memory_is_followed_to_where_it_is),
          TEST(storage_follows_the_inputs), TEST(homes_may_be_parts), TEST(storage_that_does_not_hold_is_refused),
          TEST(reads_of_old_versions_are_refused), TEST(what_does_not_hold_together_is_refused), TEST(lists_that_do_not_hold_are_refused),
          TEST(views_stay_in_their_base), TEST(kernels_serve_only_their_formats), TEST(printing_what_was_parsed_is_the_same_text),
          TEST(blanks_and_comments_say_nothing), TEST(syntax_errors_say_where), TEST(errors_point_at_what_is_wrong),
          TEST(many_pieces_come_back))
