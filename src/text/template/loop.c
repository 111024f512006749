/* The loop variable. The items come one by one, so that a loop's filter sees what its body changed; loop.last reads one
 * ahead, and loop.length of a filtered loop or a generator reads all. */
#include "text/template/exec.h"

#include <string.h>

int64_t loop_index0(const LoopState *loop)
{
    return loop->index0;
}

/* The next item that passes the filter. */
static Status pull(Render *r, LoopState *loop, Value *out, bool *out_done)
{
    const Node *node = loop->node;
    for (;;) {
        TRY(iterator_next(r, &loop->it, out, out_done));
        if (*out_done || !node->c || loop->filtered) return OK;
        Frame *frame = r->frame;
        int    line = r->line;
        Value  value;
        bool   truth;
        r->frame = loop->body_frame;
        scope_enter(r, node->test_scope);
        TRY(assign_target(r, node->test_target, *out));
        TRY(eval(r, node->c, &value));
        TRY(value_truth(r, value, &truth));
        r->frame = frame;
        r->line = line;
        if (truth) return OK;
    }
}

static Status peek(Render *r, LoopState *loop)
{
    bool  done;
    Value item;
    if (!value_is_missing(loop->after)) return OK;
    TRY(pull(r, loop, &item, &done));
    if (!done) loop->after = item;
    return OK;
}

Status loop_next(Render *r, LoopState *loop, Value *out, bool *out_done)
{
    *out_done = false;
    if (!value_is_missing(loop->after)) {
        *out = loop->after;
        loop->after = (Value){ 0 };
    } else {
        TRY(pull(r, loop, out, out_done));
        if (*out_done) return OK;
    }
    loop->index0++;
    loop->before = loop->current;
    loop->current = *out;
    return OK;
}

/* Reads the rest into a list when the source doesn't know its length. */
Status loop_length(Render *r, LoopState *loop, int64_t *out)
{
    if (loop->length < 0 && !loop->node->c && loop->it.source.type != V_ITER) {
        TRY(value_length(r, loop->it.source, &loop->length));
    } else if (loop->length < 0) {
        uint32_t capacity = 8, count = 0;
        Value   *items = arena_array(&r->arena, Value, capacity);
        for (;;) {
            bool  done;
            Value item;
            TRY(pull(r, loop, &item, &done));
            if (done) break;
            if (count == capacity) {
                Value *more = arena_array(&r->arena, Value, (size_t)capacity * 2);
                memcpy(more, items, count * sizeof *items);
                items = more;
                capacity *= 2;
            }
            items[count++] = item;
        }
        loop->filtered = true;
        TRY(iterator_init(r, &loop->it, value_list(r, V_LIST, items, count)));
        loop->length = count + loop->index0 + 1 + !value_is_missing(loop->after);
    }
    *out = loop->length;
    return OK;
}

static Status length_minus(Render *r, LoopState *loop, int64_t minus, Value *out)
{
    int64_t length;
    TRY(loop_length(r, loop, &length));
    *out = value_int(length - minus);
    return OK;
}

Status loop_attribute(Render *r, LoopState *loop, Str name, Value *out)
{
    *out = (Value){ 0 };
    if (str_equal(name, "index")) *out = value_int(loop->index0 + 1);
    if (str_equal(name, "index0")) *out = value_int(loop->index0);
    if (str_equal(name, "first")) *out = value_bool(loop->index0 == 0);
    if (str_equal(name, "depth")) *out = value_int(loop->depth0 + 1);
    if (str_equal(name, "depth0")) *out = value_int(loop->depth0);
    if (!value_is_missing(*out)) return OK;
    if (str_equal(name, "length")) return length_minus(r, loop, 0, out);
    if (str_equal(name, "revindex")) return length_minus(r, loop, loop->index0, out);
    if (str_equal(name, "revindex0")) return length_minus(r, loop, loop->index0 + 1, out);
    if (str_equal(name, "previtem")) *out = loop->index0 == 0 ? value_hint("there is no previous item") : loop->before;
    bool last = str_equal(name, "last");
    if (!last && !str_equal(name, "nextitem")) return OK;
    TRY(peek(r, loop));
    bool none = value_is_missing(loop->after);
    *out = last ? value_bool(none) : none ? value_hint("there is no next item") : loop->after;
    return OK;
}

Status loop_changed(Render *r, LoopState *loop, const Args *args, Value *out)
{
    bool  same = false;
    Value now = value_list(r, V_TUPLE, (Value *)args->items, args->count);
    if (!value_is_missing(loop->changed)) TRY(value_equal(r, loop->changed, now, &same));
    loop->changed = now;
    *out = value_bool(!same);
    return OK;
}
