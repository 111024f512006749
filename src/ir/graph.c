/* Building and editing graphs: arrays of values, a linked list of nodes, a hash table of names, all in one arena. */
#include "base/hash.h"
#include "ir/graph_internal.h"

#include <string.h>

typedef struct NameSlot {
    Value   *value; /* NULL: free */
    uint64_t hash;  /* of the value's name */
} NameSlot;

typedef struct NameTable {
    NameSlot *slots;
    uint32_t  capacity, used; /* capacity is a power of two */
} NameTable;

/* ---- names ---- */

static uint64_t name_hash(const char *name)
{
    return hash_bytes(name, strlen(name), 0);
}

/* The slot that has the name, or the free slot where it belongs. */
static NameSlot *name_slot(const NameTable *table, const char *name, uint64_t hash)
{
    uint32_t i = (uint32_t)hash & (table->capacity - 1);
    for (;; i = (i + 1) & (table->capacity - 1)) {
        NameSlot *slot = &table->slots[i];
        if (!slot->value || (slot->hash == hash && strcmp(slot->value->name, name) == 0)) return slot;
    }
}

static void name_insert(Graph *graph, Value *value)
{
    NameTable *table = graph->names;
    if (2 * (table->used + 1) > table->capacity) {
        NameTable bigger = {.capacity = table->capacity ? 2 * table->capacity : 256, .used = table->used};
        bigger.slots = arena_array(graph->arena, NameSlot, bigger.capacity);
        for (uint32_t i = 0; i < table->capacity; i++) {
            const NameSlot *slot = &table->slots[i];
            if (slot->value && slot->hash == name_hash(slot->value->name)) *name_slot(&bigger, slot->value->name, slot->hash) = *slot;
        }
        *table = bigger;
    }
    uint64_t hash = name_hash(value->name);
    *name_slot(table, value->name, hash) = (NameSlot){value, hash};
    table->used++;
}

Value *graph_find(const Graph *graph, const char *name)
{
    return graph->names->capacity ? name_slot(graph->names, name, name_hash(name))->value : NULL;
}

bool name_is_plain(const char *name, size_t max_bytes)
{
    size_t n = 0;
    for (; name[n]; n++) {
        unsigned char c = (unsigned char)name[n];
        if (n == max_bytes || c <= ' ' || c == 0x7f || strchr(",()[]{}=\"@:#\\", c)) return false;
    }
    return n > 0 && strcmp(name, "_") != 0;
}

static const char *unique_name(Graph *graph, const char *name)
{
    Value *first = graph_find(graph, name);
    if (!first) return arena_strdup(graph->arena, name);
    StrBuf text = {0};
    do {
        strbuf_clear(&text);
        strbuf_printf(&text, "%s~%d", name, ++first->num_namesakes + 1);
    } while (graph_find(graph, text.data));
    char *out = arena_strdup(graph->arena, text.data);
    strbuf_deinit(&text);
    return out;
}

/* ---- building ---- */

void *array_grow(Arena *arena, void *items, int count, int *capacity, size_t size)
{
    if (count < *capacity) return items;
    int   bigger = *capacity ? 2 * *capacity : 64;
    void *out = arena_alloc(arena, arena_array_bytes((size_t)bigger, size));
    if (count) memcpy(out, items, (size_t)count * size);
    *capacity = bigger;
    return out;
}

Graph *graph_create(Arena *arena, const char *name, const OpDef *const *ops, int num_ops)
{
    Graph *graph = arena_new(arena, Graph);
    graph->arena = arena;
    graph->name = arena_strdup(arena, name);
    graph->ops = ops;
    graph->num_ops = num_ops;
    graph->layer = -1;
    graph->names = arena_new(arena, NameTable);
    return graph;
}

Value *graph_add_value(Graph *graph, ValueKind kind, const char *name, const TensorType *type)
{
    Value *value = arena_new(graph->arena, Value);
    value->id = graph->num_values;
    value->layer = graph->layer;
    value->name = unique_name(graph, name);
    value->type = *type;
    value->kind = kind;
    graph->values = array_grow(graph->arena, graph->values, graph->num_values, &graph->cap_values, sizeof(Value *));
    graph->values[graph->num_values++] = value;
    name_insert(graph, value);
    return value;
}

Value *graph_add_feed(Graph *graph, Feed feed, int64_t batch, int64_t cols)
{
    const FeedInfo *info = feed_info(feed);
    bool            has_columns = info->shape == FEED_CELLS || info->shape == FEED_TABLE;
    TensorType      type = has_columns                ? type_make(info->dtype, 2, batch, cols)
                           : info->shape == FEED_ROWS ? type_make(info->dtype, 1, batch)
                                                      : type_make(info->dtype, 1, info->count);
    return graph_add_value(graph, VALUE_INPUT, info->name, &type);
}

/* The old name's slot stays, so that probing still finds names after it; no look-up matches it. */
void graph_rename(Graph *graph, Value *value, const char *name)
{
    if (strcmp(value->name, name) == 0) return;
    value->name = unique_name(graph, name);
    name_insert(graph, value);
}

Status param_period(const Param *param, int64_t *out)
{
    const int64_t rows = param->type.dim[0];
    int64_t       sum = 0;
    FAIL_IF(param->num_matrices && param->type.ndim != 2, ERR_INVALID, "%s holds %d matrices, but has %d dims; expected 2", param->name,
            param->num_matrices, param->type.ndim);
    for (int i = 0; i < param->num_matrices; i++) {
        FAIL_IF(param->matrices[i] < 1 || param->matrices[i] > rows - sum, ERR_INVALID,
                "%s: its matrix %d has %lld rows; expected at least 1, and no more than %lld in all", param->name, i + 1,
                (long long)param->matrices[i], (long long)rows);
        sum += param->matrices[i];
    }
    FAIL_IF(sum && rows % sum, ERR_INVALID, "%s: its matrices have %lld rows, which don't divide its %lld", param->name, (long long)sum,
            (long long)rows);
    *out = sum ? sum : rows;
    return OK;
}

Value *graph_add_param(Graph *graph, Param *param)
{
    Value *value = graph_add_value(graph, VALUE_PARAM, param->name, &param->type);
    value->param = param;
    value->layer = param->layer;
    graph->params = array_grow(graph->arena, graph->params, graph->num_params, &graph->cap_params, sizeof(Param *));
    graph->params[graph->num_params++] = param;
    return value;
}

/* Order numbers are sparse: a node put between two others takes a number between theirs. Many can be put before the same node; only when
 * no number is free, all nodes are numbered again. */
static void node_number(Graph *graph, Node *node)
{
    const int64_t gap = (int64_t)1 << 32, step = 1 << 16;
    if (!node->next || !node->prev) {
        node->order = node->prev ? node->prev->order + gap : node->next ? node->next->order - gap : 0;
        return;
    }
    int64_t room = (node->next->order - node->prev->order) / 2;
    node->order = node->prev->order + (room < step ? room : step);
    if (room) return;
    int64_t order = 0;
    for (Node *n = graph->first; n; n = n->next) n->order = order += gap;
}

static void node_link(Graph *graph, Node *node, Node *before)
{
    node->next = before;
    node->prev = before ? before->prev : graph->last;
    *(node->prev ? &node->prev->next : &graph->first) = node;
    *(before ? &before->prev : &graph->last) = node;
    node_number(graph, node);
    graph->num_nodes++;
}

static void node_unlink(Graph *graph, Node *node)
{
    *(node->prev ? &node->prev->next : &graph->first) = node->next;
    *(node->next ? &node->next->prev : &graph->last) = node->prev;
    graph->num_nodes--;
}

static void use_link(Use *use, Value *value)
{
    use->prev = NULL;
    use->next = value->first_use;
    if (use->next) use->next->prev = use;
    value->first_use = use;
    value->num_uses++;
}

static void use_unlink(Use *use, Value *value)
{
    *(use->prev ? &use->prev->next : &value->first_use) = use->next;
    if (use->next) use->next->prev = use->prev;
    value->num_uses--;
}

/* ---- storage ---- */

static const OpAlias *find_alias(const Node *node, int k)
{
    for (int i = 0; i < node->op->num_alias; i++)
        if (node->op->alias[i].out == k && node->in[node->op->alias[i].in]) return &node->op->alias[i];
    return NULL;
}

uint32_t node_accumulate_mask(const Node *node)
{
    uint32_t mask = 0;
    for (int k = 0; k < node->num_out; k++) {
        const OpAlias *alias = find_alias(node, k);
        if (alias && alias->accumulate) mask |= 1u << k;
    }
    return mask;
}

Sharing node_sharing(const Node *node, int k, Value **out_storage)
{
    const OpAlias *alias = find_alias(node, k);
    bool           view = k == 0 && (node->op->flags & OP_VIEW);
    *out_storage = view ? node->in[0] : alias ? node->in[alias->in] : NULL;
    return !*out_storage ? STORAGE_OWN : view ? STORAGE_VIEW : STORAGE_UPDATE;
}

static void set_storage(Value *value, Sharing sharing, Value *storage, int64_t offset)
{
    if (value->sharing == STORAGE_UPDATE || value->sharing == STORAGE_HOME) value->kind = VALUE_ACTIVATION;
    value->sharing = sharing;
    value->storage = storage;
    value->offset = offset;
    if (sharing == STORAGE_UPDATE || sharing == STORAGE_HOME) value->kind = storage->kind;
}

/* Storage of an output follows its op, unless value_place_in gave it a home. */
static void follow_op(Value *out)
{
    Value  *storage;
    Sharing sharing = node_sharing(out->producer, out->out_index, &storage);
    if (out->sharing != STORAGE_HOME) set_storage(out, sharing, storage, 0);
}

/* The value has no producer any more. */
static void forget(Value *value)
{
    set_storage(value, STORAGE_OWN, NULL, 0);
    value->producer = NULL;
    value->kind = VALUE_ACTIVATION;
}

static void unlink_member(Value *value)
{
    Value **link = &value->storage->first_member, *before = NULL;
    while (*link != value) link = &(before = *link)->next_member;
    *link = value->next_member;
    if (value->storage->last_member == value) value->storage->last_member = before;
}

bool member_precedes(const Value *a, const Value *b)
{
    return a->offset != b->offset ? a->offset < b->offset : a->id < b->id;
}

static void link_member(Value *value)
{
    Value *base = value->storage, **link = &base->first_member;
    if (base->last_member && member_precedes(base->last_member, value)) link = &base->last_member->next_member;
    while (*link && member_precedes(*link, value)) link = &(*link)->next_member;
    value->next_member = *link;
    if (!*link) base->last_member = value;
    *link = value;
}

void value_place_in(Value *value, Value *storage, int64_t offset)
{
    if (value->sharing == STORAGE_MEMBER) unlink_member(value);
    set_storage(value, value->producer ? STORAGE_HOME : STORAGE_MEMBER, storage, offset);
    if (value->sharing == STORAGE_MEMBER) link_member(value);
}

void value_leave_home(Value *value)
{
    set_storage(value, STORAGE_OWN, NULL, 0);
    follow_op(value);
}

void value_drop(Value *value)
{
    CHECK(!value->producer && !value->num_uses && !value->first_member);
    if (value->sharing == STORAGE_MEMBER) unlink_member(value);
    forget(value);
}

Value *value_root(Value *value, int64_t *out_offset)
{
    int64_t offset = 0;
    for (; value->storage; value = value->storage) offset += value->offset;
    if (out_offset) *out_offset = offset;
    return value;
}

Node *value_first_reader(const Value *value)
{
    Node *first = NULL;
    for (const Use *use = value->first_use; use; use = use->next)
        if (use->node && (!first || node_precedes(use->node, first))) first = use->node;
    return first;
}

Root *graph_roots(const Graph *graph)
{
    Root *roots = arena_array(graph->arena, Root, graph->num_values + 1);
    for (int i = 0; i < graph->num_values; i++)
        if (!graph->values[i]->producer) roots[i].value = value_root(graph->values[i], &roots[i].offset);
    for (const Node *node = graph->first; node; node = node->next)
        for (int k = 0; k < node->num_out; k++) {
            Value *out = node->out[k];
            if (!out) continue;
            roots[out->id] = out->storage ? roots[out->storage->id] : (Root){out, 0};
            roots[out->id].offset += out->offset;
        }
    return roots;
}

/* ---- nodes ---- */

Value *node_first_out(const Node *node)
{
    for (int k = 0; k < node->num_out; k++)
        if (node->out[k]) return node->out[k];
    return NULL;
}

uint32_t node_wanted(const Node *node)
{
    uint32_t wanted = 0;
    for (int k = 0; k < node->num_out; k++) wanted |= (uint32_t)(node->out[k] != NULL) << k;
    return wanted;
}

void node_set_input(Node *node, int index, Value *value)
{
    Value **in = (Value **)&node->in[index];
    if (*in) use_unlink(&node->uses[index], *in);
    *in = value;
    if (value) use_link(&node->uses[index], value);
    for (int k = 0; k < node->num_out; k++)
        if (node->out[k]) follow_op(node->out[k]);
}

Value *node_add_output(Graph *graph, Node *node, int k, const char *name, const TensorType *type)
{
    Value *value = graph_add_value(graph, VALUE_ACTIVATION, name, type);
    value->producer = node;
    value->out_index = k;
    node->out[k] = value;
    follow_op(value);
    return value;
}

void *attrs_defaults(Arena *arena, const OpDef *op)
{
    if (!op->attrs_size) return NULL;
    char *attrs = arena_alloc(arena, op->attrs_size);
    for (const AttrDef *a = op->attrs; a && a->type != ATTR_TYPE_END; a++) {
        if (a->type == ATTR_TYPE_INT) *(int64_t *)(void *)(attrs + a->offset) = (int64_t)a->default_value;
        if (a->type == ATTR_TYPE_FLOAT) *(double *)(void *)(attrs + a->offset) = a->default_value;
        if (a->type == ATTR_TYPE_BOOL) *(bool *)(attrs + a->offset) = a->default_value != 0;
    }
    return attrs;
}

static Status check_inputs(const Node *node)
{
    const OpDef *op = node->op;
    for (int i = 0; i < op->num_in; i++) {
        bool optional = i >= op->min_in || (op->optional_in >> i & 1);
        FAIL_IF(!node->in[i] && !optional, ERR_INVALID, "input %d of %s is missing; it is %s", i, op->name,
                op->synopsis ? op->synopsis : "");
    }
    return OK;
}

/* Runs infer with a temporary value for every output, wanted or not. */
Status node_infer(const Node *node, TensorType out_types[NODE_MAX_OUT])
{
    Value  scratch[NODE_MAX_OUT] = {0};
    Value *out[NODE_MAX_OUT];
    for (int k = 0; k < NODE_MAX_OUT; k++) out[k] = &scratch[k];
    Node copy = *node;
    copy.out = out;
    TRY(check_inputs(node));
    TRY(node->op->infer(&copy));
    for (int k = 0; k < node->num_out; k++) {
        out_types[k] = scratch[k].type;
        TRY(type_check(&scratch[k].type));
    }
    return OK;
}

static Status infer_failed(Status status, const Node *node, const char *name)
{
    StrBuf text = {0};
    for (int i = 0; i < node->num_in; i++) {
        char buf[64];
        if (i) strbuf_puts(&text, ", ");
        if (node->in[i])
            strbuf_printf(&text, "%s: %s", node->in[i]->name, type_text(&node->in[i]->type, buf));
        else
            strbuf_puts(&text, "_");
    }
    status_prefix(status, "%s%s%s = %s(%s)", node->source ? node->source : "", node->source ? ": " : "", name, node->op->name,
                  strbuf_cstr(&text));
    strbuf_deinit(&text);
    return status;
}

/* Adds the node to the readers of its inputs. */
static void node_connect(Graph *graph, Node *node)
{
    node->uses = arena_array(graph->arena, Use, node->num_in + 1);
    for (int i = 0; i < node->num_in; i++) {
        node->uses[i] = (Use){.node = node, .index = i};
        if (node->in[i]) use_link(&node->uses[i], node->in[i]);
    }
}

void graph_set_rows_alone(Graph *graph)
{
    graph->rows_alone = true;
    for (Node *node = graph->first; node; node = node->next) node->flags |= NODE_ROWS_ALONE;
}

Status graph_add_node(Graph *graph, const OpDef *op, const void *attrs, const char *name, Value *const *in, int num_in, uint32_t want,
                      Node **out_node)
{
    CHECK(num_in <= op->num_in && op->num_in <= NODE_MAX_IN && op->num_out <= NODE_MAX_OUT);
    Node *node = arena_new(graph->arena, Node);
    node->op = op;
    node->id = graph->next_node_id++;
    node->layer = graph->layer;
    node->part = graph->part;
    node->source = graph->source;
    node->flags = graph->rows_alone ? NODE_ROWS_ALONE : 0;
    node->num_in = op->num_in;
    node->num_out = op->num_out;
    Value **inputs = arena_array(graph->arena, Value *, op->num_in + 1);
    if (num_in) memcpy(inputs, in, sizeof *inputs * (size_t)num_in);
    node->in = inputs;
    node->out = arena_array(graph->arena, Value *, op->num_out + 1);
    node->attrs = attrs_defaults(graph->arena, op);
    if (attrs && op->attrs_size) memcpy(node->attrs, attrs, op->attrs_size);
    TensorType types[NODE_MAX_OUT];
    Status     status = node_infer(node, types);
    if (status != OK) return infer_failed(status, node, name);
    for (int k = 0; k < op->num_out; k++) {
        if (!(want >> k & 1) || !types[k].ndim) continue;
        node_add_output(graph, node, k, k ? arena_printf(graph->arena, "%s.%d", name, k) : name, &types[k]);
    }
    node_connect(graph, node);
    node_link(graph, node, graph->cursor);
    if (out_node) *out_node = node;
    return OK;
}

void graph_add_output(Graph *graph, const char *name, Value *value)
{
    graph->outputs = array_grow(graph->arena, graph->outputs, graph->num_outputs, &graph->cap_outputs, sizeof(NamedValue));
    Use *use = arena_new(graph->arena, Use);
    use->index = graph->num_outputs;
    use_link(use, value);
    graph->outputs[graph->num_outputs++] = (NamedValue){arena_strdup(graph->arena, name), value, use};
}

void graph_clear_outputs(Graph *graph)
{
    for (int i = 0; i < graph->num_outputs; i++) use_unlink(graph->outputs[i].use, graph->outputs[i].value);
    graph->num_outputs = 0;
}

void graph_drop_output(Graph *graph, const char *name)
{
    int kept = 0;
    for (int i = 0; i < graph->num_outputs; i++) {
        NamedValue *output = &graph->outputs[i];
        if (strcmp(output->name, name) == 0) {
            use_unlink(output->use, output->value);
            continue;
        }
        output->use->index = kept;
        graph->outputs[kept++] = *output;
    }
    graph->num_outputs = kept;
}

Value *graph_output(const Graph *graph, const char *name)
{
    for (int i = 0; i < graph->num_outputs; i++)
        if (strcmp(graph->outputs[i].name, name) == 0) return graph->outputs[i].value;
    return NULL;
}

/* ---- editing ---- */

void node_add_after(Graph *graph, Node *node, Node *earlier)
{
    Node **after = arena_array(graph->arena, Node *, node->num_after + 1);
    if (node->num_after) memcpy(after, node->after, sizeof *after * (size_t)node->num_after);
    after[node->num_after++] = earlier;
    node->after = after;
}

void node_drop_output(Node *node, int k)
{
    forget(node->out[k]);
    node->out[k] = NULL;
}

Status node_want_output(Graph *graph, Node *node, int k, const char *name)
{
    TensorType types[NODE_MAX_OUT];
    Status     status = node_infer(node, types);
    if (status != OK) return infer_failed(status, node, name);
    CHECK(!node->out[k] && types[k].ndim);
    node_add_output(graph, node, k, name, &types[k]);
    return OK;
}

void graph_remove_node(Graph *graph, Node *node)
{
    if (graph->cursor == node) graph->cursor = node->next;
    node_unlink(graph, node);
    node->prev = node->next = NULL;
    for (int i = 0; i < node->num_in; i++) node_set_input(node, i, NULL);
    for (int k = 0; k < node->num_out; k++)
        if (node->out[k]) forget(node->out[k]);
}

void graph_move_before(Graph *graph, Node *node, Node *before)
{
    if (node == before) return;
    node_unlink(graph, node);
    node_link(graph, node, before);
}

bool node_precedes(const Node *a, const Node *b)
{
    return a->order < b->order;
}

void value_take_hint(Value *to, const Value *from)
{
    if (from->hint > to->hint) to->hint = from->hint;
}

void graph_replace_uses(Graph *graph, Value *from, Value *to, Node *start)
{
    if (from == to) return;
    value_take_hint(to, from);
    for (Use *use = from->first_use, *next; use; use = next) {
        next = use->next;
        if (!use->node) {
            use_unlink(use, from);
            graph->outputs[use->index].value = to;
            use_link(use, to);
        } else if (!start || !node_precedes(use->node, start)) {
            node_set_input(use->node, use->index, to);
        }
    }
}
