/* What the files that bind a module share (bind.c). */
#pragma once

#include "ir/expr.h"
#include "ir/graph_internal.h"
#include "ir/module.h"

enum { BIND_MAX_DEPTH = 16, BIND_MAX_NAMES = 64, BIND_MAX_PIECES = 4096 };

/* A name that stands for a value for a while: what a repeat carries, a let. */
typedef struct Scope {
    const char *name;
    Value      *value;
} Scope;

typedef struct Binder {
    Arena             *arena;
    const IrModule    *module;
    const IrModule    *model;       /* that namespaces are said of */
    const char        *prefix;      /* of the names of values; "": none */
    const char        *ns;          /* of parameters and outputs; NULL: the model's own */
    bool               is_fallback; /* outputs that are there stay */
    const BindOptions *options;
    Graph             *graph;
    IrDims             dims;
    const char        *index_name[BIND_MAX_DEPTH];
    double             index[BIND_MAX_DEPTH];
    int                depth;
    int64_t            num_layers; /* turns of the outermost repeats before this one */
    Scope              scope[BIND_MAX_NAMES];
    int                num_scope;
    int               *line_starts; /* byte offsets */
    int                num_lines;
    const char        *source;  /* file:line of the DSL that the statement was made of; NULL: it doesn't say */
    bool               is_said; /* the message says in which statement, of the turns of repeats, it failed */
    int64_t            work;    /* left */
    struct Rows       *rows;    /* of tensors of a model folder, that parameters are */
    int                num_rows, cap_rows;
} Binder;

/* For messages: "model.json:12", or "model.py:7 (model.json:12)". */
const char *bind_place(const Binder *b, const JsonValue *at);

#define BIND_FAIL(b, at, ...) \
    do { \
        status_fail(ERR_INVALID, __VA_ARGS__); \
        return status_prefix(ERR_INVALID, "%s", bind_place((b), (at))); \
    } while (0)

/* Statements and turns of repeats cost work, so that no module of a few lines fills the memory or runs for ever. */
NODISCARD Status bind_spend(Binder *b, const JsonValue *at, int64_t work);
/* A number, a boolean, or a text that is an expression. */
NODISCARD Status bind_eval(Binder *b, const JsonValue *value, double *out);
NODISCARD Status bind_int(Binder *b, const JsonValue *value, int64_t *out);
/* Says of what the failed value is: "..., as attribute eps". `which` < 0: there is one. */
NODISCARD Status bind_as(Status status, const char *what, const char *name, int which);
/* Replaces each {expression} by its whole value: "blocks.{i}.q". */
NODISCARD Status bind_text(Binder *b, const JsonValue *value, const char **out);
/* The name of a value that the module makes. */
const char      *bind_own_name(const Binder *b, const char *name);
NODISCARD Status bind_flag(Binder *b, const JsonValue *s, const char *key, bool *out);
NODISCARD Status bind_dtype(Binder *b, const JsonValue *s, const char *key, DTypeSet more, DType *out); /* f32, bf16 or one of `more` */
/* Which line of the DSL a statement was made of. */
NODISCARD Status bind_source(Binder *b, const JsonValue *s);

/* A statement that is a parameter (bind_param.c). */
NODISCARD Status bind_param(Binder *b, const JsonValue *s);
/* A tensor that two parameters were saved in would hold one of them; one of which no parameter has some rows can't be saved. */
NODISCARD Status bind_check_rows(Binder *b);
