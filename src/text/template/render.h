/* One rendering: its state, and what expressions, filters, tests and methods share. All its memory lies in its arena and in
 * its output, so that a failure needs no way back through the callers: render_fail keeps the message and leaves to
 * template_execute, which returns ERR_INVALID. */
#pragma once

#include "text/template/ast.h"
#include "text/template/builtin.h"

enum {
    RENDER_MAX_STEPS = 10 * 1000 * 1000,
    RENDER_MAX_DEPTH = 1200,  /* nested evaluations, macro calls included */
    RENDER_MAX_NESTING = 400, /* of values within values */
    RENDER_MAX_RANGE = 100000,
    RENDER_MAX_TEXT_BYTES = 64 << 20, /* of the output, and of one string */
    RENDER_MAX_ARENA_BYTES = 512 << 20
};

/* A scope that was entered, with the values of its symbols. What is assigned goes into the innermost; a name is looked for from
 * there outwards, and last among the render's variables. */
typedef struct Frame {
    struct Frame *parent;
    const Scope  *scope;
    Value         values[];
} Frame;

typedef enum Flow { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE } Flow;

struct Render {
    const Template   *tmpl;
    jmp_buf           failed;
    Arena             arena;
    StrBuf            out; /* its tail is what is being captured or put together */
    Frame            *frame;
    Value            *context; /* the render's variables, by name; V_MISSING: not there */
    int               line;
    int               depth;
    int               captures; /* set and filter blocks we are in: no spans there */
    Flow              flow;
    int64_t           steps, max_steps;
    int64_t           now_unix;
    int               calls; /* of macros and loops we are in: their text is captured too */
    TemplateSpan     *spans;
    uint32_t          num_spans, spans_capacity;
    TemplateTurn     *turns;
    uint32_t          num_turns, turns_capacity;
    uint32_t          turn; /* the message that a loop is at, from 1 on; 0: none */
    bool              looks_around;
    struct OpenTrace *open; /* the messages' texts are left open; NULL: they are as they are */
};

_Noreturn void render_fail(Render *r, const char *fmt, ...) PRINTF_LIKE(2, 3);
_Noreturn void undefined_fail(Render *r, Value undefined);
/* Counts work; fails beyond the limit; also bounds the arena. A step is a tenth of a microsecond or so: whatever takes longer
 * counts as more of them. */
void render_tick(Render *r, int64_t steps);
void render_looks_at(Render *r, const Dict *dict, Str name);          /* a member, maybe of a message; name.data NULL: all */
void render_tick_chars(Render *r, size_t bytes);                      /* of a text that is looked at character by character */
void render_tick_dict(Render *r, const Dict *dict, size_t key_bytes); /* a key is looked for */
void render_deeper(Render *r);                                        /* r->depth++, within its limit */

typedef struct Macro {
    const Node *node;
    Frame      *frame; /* where it was defined */
} Macro;

/* ---- value.c ---- */

bool    value_truth(Render *r, Value v);
bool    value_equal(Render *r, Value a, Value b);
int     value_compare(Render *r, Value a, Value b, const char *op); /* -1, 0, 1; 2: NaN */
int64_t value_length(Render *r, Value v);
bool    value_contains(Render *r, Value item, Value container);
void    value_hashable(Render *r, Value key);
Value   dict_get(Render *r, const Dict *dict, Value key); /* V_MISSING: absent */
Value   dict_get_text(const Dict *dict, Str key);
void    dict_set(Render *r, Dict *dict, Value key, Value value);
int64_t number_of(Str text); /* that its digits are, few enough for 64 bits; -1: it is none */
void    list_add(Render *r, List *list, Value v);
void    list_reverse(List list);
Value   value_list(Render *r, ValueType type, List list);
Value   value_pair(Render *r, Value a, Value b);
Value   value_view(Render *r, Dict *dict, ViewKind kind);
Value   value_from_json(Render *r, const JsonValue *json);
void    check_size(Render *r, Value v); /* fails for VALUE_TOO_BIG */

/* A text is put together at the end of r->out, from r->out.len on, and cut off there. */
Value text_take(Render *r, size_t begin);
void  text_check(Render *r, size_t bytes); /* the limit on a text's size; counts the work */
void  text_fits(Render *r);                /* r->out hasn't grown beyond it */

/* ---- iter.c: iteration; the source must live as long ---- */

typedef struct Iterator {
    Value   source;
    int64_t pos, count;
} Iterator;

/* A generator, which is read once. */
typedef struct LazyList LazyList;
struct LazyList {
    const char *name; /* its Python type, for messages */
    Value       source;
    Args        args;
    uint32_t    mode;
    bool (*next)(Render *r, LazyList *list, Value *out); /* false: at the end; NULL: what `it` gives */
    bool           is_ready;                             /* read before */
    Iterator       it;                                   /* what is left of the source */
    struct Getter *getter;
    const Builtin *builtin;
    Dict           seen; /* the keys of unique */
};
Iterator iterator_of(Render *r, Value source);
bool     iterator_next(Render *r, Iterator *it, Value *out); /* false: at the end */
List     value_to_list(Render *r, Value source);             /* a copy of its own */

/* State of a running loop. The items come one by one, so that a loop's filter sees what its body changed. */
typedef struct LoopState {
    const Node *node;
    Frame      *frame; /* where the loop stands */
    Iterator    it;
    Value       current, before, after; /* V_MISSING: none */
    Value       changed;                /* last arguments of loop.changed, a tuple */
    int64_t     index0, length, depth0; /* length -1: not known yet */
    bool        filtered;               /* what is left in `it` has passed the filter */
} LoopState;
bool    loop_next(Render *r, LoopState *loop, Value *out);
int64_t loop_length(Render *r, LoopState *loop);
Value   loop_attribute(Render *r, LoopState *loop, Str name); /* V_MISSING: none */
Value   loop_call(Render *r, LoopState *loop, const Args *args);

/* ---- repr.c: values as text, at the end of r->out ---- */

typedef struct TextStyle {
    bool is_json, ascii, sort_keys, has_indent;
    Str  indent; /* of one level */
    Str  item_separator, key_separator;
} TextStyle;
void                   print_value(Render *r, Value v, const TextStyle *style); /* repr(v), or json.dumps(v) */
void                   print_str(Render *r, Value v);                           /* str(v); of undefined nothing */
Value                  value_to_text(Render *r, Value v);                       /* str(v); markup stays */
Value                  value_repr(Render *r, Value v);                          /* repr(v) */
Value                  value_to_markup(Render *r, Value v);                     /* escaped unless it is markup */
extern const TextStyle repr_style;

/* ---- op.c, format.c, filters_seq.c ---- */

Value value_binary(Render *r, TokenKind op, Value a, Value b);
Value value_slice(Render *r, Value object, const Value bounds[3]);                /* start, stop, step; not given: V_MISSING or None */
Value value_attribute(Render *r, Value object, const Builtin *methods, Str name); /* without items; V_MISSING: none */
Value value_getattr(Render *r, Value object, const Builtin *methods, Str name);   /* object.name; `methods` of that name */
Value value_getitem(Render *r, Value object, Value key);                          /* object[key] */
Value format_percent(Render *r, Value format, const Args *args, bool one_value);
Value format_braces(Render *r, Value format, const Args *args);
/* A stable order of items by keys, as many, which move along; `reverse` keeps the order of equals too. */
void sort_values(Render *r, Value *items, Value *keys, uint32_t count, bool reverse);

/* ---- template.c, eval.c, call.c, exec.c ---- */

NODISCARD Status template_execute(Render *r, const TemplateInput *input); /* everything but taking the output */
Value            eval(Render *r, const Node *node);
bool             value_is_ordered(Render *r, TokenKind op, Value a, Value b); /* a op b of a comparison */
Value            eval_call(Render *r, const Node *node, Value caller);
Args             eval_args(Render *r, const Node *node, Value caller);
/* Applies the filters of a set or filter block; NULL: none. */
Value eval_filter_chain(Render *r, const Node *filter, Value text);
void  exec_nodes(Render *r, const Nodes *nodes);
void  frame_enter(Render *r, Frame *parent, const Scope *scope);
Value get_variable(Render *r, uint32_t name);
void  set_variable(Render *r, uint32_t name, Value value);
void  assign_target(Render *r, const Node *target, Value value);
Value capture_end(Render *r, size_t start);
