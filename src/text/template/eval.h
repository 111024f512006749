/* One rendering: its state, and what expressions, filters, tests and methods share. Every function that returns Status
 * fails with ERR_INVALID and "name:line: message". */
#pragma once

#include "text/template/ast.h"

enum {
    RENDER_MAX_STEPS = 10 * 1000 * 1000,
    RENDER_MAX_DEPTH = 1200,              /* nested evaluations, macro calls included */
    RENDER_MAX_NESTING = 400,             /* of values within values */
    RENDER_MAX_RANGE = 100000,
    RENDER_MAX_TEXT_BYTES = 64 << 20,     /* of the output, and of one string */
    RENDER_MAX_ARENA_BYTES = 512 << 20
};

typedef struct Frame {
    struct Frame *parent;
    Value         slots[];
} Frame;

typedef enum Flow { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE } Flow;

typedef struct Render {
    const Template *tmpl;
    Arena           arena;
    StrBuf          out;      /* captures are its tail */
    Frame          *frame;
    Value          *context;  /* of every interned name; V_MISSING when not given */
    int             line;
    int             depth;
    int             captures; /* set and filter blocks we are in: no spans there */
    Flow            flow;
    int64_t         steps, max_steps;
    int64_t         now_unix;
    TemplateSpan   *spans;
    size_t          num_spans, spans_capacity;
    struct OpenTrace *open;   /* the messages' texts are left open; NULL: they are as they are */
} Render;

struct Macro {
    const Node *node;
    Frame      *frame; /* where it was defined */
};

/* Keyword arguments have text names; *args and **kwargs are already spread. */
typedef struct Keyword {
    Str   name;
    Value value;
} Keyword;
typedef struct Args {
    const Value   *items;
    uint32_t       count;
    const Keyword *keywords;
    uint32_t       num_keywords;
} Args;

enum { MAX_PARAMS = 6 };

/* A filter, test, function or method. `params`: names split by spaces; "*" alone takes `args` as they are; a leading
 * "!" marks one that must be given, a "/" before all that they can't be named. argv[i] is V_MISSING when not given. `self`
 * is what the filter, test or method is applied to. */
typedef struct Builtin {
    const char *name;
    Status (*call)(Render *r, Value self, const Value *argv, const Args *args, Value *out);
    const char *params;
} Builtin;

extern const Builtin template_filters[];
extern const uint32_t template_num_filters;
extern const Builtin template_tests[];
extern const uint32_t template_num_tests;
extern const Builtin template_functions[];
extern const uint32_t template_num_functions;
uint32_t builtin_find(const Builtin *table, uint32_t count, Str name); /* UINT32_MAX: none */
NODISCARD Status builtin_call(Render *r, const Builtin *builtin, Value self, const Args *args, Value *out);

NODISCARD Status render_fail(const Render *r, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Counts work; fails beyond the limit. Also bounds the arena. */
NODISCARD Status render_tick(Render *r, int64_t steps);
NODISCARD Status undefined_fail(const Render *r, Value undefined);
NODISCARD Status check_size(const Render *r, Value v); /* fails for VALUE_TOO_BIG */

/* template_value.c */
NODISCARD Status value_truth(Render *r, Value v, bool *out);
NODISCARD Status value_equal(Render *r, Value a, Value b, bool *out);
NODISCARD Status value_compare(Render *r, Value a, Value b, const char *op, int *out); /* -1, 0, 1; 2: NaN */
NODISCARD Status value_length(Render *r, Value v, int64_t *out);
NODISCARD Status value_contains(Render *r, Value item, Value container, bool *out);
NODISCARD Status value_hashable(Render *r, Value key);
NODISCARD Status dict_get(Render *r, const Dict *dict, Value key, Value *out); /* V_MISSING: absent */
Value            dict_get_text(const Dict *dict, Str key);
NODISCARD Status dict_set(Render *r, Dict *dict, Value key, Value value);
Value            value_list(Render *r, ValueType type, Value *items, uint32_t count);
Value            value_pair(Render *r, Value a, Value b);
Value            value_copy_text(Render *r, const char *text, size_t len);
NODISCARD Status value_from_json(Arena *arena, const JsonValue *json, Value *out);

/* Builds a text in the arena; the limit on its size is checked by text_finish and while growing. */
typedef StrBuf Text;
NODISCARD Status text_finish(Render *r, StrBuf *text, Value *out); /* frees text */
NODISCARD Status text_check(Render *r, size_t bytes);

/* template_iter.c: iteration. The source must live as long. */
typedef struct Iterator {
    Value   source;
    int64_t pos, count;
} Iterator;
struct LazyList {
    const char *name;  /* its Python type, for messages */
    Value       source;
    Args        args;
    Status    (*make)(Render *r, LazyList *list); /* all items at the first read, or NULL and: */
    Status    (*next)(Render *r, LazyList *list, Value *out, bool *out_done);
    Value      *items; /* of make */
    uint32_t    count, pos;
    bool        ready; /* read before */
    bool        negate, by_attribute;
    Iterator    it;    /* of next: what is left of the source */
    struct Getter *getter;
    const Builtin *builtin;
    Args           builtin_args;
    Dict          *seen;
};
NODISCARD Status iterator_init(Render *r, Iterator *it, Value source);
NODISCARD Status iterator_next(Render *r, Iterator *it, Value *out, bool *out_done);
NODISCARD Status value_to_list(Render *r, Value source, List *out); /* a copy of its own */
bool             value_is_iterable(Value v);
NODISCARD Status lazy_prepare(Render *r, LazyList *list); /* calls make */

/* template_repr.c */
NODISCARD Status value_append_str(Render *r, StrBuf *out, Value v);  /* str(v) */
NODISCARD Status value_append_repr(Render *r, StrBuf *out, Value v, int depth);
NODISCARD Status value_to_text(Render *r, Value v, Value *out);      /* str(v), of undefined ""; markup stays */
void             append_float(StrBuf *out, double number);
void             append_escape(StrBuf *out, uint32_t cp);           /* \xhh, \uhhhh or \Uhhhhhhhh */

/* template_op.c */
NODISCARD Status value_binary(Render *r, TokenKind op, Value a, Value b, Value *out);
NODISCARD Status value_slice(Render *r, Value object, Value start, Value stop, Value step, Value *out);
NODISCARD Status value_getattr(Render *r, Value object, uint32_t name, Value *out);  /* object.name */
NODISCARD Status value_getattr_only(Render *r, Value object, uint32_t method, Str name, Value *out); /* V_MISSING: none */
NODISCARD Status value_getitem(Render *r, Value object, Value key, Value *out);      /* object[key] */

/* template_format.c */
NODISCARD Status format_percent(Render *r, Value format, const Args *args, bool one_value, Value *out);
NODISCARD Status format_braces(Render *r, Value format, const Args *args, Value *out);

/* template.c: everything but taking the output. */
NODISCARD Status template_execute(Render *r, const TemplateInput *input);

/* template_exec.c, template_call.c */
NODISCARD Status eval(Render *r, const Node *node, Value *out);
NODISCARD Status eval_call(Render *r, const Node *node, Value caller, Value *out);
NODISCARD Status eval_args(Render *r, const Node *node, Value caller, Args *out);
NODISCARD Status exec_nodes(Render *r, const Nodes *nodes);
void             scope_enter(Render *r, const Scope *scope);
NODISCARD Status assign_target(Render *r, const Node *target, Value value);
NODISCARD Status capture_end(Render *r, size_t start, Value *out);
NODISCARD Status loop_call(Render *r, LoopState *loop, const Args *args, Value *out);
NODISCARD Status loop_attribute(Render *r, LoopState *loop, Str name, Value *out); /* V_MISSING: none */
NODISCARD Status loop_changed(Render *r, LoopState *loop, const Args *args, Value *out);
int64_t          loop_index0(const LoopState *loop);
NODISCARD Status loop_length(Render *r, LoopState *loop, int64_t *out);
NODISCARD Status loop_next(Render *r, LoopState *loop, Value *out, bool *out_done);
