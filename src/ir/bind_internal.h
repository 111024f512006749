/* Shared by the files that bind a module (bind.c). */
#pragma once

#include "ir/expr.h"
#include "ir/graph_internal.h"
#include "ir/module.h"

enum { BIND_MAX_DEPTH = 16, BIND_MAX_NAMES = 64, BIND_MAX_PIECES = 4096 };

/* A name for a value within a scope: carried by a repeat, or made by a let. */
typedef struct Scope {
    const char *name;
    Value      *value;
} Scope;

typedef struct Binder {
    Arena             *arena;
    const IrModule    *module;
    const IrModule    *model;       /* the module itself; for an objective, the model whose outputs and namespaces it reads */
    const char        *prefix;      /* goes before names of values; "": nothing */
    const char        *ns;          /* namespace, for parameters and outputs; NULL: the model's own */
    bool               is_fallback; /* an output that exists already is kept, instead of being an error */
    const BindOptions *options;
    Graph             *graph;
    IrDims             dims;
    const char        *index_name[BIND_MAX_DEPTH];
    double             index[BIND_MAX_DEPTH];
    int                depth;
    int64_t            num_layers; /* iterations of outermost repeats so far */
    Scope              scope[BIND_MAX_NAMES];
    int                num_scope;
    int               *line_starts; /* byte offsets into the module's text */
    int                num_lines;
    const char        *source;  /* file:line in the DSL of the statement; NULL: unknown */
    bool               is_said; /* the message already says in which iteration of repeats it failed */
    int64_t            work;    /* units left; see bind_spend */
    struct Rows       *rows;    /* rows of tensors of a model folder that parameters are loaded from or saved to */
    int                num_rows, cap_rows;
} Binder;

/* For messages: "model.json:12", or "model.py:7 (model.json:12)". */
const char *bind_place(const Binder *b, const JsonValue *at);

#define BIND_FAIL(b, at, ...) \
    do { \
        status_fail(ERR_INVALID, __VA_ARGS__); \
        return status_prefix(ERR_INVALID, "%s", bind_place((b), (at))); \
    } while (0)

/* Takes `work` units from the budget, and fails when it is used up: a short module can't fill the memory or run for ever. Statements and
 * iterations of repeats cost work. */
NODISCARD Status bind_spend(Binder *b, const JsonValue *at, int64_t work);
/* Evaluates a number, a boolean, or a text with an expression. */
NODISCARD Status bind_eval(Binder *b, const JsonValue *value, double *out);
NODISCARD Status bind_int(Binder *b, const JsonValue *value, int64_t *out);
/* Adds to a failed status which value it was: "..., as attribute eps". `which`: its index in a list; < 0: it is no list. */
NODISCARD Status bind_as(Status status, const char *what, const char *name, int which);
/* Replaces each {expression} in the text by its value, a whole number: "blocks.{i}.q". */
NODISCARD Status bind_text(Binder *b, const JsonValue *value, const char **out);
/* The full name of a value that the module makes: prefix and name. */
const char      *bind_own_name(const Binder *b, const char *name);
NODISCARD Status bind_flag(Binder *b, const JsonValue *s, const char *key, bool *out);
NODISCARD Status bind_dtype(Binder *b, const JsonValue *s, const char *key, DTypeSet more, DType *out); /* f32, bf16 or one of `more` */
/* Reads the statement's "source" (its line of the DSL) into b->source. */
NODISCARD Status bind_source(Binder *b, const JsonValue *s);

/* Binds a statement that is a parameter (bind_param.c). */
NODISCARD Status bind_param(Binder *b, const JsonValue *s);
/* Checks how parameters fill the tensors of a model folder: no two may share rows, and a tensor that is saved must be complete. */
NODISCARD Status bind_check_rows(Binder *b);
