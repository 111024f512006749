/* State of a running loop, and what statements need of expressions. */
#pragma once

#include "text/template/eval.h"

struct LoopState {
    const Node *node;
    Frame      *frame;      /* where the loop stands */
    Frame      *body_frame; /* of its body's variables: another one when recursive */
    Iterator    it;
    Value       current, before, after; /* V_MISSING: none */
    Value       changed;                /* last arguments of loop.changed, a tuple */
    int64_t     index0, length, depth0; /* length -1: not known yet */
    bool        filtered; /* what is left in `it` has passed the filter */
};

/* template_eval.c: applies the filters of a set or filter block; NULL: none. */
NODISCARD Status eval_filter_chain(Render *r, const Node *filter, Value text, Value *out);
