/* Executes statements; each writes to r->out. To capture a text (macros, set blocks), the code writes the text at the end of r->out and
 * cuts it off afterwards. */
#include "text/template/open.h"
#include "text/template/render.h"

#include <string.h>

/* Finds the variable in the frame or its parents; NULL: none. */
static Value *find_variable(Render *r, Frame *frame, uint32_t name)
{
    int64_t looks = 0;
    Value  *found = NULL;
    for (; frame && !found; frame = frame->parent) {
        uint32_t i = 0, count = frame->scope->count;
        while (i < count && frame->scope->symbols[i].name != name) i++;
        if (i < count) found = &frame->values[i];
        looks += i;
    }
    render_tick(r, looks >> 6);
    return found;
}

void frame_enter(Render *r, Frame *parent, const Scope *scope)
{
    r->frame = arena_alloc(&r->arena, sizeof(Frame) + scope->count * sizeof(Value));
    *r->frame = (Frame){.parent = parent, .scope = scope};
    render_tick(r, scope->count >> 4);
    for (uint32_t i = 0; i < scope->count; i++) {
        const Symbol *symbol = &scope->symbols[i];
        const Value  *outer = symbol->is_parameter ? NULL : find_variable(r, parent, symbol->name);
        if (outer)
            r->frame->values[i] = *outer;
        else if (symbol->resolves && !symbol->is_parameter)
            r->frame->values[i] = r->context[symbol->name];
    }
}

Value get_variable(Render *r, uint32_t name)
{
    return *find_variable(r, r->frame, name);
}

void set_variable(Render *r, uint32_t name, Value value)
{
    *find_variable(r, r->frame, name) = value;
}

Value capture_end(Render *r, size_t start)
{
    return r->open ? open_capture(r, start) : text_take(r, start);
}

void assign_target(Render *r, const Node *target, Value value)
{
    if (target->kind == N_NAME) {
        set_variable(r, target->name, value);
        return;
    }
    if (target->kind == N_NSREF) {
        Value space = get_variable(r, target->name);
        if (space.type != V_NAMESPACE) render_fail(r, "cannot assign attribute on non-namespace object");
        dict_set(r, space.dict, value_of_str(r->tmpl->names.names[target->attribute]), value);
        return;
    }
    if (!value_is(value, TYPES_ITERABLE)) render_fail(r, "cannot unpack non-iterable %s object", value_type_name(value));
    List list = value_is(value, TYPES_ARRAY) ? *value.list : value_to_list(r, value);
    if (list.count != target->items.count) render_fail(r, "%u values to unpack into %u names", list.count, target->items.count);
    for (uint32_t i = 0; i < list.count; i++) assign_target(r, target->items.items[i], list.items[i]);
}

static void exec_set(Render *r, const Node *node)
{
    assign_target(r, node->a, eval(r, node->b));
}

static void emit(Render *r, Value value)
{
    if (value.type == V_OPEN)
        open_print(r, value);
    else
        print_str(r, value);
}

static void exec_print(Render *r, const Node *node)
{
    for (uint32_t i = 0; i < node->items.count; i++) {
        Value value = eval(r, node->items.items[i]);
        r->line = node->line;
        emit(r, value);
    }
}

static void exec_if(Render *r, const Node *node)
{
    for (;; node = node->b) {
        r->line = node->line;
        bool truth = value_truth(r, eval(r, node->a));
        if (!truth && node->b) continue;
        exec_nodes(r, truth ? &node->body : &node->orelse);
        return;
    }
}

static Value macro_value(Render *r, const Node *node)
{
    Macro *macro = arena_new(&r->arena, Macro);
    *macro = (Macro){node, r->frame};
    return (Value){.type = V_MACRO, .macro = macro};
}

/* Writes the result of a call or filter block, without escaping, as Jinja does. */
static void write_text(Render *r, Value value)
{
    if (value.type != V_STRING && value.type != V_OPEN) render_fail(r, "a block gives %s where a text is needed", value_type_name(value));
    emit(r, value);
}

/* Executes set and filter blocks: captures the body and applies the filters, which see names that the body sets. */
static void exec_capture(Render *r, const Node *node)
{
    size_t start = r->out.len;
    Frame *outer = r->frame;
    frame_enter(r, outer, node->scope);
    r->captures++;
    exec_nodes(r, &node->body);
    r->captures--;
    Value value = capture_end(r, start);
    r->line = node->line;
    if (r->flow == FLOW_NEXT) value = eval_filter_chain(r, node->b, value);
    r->frame = outer;
    if (r->flow != FLOW_NEXT) return;
    if (node->kind == N_FILTERBLOCK)
        write_text(r, value);
    else
        assign_target(r, node->a, value);
}

static void exec_with(Render *r, const Node *node)
{
    Frame *outer = r->frame;
    List   values = {0};
    for (uint32_t i = 0; i < node->items.count; i++) list_add(r, &values, eval(r, node->values.items[i]));
    frame_enter(r, outer, node->scope);
    for (uint32_t i = 0; i < node->items.count; i++) assign_target(r, node->items.items[i], values.items[i]);
    exec_nodes(r, &node->body);
    r->frame = outer;
}

/* Executes {% generation %} like a macro that is called without arguments, and records the span of its output. */
static void exec_generation(Render *r, const Node *node)
{
    size_t begin = r->out.len;
    Frame *outer = r->frame;
    frame_enter(r, outer, node->scope);
    if (node->uses[SPECIAL_CALLER]) set_variable(r, r->tmpl->specials[SPECIAL_CALLER], value_hint("No caller defined"));
    if (node->uses[SPECIAL_KWARGS]) set_variable(r, r->tmpl->specials[SPECIAL_KWARGS], value_dict(arena_new(&r->arena, Dict)));
    if (node->uses[SPECIAL_VARARGS]) set_variable(r, r->tmpl->specials[SPECIAL_VARARGS], value_list(r, V_TUPLE, (List){0}));
    exec_nodes(r, &node->body);
    r->frame = outer;
    if (r->captures) return;
    r->spans = arena_room(&r->arena, r->spans, r->num_spans + 1, &r->spans_capacity, sizeof *r->spans);
    r->spans[r->num_spans++] = (TemplateSpan){begin, r->out.len};
}

/* Whether `item` is a message and no enclosing loop is over messages: then a turn begins. */
static bool turn_begin(Render *r, Value item)
{
    if (r->turn || item.type != V_DICT || !item.dict->message) return false;
    r->turn = item.dict->message;
    r->looks_around = false;
    return true;
}

static void turn_end(Render *r, size_t begin)
{
    TemplateTurn turn = {{begin, r->out.len}, r->turn - 1, r->looks_around};
    r->turn = 0;
    if (r->out.len == begin || r->captures || r->calls) return;
    r->turns = arena_room(&r->arena, r->turns, r->num_turns + 1, &r->turns_capacity, sizeof turn);
    r->turns[r->num_turns++] = turn;
}

static void exec_loop(Render *r, LoopState *loop)
{
    const Node *node = loop->node;
    bool        is_empty = true;
    for (Value item; loop_next(r, loop, &item);) {
        frame_enter(r, loop->frame, node->scope);
        set_variable(r, r->tmpl->specials[SPECIAL_LOOP], (Value){.type = V_LOOP, .loop = loop});
        assign_target(r, node->a, item);
        size_t begin = r->out.len;
        bool   is_turn = turn_begin(r, item);
        exec_nodes(r, &node->body);
        if (is_turn) turn_end(r, begin);
        Flow flow = r->flow;
        r->flow = FLOW_NEXT;
        if (flow == FLOW_NEXT) is_empty = false; /* as in Jinja: an iteration left by break or continue doesn't count */
        if (flow == FLOW_BREAK) break;
    }
    if (!is_empty) return;
    frame_enter(r, loop->frame, node->else_scope);
    exec_nodes(r, &node->orelse);
}

static void exec_loop_over(Render *r, const Node *node, Frame *home, Value source, int64_t depth0)
{
    LoopState *loop = arena_new(&r->arena, LoopState);
    Frame     *frame = r->frame;
    *loop = (LoopState){.node = node, .frame = home, .index0 = -1, .length = -1, .depth0 = depth0, .it = iterator_of(r, source)};
    exec_loop(r, loop);
    r->frame = frame;
}

static void exec_for(Render *r, const Node *node)
{
    Value source = eval(r, node->b);
    r->line = node->line;
    exec_loop_over(r, node, r->frame, source, 0);
}

/* loop(items) inside a recursive loop: runs the loop over these items and returns its output. */
Value loop_call(Render *r, LoopState *outer, const Args *args)
{
    size_t start = r->out.len;
    if (!outer->node->recursive) render_fail(r, "the loop must have the 'recursive' marker to be called recursively");
    if (args->count != 1 || args->keywords.count) render_fail(r, "loop() takes one argument");
    int depth = r->depth;
    for (int i = 0; i < 4; i++) render_deeper(r); /* a nested loop takes several C stack frames */
    r->calls++;
    exec_loop_over(r, outer->node, outer->frame, args->items[0], outer->depth0 + 1);
    r->calls--;
    r->depth = depth;
    return capture_end(r, start);
}

static void exec_data(Render *r, const Node *node)
{
    strbuf_append(&r->out, node->value.text, node->value.len);
}

static void exec_macro(Render *r, const Node *node)
{
    set_variable(r, node->name, macro_value(r, node));
}

static void exec_call_block(Render *r, const Node *node)
{
    write_text(r, eval_call(r, node->a, macro_value(r, node)));
}

static void exec_break(Render *r, const Node *node)
{
    r->flow = node->kind == N_BREAK ? FLOW_BREAK : FLOW_CONTINUE;
}

static void (*const executors[NUM_NODES])(Render *r, const Node *node) = {
#define STATEMENT(kind, function) [kind] = function,
#include "text/template/nodes.def"
};

void exec_nodes(Render *r, const Nodes *nodes)
{
    render_deeper(r);
    for (uint32_t i = 0; i < nodes->count && r->flow == FLOW_NEXT; i++) {
        r->line = nodes->items[i]->line;
        render_tick(r, 1);
        executors[nodes->items[i]->kind](r, nodes->items[i]);
        if (r->out.len > RENDER_MAX_TEXT_BYTES) render_fail(r, "the output grows beyond %d MiB", RENDER_MAX_TEXT_BYTES >> 20);
    }
    r->depth--;
}
