/* What a template may call: the filters, tests, functions and methods of builtins.def. */
#pragma once

#include "text/template/value.h"

typedef struct Render Render;

/* Arguments of a call; *args and **kwargs are already expanded. */
typedef struct Args {
    const Value *items;
    uint32_t     count;
    Dict         keywords; /* keys are texts */
} Args;

typedef struct Call {
    Value        self; /* the value that the filter, test or method is applied to */
    const Value *argv; /* the arguments in the order of the parameters; V_MISSING: not given */
    const Args  *args; /* the arguments as given */
    uint32_t     mode; /* mode and name are copied from the Builtin */
    const char  *name;
} Call;

enum { MAX_PARAMS = 6 };

/* A row of builtins.def. `name`: one name; for rows that are never called, several names separated by spaces. `params`: parameter names
 * separated by spaces. "*" alone: the function reads `args` itself. "!" before a name: the argument is required. "/" in front: the
 * arguments can't be given by name. */
typedef struct Builtin {
    const char *name;
    Value (*call)(Render *r, const Call *c);
    const char *params;
    uint32_t    mode;  /* tells apart the rows that share a function */
    uint32_t    types; /* methods: set of types that have the method */
} Builtin;

bool has_name(const char *names, Str name); /* names: separated by spaces */
/* Tables; the last row has no name. */
extern const Builtin template_filters[], template_tests[], template_functions[], template_methods[];
const Builtin       *builtin_find(const Builtin *table, Str name); /* NULL: not found */
/* The method `name` of an object; `first`: the first row with that name. NULL: the object has no such method. */
const Builtin *method_of(const Builtin *first, Value object, Str name);
void           builtin_check(Render *r, const Builtin *builtin, const char *kind, Str name); /* fails if builtin is NULL or `missing` */
Value          builtin_call(Render *r, const Builtin *builtin, Value self, const Args *args);

/* arg_*: convert an argument. `otherwise`: the result if the argument isn't given. `what`: the argument's name in errors. */
int64_t arg_int(Render *r, Value v, const char *what, int64_t otherwise);
bool    arg_bool(Render *r, Value v, bool otherwise);
Value   arg_text(Render *r, Value v, const char *what); /* fails if it isn't a text */

/* Modes: SELECT_ bits of select, reject, selectattr, rejectattr; SIDE_ bits of strip, lstrip, rstrip, and of functions on a prefix or
 * suffix. */
enum { SELECT_NOT = 1, SELECT_ATTRIBUTE = 2 };
enum { SIDE_LEFT = 1, SIDE_RIGHT = 2, SIDE_BOTH = 3 };

/* Declares the functions of all rows. */
#define FILTER(name, call, params, mode) Value call(Render *r, const Call *c);
#define TEST(name, call, params, mode) Value call(Render *r, const Call *c);
#define FUNCTION(name, call, params, mode) Value call(Render *r, const Call *c);
#define METHOD(types, name, call, params, mode) Value call(Render *r, const Call *c);
#include "text/template/builtins.def"

/* Shared by filters and methods. */
Value text_lines(Render *r, Value text, bool keep);
Value text_replace(Render *r, Value text, Value old, Value new_text, int64_t most);
