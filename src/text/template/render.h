/* One rendering: its state, and functions shared by expressions, filters, tests and methods. All memory belongs to its arena and its
 * output. So render_fail can set the message and longjmp to template_execute, which returns ERR_INVALID. */
#pragma once

#include "text/template/ast.h"
#include "text/template/builtin.h"

enum {
    RENDER_MAX_STEPS = 10 * 1000 * 1000,
    RENDER_MAX_DEPTH = 1200,  /* nested evaluations, including macro calls */
    RENDER_MAX_NESTING = 400, /* nested values when they are printed */
    RENDER_MAX_RANGE = 100000,
    RENDER_MAX_TEXT_BYTES = 64 << 20, /* bytes of the output, or of a single string */
    RENDER_MAX_ARENA_BYTES = 512 << 20
};

/* An entered scope, with the values of its symbols. Names are looked up from the innermost frame outwards. */
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
    StrBuf            out; /* texts are captured or built at its end */
    Frame            *frame;
    Value            *context; /* the render's variables, by name number; V_MISSING: unset */
    int               line;
    int               depth;
    int               captures; /* number of enclosing set and filter blocks; spans aren't recorded inside them */
    Flow              flow;
    int64_t           steps, max_steps;
    int64_t           now_unix;
    int               calls; /* number of enclosing macro and loop() calls; their output is captured too */
    TemplateSpan     *spans;
    uint32_t          num_spans, spans_capacity;
    TemplateTurn     *turns;
    uint32_t          num_turns, turns_capacity;
    uint32_t          turn; /* number of the message that the outermost message loop is at, from 1 on; 0: none */
    bool              looks_around;
    struct OpenTrace *open; /* set during a trace: texts of messages are open; NULL: they are plain texts */
};

_Noreturn void render_fail(Render *r, const char *fmt, ...) PRINTF_LIKE(2, 3);
_Noreturn void undefined_fail(Render *r, Value undefined);
/* Counts steps and fails beyond the limit; also limits the arena. A step is about a tenth of a microsecond; slower operations count as
 * several. */
void render_tick(Render *r, int64_t steps);
/* Notes that a member of `dict` is read, in case `dict` is a message (sets r->looks_around); name.data NULL: all members. */
void render_looks_at(Render *r, const Dict *dict, Str name);
void render_tick_chars(Render *r, size_t bytes);                      /* counts a scan of a text, character by character */
void render_tick_dict(Render *r, const Dict *dict, size_t key_bytes); /* counts a search for a key */
void render_deeper(Render *r);                                        /* r->depth++; fails beyond the limit */

typedef struct Macro {
    const Node *node;
    Frame      *frame; /* the frame in which it was defined */
} Macro;

/* ---- value.c ---- */

bool    value_truth(Render *r, Value v);
bool    value_equal(Render *r, Value a, Value b);
int     value_compare(Render *r, Value a, Value b, const char *op); /* -1, 0 or 1; 2: a NaN */
int64_t value_length(Render *r, Value v);
bool    value_contains(Render *r, Value item, Value container);
void    value_hashable(Render *r, Value key);
Value   dict_get(Render *r, const Dict *dict, Value key); /* V_MISSING: no such key */
Value   dict_get_text(const Dict *dict, Str key);
void    dict_set(Render *r, Dict *dict, Value key, Value value);
int64_t number_of(Str text); /* the number written in decimal digits (at most 17); -1: it isn't one */
void    list_add(Render *r, List *list, Value v);
void    list_reverse(List list);
Value   value_list(Render *r, ValueType type, List list);
Value   value_pair(Render *r, Value a, Value b);
Value   value_view(Render *r, Dict *dict, ViewKind kind);
Value   value_from_json(Render *r, const JsonValue *json);
void    check_size(Render *r, Value v); /* fails if v is a VALUE_TOO_BIG */

/* A text is built at the end of r->out: remember begin = r->out.len, append, then text_take(r, begin) cuts it off. */
Value text_take(Render *r, size_t begin);
void  text_check(Render *r, size_t bytes); /* fails if a text of this size is too long; else counts the work */
void  text_fits(Render *r);                /* fails if r->out is too long */

/* ---- iter.c: iteration; the source must live as long as its iterator ---- */

typedef struct Iterator {
    Value   source;
    int64_t pos, count;
} Iterator;

/* A generator, which can be read once. */
typedef struct LazyList LazyList;
struct LazyList {
    const char *name; /* name of its Python type, for messages */
    Value       source;
    Args        args;
    uint32_t    mode;
    bool (*next)(Render *r, LazyList *list, Value *out); /* returns false at the end; NULL: the items are those that `it` gives */
    bool           is_ready;                             /* the first item was read, so `it` is set */
    Iterator       it;                                   /* the remaining items of the source */
    struct Getter *getter;
    const Builtin *builtin;
    Dict           seen; /* filter unique: the keys seen so far */
};
Iterator iterator_of(Render *r, Value source);
bool     iterator_next(Render *r, Iterator *it, Value *out); /* false at the end */
List     value_to_list(Render *r, Value source);             /* a new list */

/* State of a running loop. Items are read one by one, so that the loop's filter sees changes that the loop's body made. */
typedef struct LoopState {
    const Node *node;
    Frame      *frame; /* the frame around the loop */
    Iterator    it;
    Value       current, before, after; /* the current item, the one before and the one after; V_MISSING: none */
    Value       changed;                /* the last arguments of loop.changed, a tuple; V_MISSING: not called yet */
    int64_t     index0, length, depth0; /* length: -1 if not known yet */
    bool        filtered;               /* the remaining items of `it` have already passed the filter */
} LoopState;
bool    loop_next(Render *r, LoopState *loop, Value *out);
int64_t loop_length(Render *r, LoopState *loop);
Value   loop_attribute(Render *r, LoopState *loop, Str name); /* V_MISSING: no such attribute */
Value   loop_call(Render *r, LoopState *loop, const Args *args);

/* ---- repr.c: values as text, at the end of r->out ---- */

typedef struct TextStyle {
    bool is_json, ascii, sort_keys, has_indent;
    Str  indent; /* indentation of one level */
    Str  item_separator, key_separator;
} TextStyle;
void                   print_value(Render *r, Value v, const TextStyle *style); /* repr(v), or json.dumps(v), by style */
void                   print_str(Render *r, Value v);                           /* str(v); nothing for undefined */
Value                  value_to_text(Render *r, Value v);                       /* str(v); markup stays markup */
Value                  value_repr(Render *r, Value v);                          /* repr(v) */
Value                  value_to_markup(Render *r, Value v);                     /* escapes v unless it is markup */
extern const TextStyle repr_style;

/* ---- op.c, format.c, filters_seq.c ---- */

Value value_binary(Render *r, TokenKind op, Value a, Value b);
Value value_slice(Render *r, Value object, const Value bounds[3]); /* start, stop, step; V_MISSING or None: not given */
/* An attribute or method, but not an item of a dict. methods: the first row of that name. V_MISSING: none. */
Value value_attribute(Render *r, Value object, const Builtin *methods, Str name);
Value value_getattr(Render *r, Value object, const Builtin *methods, Str name); /* object.name; methods: the first row of that name */
Value value_getitem(Render *r, Value object, Value key);                        /* object[key] */
Value format_percent(Render *r, Value format, const Args *args, bool one_value);
Value format_braces(Render *r, Value format, const Args *args);
/* Sorts items by their keys, stably; keys are reordered too. `reverse`: descending, but equal items keep their order. */
void sort_values(Render *r, Value *items, Value *keys, uint32_t count, bool reverse);

/* ---- template.c, eval.c, call.c, exec.c ---- */

NODISCARD Status template_execute(Render *r, const TemplateInput *input); /* renders into r->out; the caller takes the output */
Value            eval(Render *r, const Node *node);
bool             value_is_ordered(Render *r, TokenKind op, Value a, Value b); /* the comparison a op b */
Value            eval_call(Render *r, const Node *node, Value caller);
Args             eval_args(Render *r, const Node *node, Value caller);
/* Applies the filters of a set or filter block to `text`; filter NULL: none. */
Value eval_filter_chain(Render *r, const Node *filter, Value text);
void  exec_nodes(Render *r, const Nodes *nodes);
void  frame_enter(Render *r, Frame *parent, const Scope *scope);
Value get_variable(Render *r, uint32_t name);
void  set_variable(Render *r, uint32_t name, Value value);
void  assign_target(Render *r, const Node *target, Value value);
Value capture_end(Render *r, size_t start);
