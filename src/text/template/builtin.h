/* What a template may call: filters, tests, functions and methods, of builtins.def. */
#pragma once

#include "text/template/value.h"

typedef struct Render Render;

/* *args and **kwargs are already spread. */
typedef struct Args {
    const Value *items;
    uint32_t     count;
    Dict         keywords; /* by text */
} Args;

typedef struct Call {
    Value        self; /* what the filter, test or method is applied to */
    const Value *argv; /* by parameter, V_MISSING when not given */
    const Args  *args; /* as they were given */
    uint32_t     mode; /* the builtin's, and its name */
    const char  *name;
} Call;

enum { MAX_PARAMS = 6 };

/* `name`: one, or, of what is never called, several split by spaces. `params`: names split by spaces; "*" alone takes `args` as they are; a
 * leading "!" marks one that must be given, a "/" before all that they can't be named. */
typedef struct Builtin {
    const char *name;
    Value (*call)(Render *r, const Call *c);
    const char *params;
    uint32_t    mode;  /* tells uses of one function apart */
    uint32_t    types; /* of methods: whose it is */
} Builtin;

bool has_name(const char *names, Str name); /* names: split by spaces */
/* Tables; a row without name ends them. */
extern const Builtin template_filters[], template_tests[], template_functions[], template_methods[];
const Builtin       *builtin_find(const Builtin *table, Str name); /* NULL: none */
/* The method of an object, among those from the first row of that name on; NULL: it has none. */
const Builtin *method_of(const Builtin *first, Value object, Str name);
void           builtin_check(Render *r, const Builtin *builtin, const char *kind, Str name); /* fails for NULL and what is missing */
Value          builtin_call(Render *r, const Builtin *builtin, Value self, const Args *args);

/* Arguments: with what stands for one that isn't given. */
int64_t arg_int(Render *r, Value v, const char *what, int64_t otherwise);
bool    arg_bool(Render *r, Value v, bool otherwise);
Value   arg_text(Render *r, Value v, const char *what); /* fails when it is none */

/* Modes of select, reject, selectattr, rejectattr; of strip and its like, and of the ends of a text. */
enum { SELECT_NOT = 1, SELECT_ATTRIBUTE = 2 };
enum { SIDE_LEFT = 1, SIDE_RIGHT = 2, SIDE_BOTH = 3 };

/* The functions of all rows. */
#define FILTER(name, call, params, mode) Value call(Render *r, const Call *c);
#define TEST(name, call, params, mode) Value call(Render *r, const Call *c);
#define FUNCTION(name, call, params, mode) Value call(Render *r, const Call *c);
#define METHOD(types, name, call, params, mode) Value call(Render *r, const Call *c);
#include "text/template/builtins.def"

/* What filters share with methods. */
Value text_lines(Render *r, Value text, bool keep);
Value text_replace(Render *r, Value text, Value old, Value new_text, int64_t most);
